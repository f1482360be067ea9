//! The shortest exchange with the kernel over a TUN, without a stack.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use neap::device::{Frame, Headers, LinkConfig, QueuePair, Tun, TunConfig, configure_link};

const KERNEL: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 1);
const OURS: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 2);

/// Exchanges of one measurement: some 50 ms.
const EXCHANGES: usize = 10_000;

/// A TUN that no stack has.
pub(crate) struct Exchange {
    queue: QueuePair,
    request: Bytes,
}

impl Exchange {
    pub(crate) fn open() -> Self {
        let config =
            TunConfig { name: Some("t1".into()), bulk_queue: false, ..TunConfig::default() };
        let tun = Tun::open(&config).expect("a TUN");
        let addresses = vec![(KERNEL.into(), 24)];
        let link = LinkConfig { addresses, ..LinkConfig::default() };
        configure_link("t1", &link).expect("an address");
        let queue = tun.into_device().queues.remove(0);
        Self { queue, request: echo_request() }
    }

    /// The least time from before an echo request is written until its answer has been read, of
    /// many. The kernel answers within the write, as it acknowledges segments.
    pub(crate) fn least(&mut self) -> Duration {
        let now = neap::time::Instant::ZERO;
        let QueuePair { tx, rx, .. } = &mut self.queue;
        let mut least = Duration::MAX;
        for _ in 0..EXCHANGES {
            let frame = Frame::new(Headers::default(), self.request.clone().into());
            let begin = Instant::now();
            tx.submit(frame, now).expect("room");
            let answer = rx.receive(now);
            let took = begin.elapsed();
            // What else the kernel sends is no answer.
            if answer.is_some_and(|answer| answer.data.len() == self.request.len()) {
                least = least.min(took);
            }
        }
        assert!(least < Duration::MAX, "no answer in a write");
        least
    }
}

/// An IPv4 packet with an echo request and no data.
fn echo_request() -> Bytes {
    let mut icmp = [8, 0, 0, 0, 0, 1, 0, 1];
    let sum = checksum(&icmp);
    icmp[2..4].copy_from_slice(&sum);
    let mut ip = [0; 20];
    (ip[0], ip[3], ip[8], ip[9]) = (0x45, 28, 64, 1);
    ip[12..16].copy_from_slice(&OURS.octets());
    ip[16..20].copy_from_slice(&KERNEL.octets());
    let sum = checksum(&ip);
    ip[10..12].copy_from_slice(&sum);
    Bytes::from([&ip[..], &icmp].concat())
}

fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    (!(folded as u16)).to_be_bytes()
}
