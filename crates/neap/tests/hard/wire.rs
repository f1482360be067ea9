//! The attacker's end of a TUN of its own. The kernel routes between it and the victim.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use neap::device::{Frame, QueuePair, RxQueue, Tun, TunConfig, TxQueue};
use neap_lab::hostile::packet;
use neap_lab::world::{Actor, Outbox};
use neap_tcp::segment::{Flags, Segment};
use neap_tcp::time::Nanos;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use crate::common::{Family, run};

/// Longest sleep of an attacker.
const NAP: Duration = Duration::from_millis(1);

/// A TUN that an attacker reads and writes.
pub(crate) struct Wire {
    tx: Box<dyn TxQueue>,
    rx: Box<dyn RxQueue>,
    descriptor: Arc<OwnedFd>,
    began: Instant,
    /// Packets that were sent and received.
    pub(crate) sent: u64,
    pub(crate) received: u64,
}

impl Wire {
    /// Makes the TUN, and has the kernel route between it and all others, whatever the addresses.
    pub(crate) fn open(family: Family) -> Self {
        let config = TunConfig {
            name: Some("evil".into()),
            offload: false,
            bulk_queue: false,
            ..TunConfig::default()
        };
        let device = Tun::open(&config).expect("a TUN").into_device();
        let set = |name: &str, value: &str| {
            std::fs::write(format!("/proc/sys/net/{name}"), value).expect("a sysctl");
        };
        match family {
            Family::V4 => {
                set("ipv4/ip_forward", "1");
                for interface in ["all", "evil"] {
                    set(&format!("ipv4/conf/{interface}/rp_filter"), "0");
                    // Forged packets bear the addresses of the kernel itself.
                    set(&format!("ipv4/conf/{interface}/accept_local"), "1");
                    set(&format!("ipv4/conf/{interface}/send_redirects"), "0");
                }
            }
            Family::V6 => set("ipv6/conf/all/forwarding", "1"),
        }
        run("ip link set evil up");
        let network = family.text("10.66.0.0", "fd00:66::");
        let prefix_len = if family == Family::V4 { 16 } else { 64 };
        run(&format!("ip route add {network}/{prefix_len} dev evil"));
        Self::of(device.queues.into_iter().next().expect("a queue"))
    }

    /// The attacker's end of a device.
    pub(crate) fn of(queue: QueuePair) -> Self {
        Self {
            tx: queue.tx,
            rx: queue.rx,
            descriptor: queue.descriptor.expect("a descriptor"),
            began: Instant::now(),
            sent: 0,
            received: 0,
        }
    }

    /// The time of the attacker's clock, which begins with the second hour.
    pub(crate) fn now(&self) -> neap_tcp::time::Instant {
        let nanos = self.began.elapsed().as_nanos() as u64;
        neap_tcp::time::Instant::ZERO + Nanos::from_secs(3600) + Nanos(nanos)
    }

    /// Lets an actor send and receive until the time is over or `is_over` says so.
    pub(crate) fn play(
        &mut self,
        actor: &mut dyn Actor,
        length: Duration,
        mut is_over: impl FnMut() -> bool,
    ) {
        let end = Instant::now() + length;
        let mut out = Outbox::new();
        while Instant::now() < end && !is_over() {
            let now = self.now();
            // What the attacker cannot take in time is lost, as on any wire.
            for _ in 0..1024 {
                let Some(packet) = self.rx.receive(now) else { break };
                self.received += 1;
                actor.receive(now, &packet.data, &mut out);
            }
            if actor.next() <= now {
                actor.wake(now, &mut out);
            }
            self.send(&mut out);
            let nap = actor.next().since(self.now()).min(NAP.into());
            self.sleep(nap);
        }
    }

    /// Sends what is in `out`.
    pub(crate) fn send(&mut self, out: &mut Outbox) {
        let now = self.now();
        for frame in out.drain(..) {
            self.sent += 1;
            // A full queue loses it.
            let _ = self.tx.submit(frame, now);
        }
        self.tx.flush(now);
        self.tx.reap(now);
    }

    /// Sleeps until a packet comes or the time is over.
    fn sleep(&self, nap: Nanos) {
        let nap = Timespec { tv_sec: 0, tv_nsec: nap.0.min(NAP.as_nanos() as u64) as i64 };
        let mut fds = [PollFd::new(&*self.descriptor, PollFlags::IN)];
        let _ = poll(&mut fds, Some(&nap));
    }
}

/// A host that knows no connection, as one that was started anew: it resets whatever comes.
pub(crate) struct Reborn;

impl Actor for Reborn {
    fn receive(&mut self, _: neap_tcp::time::Instant, data: &Bytes, out: &mut Outbox) {
        let Some((from, to, segment)) = packet::parse(data) else { return };
        if segment.flags.contains(Flags::RST) {
            return;
        }
        let reset = if segment.flags.contains(Flags::ACK) {
            Segment { seq: segment.ack, flags: Flags::RST, ..Segment::default() }
        } else {
            let flags = Flags::RST | Flags::ACK;
            Segment { ack: segment.end_seq(), flags, ..Segment::default() }
        };
        out.extend(packet::emit(to, from, reset));
    }

    fn next(&self) -> neap_tcp::time::Instant {
        neap_tcp::time::Instant::FAR_FUTURE
    }

    fn wake(&mut self, _: neap_tcp::time::Instant, _: &mut Outbox) {}
}

/// A packet of these bytes.
pub(crate) fn frame(bytes: Vec<u8>) -> Frame {
    Frame::new(neap::device::Headers::default(), Bytes::from(bytes).into())
}
