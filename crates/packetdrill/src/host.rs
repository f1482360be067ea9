//! The host under test, and the passing of virtual time.
//!
//! Two threads of packetdrill call: the main thread, whose sleeps and receives let time pass, and
//! one that makes blocking system calls. At every instant at which anything happens, whoever waits
//! in a call looks at its socket before time goes on; so both see the same order in every run.

use crate::flags::{Baseline, Flags, read_sysctl};
use bytes::Bytes;
use core::net::IpAddr;
use core::time::Duration;
use neap_posix::{Call, Errno, Fd, Outcome, Posix};
use neap_script::host::SentPacket;
use neap_script::machine::{Machine, START};
use neap_script::settings::QDISC_SYSCTL;
use neap_stack::interface::Address;
use neap_stack::route::Prefix;
use neap_stack::stack::{StackConfig, StackError};
use neap_tcp::time::{Instant, Nanos};
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

/// The first descriptor that is neap's: beyond what a program opens that opens little, and below
/// the usual limit of a process.
pub(crate) const FIRST_FD: Fd = 512;

/// What a look at the clock takes: packetdrill spins on it before each event.
const LOOK: Nanos = Nanos::from_micros(1);
/// A receive gives up when nothing was sent for so long.
const PATIENCE: Nanos = Nanos::from_secs(3600);
/// Real time after which a blocking call that nobody lets time pass for does it itself:
/// packetdrill's main thread then waits for the call to end, for a second.
const NOBODY_DRIVES: Duration = Duration::from_millis(300);
/// Real time in which a thread that was woken must have looked.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// A call that waits.
#[derive(Debug)]
struct Waiter {
    until: Instant,
    /// The round in which it last looked.
    seen: u64,
}

#[derive(Debug)]
struct Inner {
    machine: Machine,
    flags: Flags,
    baseline: Baseline,
    waiters: BTreeMap<u64, Waiter>,
    next_waiter: u64,
    /// Counts the instants at which waiters are to look.
    round: u64,
    /// When the last waiting call of a thread ended: the next look at the clock tells that time.
    ended: Vec<(ThreadId, Instant)>,
}

/// One host in virtual time, for any thread.
#[derive(Debug)]
pub(crate) struct Host {
    inner: Mutex<Inner>,
    changed: Condvar,
}

impl Inner {
    /// Lets the stack do what is due.
    fn poll(&mut self) {
        // A stack that spins goes on at the next visit.
        let _ = self.machine.poll();
    }

    /// When the first of the calls that wait returns at the latest.
    fn first_return(&self) -> Instant {
        let calls = self.waiters.values().map(|waiter| waiter.until);
        calls.fold(Instant::FAR_FUTURE, Instant::min)
    }

    /// Lets time pass until anything happens, at the latest until `end`.
    fn advance(&mut self, end: Instant) {
        let first_return = self.first_return();
        self.machine.advance(first_return.min(end));
        self.poll();
    }

    /// Makes an address the host's own.
    fn learn(&mut self, address: IpAddr) -> Result<(), StackError> {
        if self.machine.has_address(address)
            || address.is_unspecified()
            || address.is_multicast()
            || address.is_loopback()
        {
            return Ok(());
        }
        self.machine.add_address(Address { ip: address, prefix: Prefix::of_host(address) })
    }

    /// Gives every interface the qdisc that the namespace names, unless neap does not have it.
    fn refresh_qdisc(&mut self) {
        if self.flags.qdisc.is_some() {
            return;
        }
        let is_set = |value: &String| self.baseline.get(QDISC_SYSCTL) != Some(value);
        let named = read_sysctl(QDISC_SYSCTL).filter(is_set);
        let named = named.and_then(|name| name.trim().parse().ok());
        if let Some(qdisc) = named.filter(|qdisc| Some(qdisc) != self.machine.qdisc()) {
            self.machine.set_qdisc(qdisc);
        }
    }
}

/// Destination of an IP packet.
fn destination(packet: &[u8]) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        4 => Some(IpAddr::from(*packet.get(16..20)?.first_chunk::<4>()?)),
        6 => Some(IpAddr::from(*packet.get(24..40)?.first_chunk::<16>()?)),
        _ => None,
    }
}

impl Host {
    /// A host with the addresses and settings of the flags.
    pub(crate) fn new(flags: Flags) -> Result<Self, StackError> {
        let mut machine = Machine::new(StackConfig::default(), flags.mtu, FIRST_FD)?;
        machine.set_qdisc(flags.qdisc.clone().unwrap_or_default());
        let mut inner = Inner {
            machine,
            baseline: flags.baseline(read_sysctl),
            waiters: BTreeMap::new(),
            next_waiter: 0,
            round: 0,
            ended: Vec::new(),
            flags,
        };
        for address in inner.flags.local.clone() {
            inner.learn(address)?;
        }
        Ok(Self { inner: Mutex::new(inner), changed: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether neap has this descriptor open.
    pub(crate) fn owns(&self, fd: Fd) -> bool {
        self.lock().machine.posix().owns(fd)
    }

    /// Makes a call, waiting in virtual time as long as it has to.
    pub(crate) fn call<T>(
        &self,
        mut make: impl FnMut(&mut Posix, Instant, &mut Call) -> Result<Outcome<T>, Errno>,
    ) -> Result<T, Errno> {
        let mut inner = self.lock();
        let (mut call, mut id) = (Call::new(), None);
        let answer = loop {
            let now = inner.machine.now();
            match make(inner.machine.posix(), now, &mut call) {
                Ok(Outcome::Done(answer)) => break Ok(answer),
                Err(error) => break Err(error),
                Ok(Outcome::Wait(_)) => {}
            }
            inner.poll();
            let until = match make(inner.machine.posix(), now, &mut call) {
                Ok(Outcome::Done(answer)) => break Ok(answer),
                Err(error) => break Err(error),
                Ok(Outcome::Wait(until)) => until,
            };
            let seen = inner.round;
            let id = *id.get_or_insert_with(|| {
                inner.next_waiter += 1;
                inner.next_waiter
            });
            inner.waiters.insert(id, Waiter { until, seen });
            self.changed.notify_all();
            let is_waiting = |inner: &mut Inner| inner.round == seen;
            let waited = self.changed.wait_timeout_while(inner, NOBODY_DRIVES, is_waiting);
            let (guard, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            inner = guard;
            let next = inner.first_return().min(inner.machine.due());
            if timeout.timed_out() && inner.round == seen && next < Instant::FAR_FUTURE {
                inner.advance(next);
            }
        };
        inner.poll();
        if let Some(id) = id {
            inner.waiters.remove(&id);
            let ended = (thread::current().id(), inner.machine.now());
            inner.ended.retain(|(thread, _)| *thread != ended.0);
            inner.ended.push(ended);
            self.changed.notify_all();
        } else {
            drop(self.let_waiters_look(inner));
        }
        answer
    }

    /// Makes a call that never waits.
    pub(crate) fn at_once<T>(
        &self,
        make: impl FnOnce(&mut Posix, Instant) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let mut inner = self.lock();
        let now = inner.machine.now();
        let answer = make(inner.machine.posix(), now);
        inner.poll();
        drop(self.let_waiters_look(inner));
        answer
    }

    /// Reads the sysctls anew, for a socket that is about to be made.
    pub(crate) fn refresh_settings(&self) {
        let mut inner = self.lock();
        inner.refresh_qdisc();
        let config = inner.flags.config(&inner.baseline, read_sysctl);
        // The name of the controller was checked when it was set.
        let _ = inner.machine.stack().set_config(config);
    }

    /// Makes an address the host's own, as a script's `bind` implies.
    pub(crate) fn learn(&self, address: IpAddr) {
        // A device with one queue is never refused.
        let _ = self.lock().learn(address);
    }

    /// Lets every call that waits look at its socket, and waits until they have.
    fn let_waiters_look<'a>(&'a self, mut inner: MutexGuard<'a, Inner>) -> MutexGuard<'a, Inner> {
        if inner.waiters.is_empty() {
            return inner;
        }
        inner.round += 1;
        let round = inner.round;
        self.changed.notify_all();
        let is_pending =
            |inner: &mut Inner| inner.waiters.values().any(|waiter| waiter.seen != round);
        let waited = self.changed.wait_timeout_while(inner, HANDSHAKE, is_pending);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Goes to the next event, at the latest to `end`.
    fn step<'a>(&'a self, mut inner: MutexGuard<'a, Inner>, end: Instant) -> MutexGuard<'a, Inner> {
        inner.advance(end);
        self.let_waiters_look(inner)
    }

    /// Lets time pass.
    pub(crate) fn sleep(&self, span: Nanos) {
        let mut inner = self.lock();
        let end = inner.machine.now() + span;
        while inner.machine.now() < end {
            inner = self.step(inner, end);
        }
    }

    /// Now, as a program reads its clock. Time passes by looking.
    pub(crate) fn look_at_clock(&self) -> Instant {
        let mut inner = self.lock();
        let me = thread::current().id();
        if let Some(at) = inner.ended.iter().position(|(thread, _)| *thread == me) {
            return inner.ended.swap_remove(at).1;
        }
        let end = inner.machine.now() + LOOK;
        self.step(inner, end).machine.now()
    }

    /// A packet of the script arrives; false if too many wait.
    pub(crate) fn inject(&self, packet: &[u8]) -> bool {
        let mut inner = self.lock();
        let known = destination(packet).map_or(Ok(()), |address| inner.learn(address));
        let taken = known.is_ok() && inner.machine.inject(Bytes::copy_from_slice(packet));
        inner.poll();
        drop(self.let_waiters_look(inner));
        taken
    }

    /// The next packet that the host sends, and when; `None` if none comes for an hour.
    pub(crate) fn sniff(&self) -> Option<(Instant, Bytes)> {
        let mut inner = self.lock();
        let end = inner.machine.now() + PATIENCE;
        loop {
            if let Some(SentPacket { at, packet }) = inner.machine.take_sent() {
                return Some((START + at, packet));
            }
            if inner.machine.now() >= end {
                return None;
            }
            inner = self.step(inner, end);
        }
    }

    /// Whether a call waits.
    #[cfg(test)]
    pub(crate) fn has_waiters(&self) -> bool {
        !self.lock().waiters.is_empty()
    }
}
