//! Datagrams of the kernel that come while a device is opened.

use neap_stack::device::{QueuePair, Received};
use neap_tcp::time::Instant;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::Instant as Clock;

use crate::common::PATIENCE;

/// Sends datagrams with the numbers from 0 on to `to` until it is dropped.
pub(crate) struct Flood {
    is_over: Arc<AtomicBool>,
    sent: Arc<AtomicU32>,
    sender: Option<JoinHandle<()>>,
}

impl Flood {
    pub(crate) fn begin(to: Ipv4Addr) -> Self {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
        let is_over = Arc::new(AtomicBool::new(false));
        let sent = Arc::new(AtomicU32::new(0));
        let (end, count) = (is_over.clone(), sent.clone());
        let send = move |number: u32| {
            // Each from a flow of its own, so that they come to all queues.
            let port = 1000 + number as u16 % 60_000;
            // A full queue of the host loses some.
            let _ = socket.send_to(&number.to_be_bytes(), (to, port));
            count.store(number + 1, SeqCst);
        };
        let sender = std::thread::spawn(move || {
            (0..).take_while(|_| !end.load(SeqCst)).for_each(send);
        });
        Self { is_over, sent, sender: Some(sender) }
    }

    /// Opens a device, again and again until datagrams were sent meanwhile.
    pub(crate) fn during<T>(&self, open: impl Fn() -> T) -> T {
        let start = Clock::now();
        loop {
            let before = self.sent.load(SeqCst);
            let opened = open();
            // The first of them may have been on its way before.
            if self.sent.load(SeqCst) >= before + 2 {
                return opened;
            }
            assert!(start.elapsed() < PATIENCE, "the flood has no processor");
        }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.is_over.store(true, SeqCst);
        if let Some(Err(panic)) = self.sender.take().map(JoinHandle::join) {
            std::panic::resume_unwind(panic);
        }
    }
}

/// The numbers of the datagrams to `to` that have arrived.
pub(crate) fn flooded(queues: &mut [QueuePair], to: Ipv4Addr) -> Vec<u32> {
    let packets = queues.iter_mut().flat_map(|queue| {
        core::iter::from_fn(|| queue.rx.receive(Instant::ZERO)).collect::<Vec<_>>()
    });
    let number = |packet: Received| match packet.data.get(42..46)?.first_chunk() {
        Some(number) if packet.data[30..34] == to.octets() => Some(u32::from_be_bytes(*number)),
        _ => None,
    };
    packets.filter_map(number).collect()
}
