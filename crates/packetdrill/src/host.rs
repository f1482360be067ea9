//! The host under test, and the passing of virtual time.
//!
//! Two threads of packetdrill call: the main thread, whose sleeps and receives let time pass, and
//! one that makes blocking system calls. At every instant at which anything happens, whoever waits
//! in a call looks at its socket before time goes on; so both see the same order in every run.
//!
//! A call that returns to the second thread has consequences in packetdrill that take real time:
//! the descriptor of an `accept` becomes known, an event is found to be late. A sleep of the main
//! thread lasts until they are over, however short it is in virtual time.

use crate::flags::{Baseline, FlagError, Flags, Proc, Sysctls};
use crate::namespace::{Namespace, NoNamespace, RootQdisc};
use bytes::Bytes;
use core::net::IpAddr;
use core::time::Duration;
use neap_posix::{Call, Errno, Fd, Outcome, Posix};
use neap_script::host::SentPacket;
use neap_script::machine::{Machine, START};
use neap_script::settings::QDISC_SYSCTL;
use neap_stack::interface::Address;
use neap_stack::qdisc::config::QdiscConfig;
use neap_stack::route::Prefix;
use neap_stack::stack::{StackConfig, StackError};
use neap_stack::wait::Condition;
use neap_tcp::time::{Instant, Nanos};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::{fs, time};
use thiserror::Error;

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
/// A call of the main thread that has no timeout gives up after so long: the timers of a connection
/// that nobody answers, keepalives included, have all ended by then.
const LONGEST_CALL: Nanos = Nanos::from_secs(24 * 3600);
/// What a call of the main thread returns that nothing can end any more.
const DEADLOCK: Errno = Errno(libc::EDEADLK);

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
    /// MTU of the namespace's device when the script began.
    first_mtu: Option<u16>,
    /// Whether the interfaces of the flags' addresses are there.
    is_prepared: bool,
    namespace: Box<dyn Namespace>,
    /// The qdisc of the namespace's device when it was last looked at.
    device_qdisc: Option<RootQdisc>,
    waiters: BTreeMap<u64, Waiter>,
    next_waiter: u64,
    /// Counts the instants at which waiters are to look.
    round: u64,
    /// When the last waiting call of a thread ended: the next look at the clock tells that time.
    ended: Vec<(ThreadId, Instant)>,
    /// Threads that have looked at the clock after such a call, and act on its answer.
    acting: Vec<PathBuf>,
}

/// Why there is no host.
#[derive(Debug, Error)]
pub(crate) enum HostError {
    #[error(transparent)]
    Flag(#[from] FlagError),
    #[error(transparent)]
    Stack(#[from] StackError),
    #[error(transparent)]
    Namespace(#[from] NoNamespace),
}

/// One host in virtual time, for any thread.
#[derive(Debug)]
pub(crate) struct Host {
    inner: Mutex<Inner>,
    changed: Condvar,
    /// The thread that lets time pass and gives packets: the one that made the host.
    driver: ThreadId,
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

    /// Makes the interfaces of the flags' addresses, once the script has prepared the device that
    /// they stand for.
    fn prepare(&mut self) -> Result<(), StackError> {
        if core::mem::replace(&mut self.is_prepared, true) {
            return Ok(());
        }
        let mtu = self.namespace.mtu().filter(|_| self.flags.mtu.is_none());
        if let Some(mtu) = mtu.filter(|mtu| self.first_mtu.is_some_and(|first| first != *mtu)) {
            self.machine.set_mtu(mtu);
        }
        for address in self.flags.local.clone() {
            self.learn(address)?;
        }
        Ok(())
    }

    /// Makes an address the host's own.
    fn learn(&mut self, address: IpAddr) -> Result<(), StackError> {
        self.prepare()?;
        if self.machine.has_address(address)
            || address.is_unspecified()
            || address.is_multicast()
            || address.is_loopback()
        {
            return Ok(());
        }
        self.machine.add_address(Address { ip: address, prefix: Prefix::of_host(address) })
    }

    /// Gives every interface the qdisc that a script gave its device, unless neap does not have it.
    fn follow_device(&mut self) {
        if self.flags.qdisc.is_some() || !self.flags.is_from_defaults {
            return;
        }
        let qdisc = self.namespace.qdisc();
        if qdisc == self.device_qdisc {
            return;
        }
        if let Some(qdisc) = qdisc.as_ref().and_then(config_of) {
            self.machine.set_qdisc(qdisc);
        }
        self.device_qdisc = qdisc;
    }

    /// Gives every interface the qdisc that the namespace names, unless neap does not have it.
    fn refresh_qdisc(&mut self) {
        if self.flags.qdisc.is_some() {
            return;
        }
        let is_set = |value: &String| self.baseline.get(QDISC_SYSCTL) != Some(value);
        let named = Proc.read(QDISC_SYSCTL).filter(is_set);
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

/// neap's qdisc for one of the system's: the same limit for a FIFO, else the defaults.
fn config_of(qdisc: &RootQdisc) -> Option<QdiscConfig> {
    match (qdisc.kind.as_str(), qdisc.limit) {
        ("pfifo", Some(limit)) => Some(QdiscConfig::PfifoFast { limit }),
        (kind, _) => kind.parse().ok(),
    }
}

/// Where the system tells of this thread.
fn own_task() -> Option<PathBuf> {
    fs::read_link("/proc/thread-self").ok().map(|task| PathBuf::from("/proc").join(task))
}

/// Whether a thread sleeps in the system. One that is gone does.
fn is_asleep(task: &Path) -> bool {
    let stat = fs::read_to_string(task.join("stat")).unwrap_or_default();
    // The state follows the name, which is in parentheses.
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    state.is_none_or(|state| state == 'S')
}

impl Host {
    /// A host with the addresses and settings of the flags.
    pub(crate) fn new(flags: Flags, mut namespace: Box<dyn Namespace>) -> Result<Self, HostError> {
        if flags.is_from_defaults {
            namespace.enter()?;
        }
        let mtu = flags.mtu(std::env::args_os().map(|word| word.to_string_lossy().into_owned()));
        let mut machine = Machine::new(StackConfig::default(), mtu, FIRST_FD)?;
        machine.set_qdisc(flags.qdisc.clone().unwrap_or_default());
        machine.cut_super_frames();
        let inner = Inner {
            machine,
            first_mtu: namespace.mtu(),
            is_prepared: false,
            device_qdisc: namespace.qdisc(),
            namespace,
            baseline: flags.prepare(&Proc),
            waiters: BTreeMap::new(),
            next_waiter: 0,
            round: 0,
            ended: Vec::new(),
            acting: Vec::new(),
            flags,
        };
        let driver = thread::current().id();
        Ok(Self { inner: Mutex::new(inner), changed: Condvar::new(), driver })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The host for a step of the script, with the device as a command may have left it.
    fn enter(&self) -> MutexGuard<'_, Inner> {
        let mut inner = self.lock();
        if thread::current().id() == self.driver {
            inner.follow_device();
        }
        inner
    }

    /// Whether neap has this descriptor open.
    pub(crate) fn owns(&self, fd: Fd) -> bool {
        self.lock().machine.posix().owns(fd)
    }

    /// Makes a call, waiting in virtual time as long as it has to.
    ///
    /// # Errors
    /// Those of the call, and [`DEADLOCK`] where the thread that lets time pass waits for what
    /// cannot come.
    pub(crate) fn call<T>(
        &self,
        mut make: impl FnMut(&mut Posix, Instant, &mut Call) -> Result<Outcome<T>, Errno>,
    ) -> Result<T, Errno> {
        let mut inner = self.enter();
        let is_driver = thread::current().id() == self.driver;
        let end = inner.machine.now() + LONGEST_CALL;
        let (mut call, mut id, mut has_waited) = (Call::new(), None, false);
        let mut until = Instant::ZERO;
        let answer = 'call: loop {
            let now = inner.machine.now();
            // As a thread that sleeps, it looks again when it is woken, or its time is over.
            let mut is_awake = now >= until || call.is_met();
            for _ in 0..2 {
                if is_awake {
                    match make(inner.machine.posix(), now, &mut call) {
                        Ok(Outcome::Done(answer)) => break 'call Ok(answer),
                        Err(error) => break 'call Err(error),
                        Ok(Outcome::Wait(end)) => until = end,
                    }
                }
                inner.poll();
                is_awake |= call.is_met();
            }
            has_waited = true;
            if is_driver {
                let next = inner.first_return().min(inner.machine.due()).min(until);
                if next == Instant::FAR_FUTURE || (until > end && next > end) {
                    eprintln!("neap: a call waits for what cannot come");
                    break Err(DEADLOCK);
                }
                inner = self.step(inner, next);
                continue;
            }
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
        if has_waited {
            let ended = (thread::current().id(), inner.machine.now());
            inner.ended.retain(|(thread, _)| *thread != ended.0);
            inner.ended.push(ended);
        }
        if let Some(id) = id {
            inner.waiters.remove(&id);
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
        let mut inner = self.enter();
        let now = inner.machine.now();
        let answer = make(inner.machine.posix(), now);
        inner.poll();
        drop(self.let_waiters_look(inner));
        answer
    }

    /// Reads the sysctls anew, for a socket that is about to be made. Only the thread that made the
    /// host is in the script's namespace.
    pub(crate) fn refresh_settings(&self) {
        if thread::current().id() != self.driver {
            return;
        }
        let mut inner = self.lock();
        // A device with one queue is never refused.
        let _ = inner.prepare();
        inner.refresh_qdisc();
        let config = inner.flags.config(&inner.baseline, &Proc);
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

    /// Lets time pass, and waits for threads that act on the answer of a call.
    ///
    /// packetdrill gives its lock away for a sleep, and those threads need it.
    pub(crate) fn sleep(&self, span: Nanos) {
        let mut inner = self.enter();
        let end = inner.machine.now() + span;
        while inner.machine.now() < end {
            inner = self.step(inner, end);
        }
        let me = thread::current().id();
        let is_told = |inner: &mut Inner| inner.ended.iter().any(|(thread, _)| *thread != me);
        let waited = self.changed.wait_timeout_while(inner, HANDSHAKE, is_told);
        let (mut inner, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let acting = core::mem::take(&mut inner.acting);
        // A thread that acts may look at the clock again.
        drop(inner);
        let begin = time::Instant::now();
        // It sleeps when it waits for its next call.
        while acting.iter().any(|task| !is_asleep(task)) && begin.elapsed() < HANDSHAKE {
            thread::yield_now();
        }
    }

    /// Now, as a program reads its clock. Time passes by looking.
    pub(crate) fn look_at_clock(&self) -> Instant {
        let mut inner = self.lock();
        let me = thread::current().id();
        if let Some(at) = inner.ended.iter().position(|(thread, _)| *thread == me) {
            let (_, at) = inner.ended.swap_remove(at);
            if me != self.driver {
                inner.acting.extend(own_task());
                self.changed.notify_all();
            }
            return at;
        }
        let end = inner.machine.now() + LOOK;
        self.step(inner, end).machine.now()
    }

    /// A packet of the script arrives; false if too many wait.
    pub(crate) fn inject(&self, packet: &[u8]) -> bool {
        let mut inner = self.enter();
        let known = destination(packet).map_or(Ok(()), |address| inner.learn(address));
        let taken = known.is_ok() && inner.machine.inject(Bytes::copy_from_slice(packet));
        inner.poll();
        drop(self.let_waiters_look(inner));
        taken
    }

    /// The next packet that the host sends, and when; `None` if none comes for an hour.
    pub(crate) fn sniff(&self) -> Option<(Instant, Bytes)> {
        let mut inner = self.enter();
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

    /// The value of a sysctl of the stack.
    #[cfg(test)]
    pub(crate) fn sysctl(&self, name: &str) -> Option<String> {
        self.lock().machine.stack().config().get(name)
    }

    /// The qdisc of every interface.
    #[cfg(test)]
    pub(crate) fn qdisc(&self) -> Option<QdiscConfig> {
        self.lock().machine.qdisc().cloned()
    }

    /// Whether a call waits.
    #[cfg(test)]
    pub(crate) fn has_waiters(&self) -> bool {
        !self.lock().waiters.is_empty()
    }
}
