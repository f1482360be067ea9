//! The loop that moves packets between two devices and a link of the lab, in real time.
//!
//! One thread reads what the devices received, puts it into the link, and releases what has come
//! through when it is due. Between that it sleeps until a device has something or the next packet
//! is due, or it spins. Packets that are due within a short time after the last release wait for
//! the end of that time, so that they leave as one super-frame.

use super::ends::{End, EndSpec};
use super::lateness::Lateness;
use crate::perf::interrupt::Interrupt;
use neap::device::{Completion, Frame, LinkMonitor, LinkState, RxQueue, TxQueue};
use neap::time::{Instant, Nanos};
use neap_lab::link::{Relay, RelayStats};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::thread::set_current_timer_slack;
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::num::NonZeroU64;
use std::sync::Arc;

/// Frames that are read from a device before the other one has its turn.
const READS: usize = 16;
/// Frames that are released to a device before the devices are read again.
const RELEASES: usize = 32;
/// Frames that a device gets before it is told to send them, where that is a call of its own.
const FLUSH: usize = 8;
/// The longest sleep, after which the user's wish to stop is looked at. It usually ends a sleep.
const LONGEST_SLEEP: Nanos = Nanos::from_millis(100);
/// How often the driver looks whether the interfaces are still there.
const LOOK: Nanos = Nanos::from_millis(100);
/// When a frame that a device had no room for is offered again.
const RETRY: Nanos = Nanos::from_micros(100);

/// How eagerly packets are released.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// The thread never sleeps.
    pub(super) spins: bool,
    /// Shortest time between two releases.
    pub(super) batch: Nanos,
    /// What is later counts as late.
    pub(super) late: Nanos,
}

/// The time of the monotonic clock.
pub(super) fn now() -> Instant {
    let time = clock_gettime(ClockId::Monotonic);
    Instant::from_nanos(time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs())
}

/// A frame that a device had no room for.
struct Refused {
    frame: Frame,
    /// When its packets were due.
    dues: Vec<Instant>,
    /// When it is offered again. What is behind it waits too.
    retry: Instant,
}

/// The device of an end.
struct Port {
    spec: EndSpec,
    tx: Box<dyn TxQueue>,
    rx: Box<dyn RxQueue>,
    descriptor: Arc<OwnedFd>,
    monitor: Option<Box<dyn LinkMonitor>>,
    completion: Completion,
    /// A frame that the device had no room for.
    refused: Option<Refused>,
    /// When the packets were due that the device got and has not been told to send.
    unflushed: Vec<Instant>,
    /// Of the packets that left by this device.
    lateness: Lateness,
}

impl Port {
    fn new(end: End, late: Nanos) -> io::Result<Self> {
        let missing = || io::Error::other("the device has no descriptor");
        let mut device = end.device;
        let queue = device.queues.pop().ok_or_else(missing)?;
        Ok(Self {
            tx: queue.tx,
            rx: queue.rx,
            descriptor: queue.descriptor.ok_or_else(missing)?,
            monitor: device.monitor,
            completion: device.capabilities.completion,
            refused: None,
            unflushed: Vec::new(),
            lateness: Lateness::new(late),
            spec: end.spec,
        })
    }

    /// Packets that were lost before the link could read them.
    fn drops(&mut self) -> u64 {
        let before = self.monitor.as_mut().map_or(0, |monitor| monitor.lost_before_queues());
        self.rx.drops() + before
    }

    /// # Errors
    /// The interface went away.
    fn look(&mut self) -> io::Result<()> {
        match self.monitor.as_mut().map(|monitor| monitor.look().state) {
            Some(LinkState::Gone) => Err(io::Error::other(format!("{} has gone away", self.spec))),
            _ => Ok(()),
        }
    }

    fn flush(&mut self) {
        if self.unflushed.is_empty() {
            return;
        }
        self.tx.flush(now());
        let left = now();
        for due in self.unflushed.drain(..) {
            self.lateness.record(left.since(due));
        }
    }

    /// Gives the device a frame; whether it took it.
    fn send(&mut self, frame: Frame, dues: &mut Vec<Instant>) -> bool {
        if let Err(frame) = self.tx.submit(frame, now()) {
            let (dues, retry) = (core::mem::take(dues), now() + RETRY);
            self.refused = Some(Refused { frame, dues, retry });
            return false;
        }
        self.unflushed.append(dues);
        let is_sent = self.completion == Completion::OnSubmit || self.tx.is_latest_complete();
        if is_sent || self.unflushed.len() >= FLUSH {
            self.flush();
        }
        true
    }
}

/// Counters of one direction.
#[derive(Clone, Debug)]
pub(super) struct DirectionStats {
    pub(super) relay: RelayStats,
    /// Packets that the device lost before they could be read.
    pub(super) rx_dropped: u64,
    /// Frames that the other device refused for good.
    pub(super) tx_errors: u64,
    pub(super) lateness: Lateness,
}

/// The loop.
pub(super) struct Driver {
    ports: [Port; 2],
    relay: Relay,
    pace: Pace,
    start: Instant,
    last_release: Instant,
    next_look: Instant,
    dues: Vec<Instant>,
}

impl Driver {
    pub(super) fn new(relay: Relay, ends: [End; 2], pace: Pace) -> io::Result<Self> {
        let [a, b] = ends.map(|end| Port::new(end, pace.late));
        // By default the system adds up to 50 us to each sleep.
        set_current_timer_slack(NonZeroU64::new(1))?;
        let start = now();
        let last_release = start - pace.batch;
        let (next_look, dues) = (start + LOOK, Vec::new());
        Ok(Self { ports: [a?, b?], relay, pace, start, last_release, next_look, dues })
    }

    /// Runs until the time has come or the user interrupts.
    ///
    /// # Errors
    /// An interface went away.
    pub(super) fn run(&mut self, until: Option<Instant>, interrupt: &Interrupt) -> io::Result<()> {
        let until = until.unwrap_or(Instant::FAR_FUTURE);
        while !interrupt.is_set() && now() < until {
            self.turn(until)?;
        }
        Ok(())
    }

    /// Moves what has come and what is due, and waits for more until then.
    fn turn(&mut self, until: Instant) -> io::Result<()> {
        let mut has_more = false;
        for end in 0..self.ports.len() {
            has_more |= self.receive(end);
        }
        self.relay.advance(now());
        if self.next_release() <= now() {
            let mut has_due = false;
            for from in 0..self.ports.len() {
                has_due |= self.release(from);
            }
            // What is still due does not wait for the next release.
            if !has_due {
                self.last_release = now();
            }
            has_more |= has_due;
        }
        for port in &mut self.ports {
            let _ = port.tx.reap(now());
        }
        self.look(now())?;
        if has_more { Ok(()) } else { self.wait(until) }
    }

    /// Looks at the interfaces if it is time to. AF_PACKET tells of the end of an interface by its
    /// descriptor only if the interface is up, and a driver that spins asks no descriptor.
    fn look(&mut self, now: Instant) -> io::Result<()> {
        if now < self.next_look {
            return Ok(());
        }
        self.next_look = now + LOOK;
        self.ports.iter_mut().try_for_each(Port::look)
    }

    /// Counters of the packets that came in at an end.
    pub(super) fn stats(&mut self, end: usize) -> DirectionStats {
        DirectionStats {
            relay: self.relay.stats(end, now()),
            rx_dropped: self.ports[end].drops(),
            tx_errors: self.ports[1 - end].tx.errors(),
            lateness: self.ports[1 - end].lateness.clone(),
        }
    }

    /// Time since the start.
    pub(super) fn elapsed(&self) -> Nanos {
        now().since(self.start)
    }

    /// When packets are released next.
    fn next_release(&self) -> Instant {
        // What waits behind a refused frame can only leave after it.
        let next = |from: usize| match &self.ports[1 - from].refused {
            Some(refused) => refused.retry,
            None => self.relay.next_arrival(from),
        };
        let next = (0..self.ports.len()).map(next).fold(self.relay.next_turn(), Instant::min);
        next.max(self.last_release + self.pace.batch)
    }

    /// Reads what a device received; whether it may have more.
    fn receive(&mut self, end: usize) -> bool {
        for _ in 0..READS {
            let Some(received) = self.ports[end].rx.receive(now()) else { return false };
            let arrival = now();
            self.relay.enter(end, arrival, received);
            if self.next_release() <= arrival {
                return true;
            }
        }
        true
    }

    /// Gives a device what has come through the link from the other end; whether more is due.
    fn release(&mut self, from: usize) -> bool {
        let port = &mut self.ports[1 - from];
        if port.refused.as_ref().is_some_and(|refused| refused.retry > now()) {
            return false;
        }
        if let Some(Refused { frame, mut dues, .. }) = port.refused.take()
            && !port.send(frame, &mut dues)
        {
            return false;
        }
        let has_more = (0..RELEASES).all(|_| {
            let frame = self.relay.leave(from, now(), &mut self.dues);
            frame.is_some_and(|frame| port.send(frame, &mut self.dues))
        });
        port.flush();
        has_more && self.relay.next_arrival(from) <= now()
    }

    /// Waits for a device, for the next packet that is due, or for `until`.
    fn wait(&mut self, until: Instant) -> io::Result<()> {
        if self.pace.spins {
            core::hint::spin_loop();
            return Ok(());
        }
        let begin = now();
        let due = self.next_release().min(until).min(begin + LONGEST_SLEEP);
        if due <= begin {
            return Ok(());
        }
        let time = due.since(begin);
        let timeout = Timespec {
            tv_sec: (time.0 / 1_000_000_000) as i64,
            tv_nsec: (time.0 % 1_000_000_000) as i64,
        };
        let [a, b] = self.ports.each_ref().map(|port| PollFd::new(&port.descriptor, PollFlags::IN));
        let mut descriptors = [a, b];
        // A signal ends it too.
        let has_any = poll(&mut descriptors, Some(&timeout)).is_ok_and(|count| count > 0);
        let trouble = PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL;
        let failed = descriptors.each_ref().map(|one| has_any && one.revents().intersects(trouble));
        let failed = self.ports.iter_mut().zip(failed).filter(|(_, failed)| *failed);
        failed.map(|(port, _)| port).try_for_each(Port::look)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use neap::device::{Capabilities, Completed, Device, Medium, QueuePair, Received, RxChecksum};
    use neap_lab::link::{PathConfig, RelayConfig};
    use neap_lab::rng::Rng;
    use neap_tcp::time::Rate;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A device that refuses the first frames, and counts what it is offered and what it takes.
    #[derive(Clone, Default)]
    struct Narrow {
        refusals: usize,
        offered: Arc<AtomicUsize>,
        taken: Arc<AtomicUsize>,
    }

    impl TxQueue for Narrow {
        fn submit(&mut self, frame: Frame, _: Instant) -> Result<(), Frame> {
            let before = self.offered.fetch_add(1, Ordering::Relaxed);
            if before < self.refusals {
                return Err(frame);
            }
            self.taken.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }

        fn flush(&mut self, _: Instant) {}

        fn reap(&mut self, _: Instant) -> Completed {
            Completed::default()
        }

        fn next_event(&self) -> Instant {
            Instant::FAR_FUTURE
        }
    }

    /// A device from which nothing comes.
    struct Quiet;

    impl RxQueue for Quiet {
        fn receive(&mut self, _: Instant) -> Option<Received> {
            None
        }
    }

    fn end(tx: Narrow, descriptor: UnixStream) -> End {
        let (tx, rx) = (Box::new(tx), Box::new(Quiet));
        let descriptor = Some(Arc::new(descriptor.into()));
        let device = Device {
            name: "t0".to_owned(),
            capabilities: Capabilities::new(Medium::Ip, 1500, Completion::OnSubmit),
            queues: vec![QueuePair { tx, rx, bulk: None, descriptor }],
            steering: None,
            monitor: None,
        };
        End { spec: "t0".parse().expect("an end"), device, is_tun: true }
    }

    /// A link through which so many datagrams have come, and whose second device is this one. The
    /// descriptors stay silent while the sockets live.
    fn driver(datagrams: usize, narrow: &Narrow, spins: bool) -> (Driver, [UnixStream; 2]) {
        let path = PathConfig::clean(Rate::UNLIMITED, Nanos::ZERO);
        let (paths, changes) = ([path.clone(), path], Vec::new());
        let config = RelayConfig { paths, changes, most_packets: 100 };
        let mut relay = Relay::new(config, &Rng::new(1), now(), false);
        let header = [0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        let data = [&header[..], &[0; 8]].concat();
        for _ in 0..datagrams {
            let (data, checksum) = (data.clone().into(), RxChecksum::Good);
            relay.enter(0, now(), Received { data, gso_size: 0, checksum });
        }
        let (near, far) = UnixStream::pair().expect("sockets");
        let (other_near, other_far) = UnixStream::pair().expect("sockets");
        let ends = [end(Narrow::default(), near), end(narrow.clone(), other_near)];
        let pace = Pace { spins, batch: Nanos::ZERO, late: Nanos::from_secs(1) };
        (Driver::new(relay, ends, pace).expect("a driver"), [far, other_far])
    }

    #[test]
    fn a_frame_that_was_refused_is_offered_again_though_nothing_else_comes() {
        let narrow = Narrow { refusals: 2, ..Narrow::default() };
        let (mut driver, _silent) = driver(1, &narrow, false);
        let until = now() + Nanos::from_secs(600);
        let is_taken = (0..1000).any(|_| {
            driver.turn(until).expect("both ends are there");
            narrow.taken.load(Ordering::Relaxed) == 1
        });
        assert!(is_taken);
        assert_eq!(narrow.offered.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn a_device_is_offered_nothing_before_the_time_to_try_again() {
        for spins in [false, true] {
            let narrow = Narrow { refusals: usize::MAX, ..Narrow::default() };
            let (mut driver, _silent) = driver(2, &narrow, spins);
            driver.turn(now()).expect("both ends are there");
            assert_eq!(narrow.offered.load(Ordering::Relaxed), 1);
            let later = now() + Nanos::from_secs(600);
            driver.ports[1].refused.as_mut().expect("a refused frame").retry = later;
            assert_eq!(driver.next_release(), later, "what waits behind it cannot leave");
            (0..100).for_each(|_| driver.turn(now()).expect("both ends are there"));
            assert_eq!(narrow.offered.load(Ordering::Relaxed), 1);
        }
    }

    #[test]
    fn what_is_due_does_not_wait_for_the_next_release() {
        let narrow = Narrow::default();
        let (mut driver, _silent) = driver(100, &narrow, false);
        // The time between two releases is over once, and not again.
        driver.pace.batch = now().since(Instant::ZERO);
        driver.last_release = Instant::ZERO;
        (0..100).for_each(|_| driver.turn(now()).expect("both ends are there"));
        assert_eq!(narrow.taken.load(Ordering::Relaxed), 100);
        assert!(driver.next_release() > now());
    }
}
