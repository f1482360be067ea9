//! One host of a world: its stack, its applications, and when it has its turn.

use super::cpu::{Cpu, CpuStats, SwitchCounter};
use super::{Fault, HostId};
use crate::app::App;
use crate::link::Link;
use crate::rng::Rng;
use neap_stack::interface::InterfaceId;
use neap_stack::stack::Stack;
use neap_tcp::counters::Counter;
use neap_tcp::time::{Instant, Nanos};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};

/// Calls of [`Stack::poll`] at one instant after which a host is thought to spin.
const MAX_POLLS: u32 = 20_000;

/// Rounds of applications and stack at one instant after which a host is thought to spin.
const MAX_ROUNDS: u32 = 2_000;

/// Applications that were woken, in that order.
type Woken = Arc<Mutex<Vec<usize>>>;

/// Wakes one application.
struct AppWaker {
    index: usize,
    woken: Woken,
    is_queued: AtomicBool,
}

impl Wake for AppWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_queued.swap(true, Ordering::Relaxed) {
            self.woken.lock().unwrap_or_else(PoisonError::into_inner).push(self.index);
        }
    }
}

/// An application that says itself when it wants a turn.
struct Sleeper {
    app: Box<dyn App>,
    /// Which thread it runs on.
    thread: u64,
    waker: Arc<AppWaker>,
    /// When it wants a turn, and whether it was woken and waits for its turn.
    next: Instant,
    is_due: bool,
}

/// One interface of a host.
pub(super) struct Port {
    pub(super) link: usize,
    pub(super) end: usize,
    pub(super) interface: InterfaceId,
}

/// One host. A turn costs: all that the stack has to do, each application that wants a turn after
/// everything, and those others that were woken or whose time has come, O(log n) each.
pub(super) struct Host {
    pub(super) stack: Stack,
    pub(super) ports: Vec<Port>,
    pub(super) cpu: Cpu,
    restless: Vec<Box<dyn App>>,
    sleepers: Vec<Sleeper>,
    timers: BinaryHeap<Reverse<(Instant, usize)>>,
    woken: Woken,
    turn: Vec<usize>,
    switches: SwitchCounter,
    /// What the last poll answered, and what the applications want.
    due: Instant,
    /// What `wake` was drawn for.
    aim: Instant,
    wake: Instant,
    busy_until: Instant,
}

impl Host {
    pub(super) fn new(stack: Stack, cpu: Cpu) -> Self {
        Self {
            stack,
            ports: Vec::new(),
            cpu,
            restless: Vec::new(),
            sleepers: Vec::new(),
            timers: BinaryHeap::new(),
            woken: Woken::default(),
            turn: Vec::new(),
            switches: SwitchCounter::default(),
            due: Instant::FAR_FUTURE,
            aim: Instant::FAR_FUTURE,
            wake: Instant::FAR_FUTURE,
            busy_until: Instant::ZERO,
        }
    }

    pub(super) fn add_app(&mut self, now: Instant, thread: Option<u64>, mut app: Box<dyn App>) {
        let (index, woken) = (self.sleepers.len(), self.woken.clone());
        let waker = Arc::new(AppWaker { index, woken, is_queued: AtomicBool::new(false) });
        self.due = now;
        if !app.sleeps(&Waker::from(waker.clone())) {
            self.restless.push(app);
            return;
        }
        waker.wake_by_ref();
        let thread = thread.unwrap_or(u64::MAX - index as u64);
        let next = Instant::FAR_FUTURE;
        self.sleepers.push(Sleeper { app, thread, waker, next, is_due: false });
    }

    pub(super) fn call(&mut self, now: Instant) {
        self.due = self.due.min(now);
    }

    /// The earliest event of this host.
    pub(super) fn next_event(&self, links: &[Link]) -> Instant {
        let interrupts = self.ports.iter().map(|port| links[port.link].next_interrupt(port.end));
        interrupts.fold(self.due, Instant::min)
    }

    /// Draws when this host notices its next event, if that has become earlier. When it has its
    /// turn.
    pub(super) fn plan(&mut self, now: Instant, links: &[Link], rng: &mut Rng) -> Instant {
        let event = self.next_event(links).max(now);
        if event < self.aim {
            self.aim = event;
            let notices = event + self.cpu.lateness.draw(rng);
            self.wake = self.wake.min(notices).max(self.busy_until);
        }
        self.wake
    }

    /// Does all that is due.
    pub(super) fn run(&mut self, id: HostId, now: Instant) -> Result<(), Fault> {
        (self.aim, self.wake) = (Instant::FAR_FUTURE, Instant::FAR_FUTURE);
        self.switches.stats.turns += 1;
        self.busy_until = now + self.cpu.per_wakeup + self.cpu.per_poll;
        for _ in 0..MAX_ROUNDS {
            let stack_due = self.poll(id, now)?;
            let (mut did, mut due) = (false, Instant::FAR_FUTURE);
            for app in &mut self.restless {
                let step = app.step(&self.stack, now);
                did |= step.did;
                due = due.min(step.next);
            }
            did |= self.run_sleepers(now);
            let is_one_poll = self.cpu.per_poll > Nanos::ZERO;
            if !did || is_one_poll {
                let timer = self.timers.peek().map_or(Instant::FAR_FUTURE, |first| first.0.0);
                self.due = due.min(stack_due).min(timer);
                self.switches.idle();
                return Ok(());
            }
        }
        Err(Fault::Spinning(id))
    }

    fn poll(&mut self, id: HostId, now: Instant) -> Result<Instant, Fault> {
        for _ in 0..MAX_POLLS {
            let (due, _) = self.stack.poll(0, now);
            if due > now || self.cpu.per_poll > Nanos::ZERO {
                return Ok(due);
            }
        }
        Err(Fault::Spinning(id))
    }

    /// Whether any of them did something.
    fn run_sleepers(&mut self, now: Instant) -> bool {
        self.collect(now);
        let mut did = false;
        let mut turn = core::mem::take(&mut self.turn);
        for index in turn.drain(..) {
            let sleeper = &mut self.sleepers[index];
            sleeper.is_due = false;
            sleeper.next = Instant::FAR_FUTURE;
            // What wakes it from here on is seen by its turn or after it.
            sleeper.waker.is_queued.store(false, Ordering::Relaxed);
            self.switches.wake(sleeper.thread);
            let step = sleeper.app.step(&self.stack, now);
            did |= step.did;
            if step.next < Instant::FAR_FUTURE {
                sleeper.next = step.next;
                self.timers.push(Reverse((step.next, index)));
            }
        }
        self.turn = turn;
        did
    }

    /// Finds the applications that have their turn now: their time has come, or they were woken and
    /// a switch costs no time.
    fn collect(&mut self, now: Instant) {
        let mut woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
        for index in woken.drain(..) {
            let sleeper = &mut self.sleepers[index];
            let at = now + self.cpu.per_switch;
            if sleeper.is_due {
                continue;
            }
            if at == now {
                sleeper.is_due = true;
                self.turn.push(index);
            } else if at < sleeper.next {
                sleeper.next = at;
                self.timers.push(Reverse((at, index)));
            }
        }
        drop(woken);
        while let Some(&Reverse((at, index))) = self.timers.peek().filter(|first| first.0.0 <= now)
        {
            self.timers.pop();
            let sleeper = &mut self.sleepers[index];
            if sleeper.next == at && !sleeper.is_due {
                sleeper.is_due = true;
                self.turn.push(index);
            }
        }
    }

    /// Costs O(n) of the interfaces.
    pub(super) fn cpu_stats(&self, now: Instant) -> CpuStats {
        let interfaces = self.stack.interfaces(now);
        let ports = interfaces.iter().flat_map(|interface| &interface.ports);
        let of_qdiscs: u64 = ports.map(|port| port.qdisc_timers).sum();
        let of_connections = self.stack.tcp_counter(Counter::PacingTimers);
        let of_wheel = self.stack.tcp_counter(Counter::WheelTimers);
        let own = if self.cpu.timer_per_flow { of_connections } else { of_wheel };
        CpuStats {
            timer_interrupts: own + of_qdiscs,
            departures_timed: of_connections,
            ..self.switches.stats
        }
    }
}
