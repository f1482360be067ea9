//! Virtual time: hosts, links and applications, and whose turn it is.

use crate::app::App;
use crate::link::{ENDS, Link, LinkConfig};
use crate::rng::Rng;
use neap_stack::interface::Address;
use neap_stack::stack::{Stack, StackConfig, StackError};
use neap_tcp::time::{Instant, Nanos};

/// Calls of [`Stack::poll`] at one instant after which a host is thought to spin.
const MAX_POLLS: u32 = 20_000;

/// Rounds of applications and host at one instant, likewise.
const MAX_ROUNDS: u32 = 2_000;

/// How a world runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorldConfig {
    /// All randomness comes from here.
    pub seed: u64,
    /// A host notices an event up to so much late, as a real one does (timer slack, scheduling).
    pub wake_jitter: Nanos,
    /// When the world begins.
    pub start: Instant,
}

impl Default for WorldConfig {
    fn default() -> Self {
        let (wake_jitter, start) = (Nanos::from_micros(50), Instant::from_nanos(1_000_000_000));
        Self { seed: 0, wake_jitter, start }
    }
}

/// Names a host of one world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostId(pub usize);

/// A world that cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A host always has more to do, and time does not pass.
    Spinning(HostId),
}

impl core::fmt::Display for Fault {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self::Spinning(HostId(host)) = self;
        write!(f, "host {host} has work for ever at one instant")
    }
}

impl core::error::Error for Fault {}

struct Host {
    stack: Stack,
    links: Vec<(Link, usize)>,
    apps: Vec<Box<dyn App>>,
    /// What the last poll answered, and what the applications want.
    due: Instant,
    /// What `wake` was drawn for.
    aim: Instant,
    wake: Instant,
}

impl Host {
    /// The earliest event of this host.
    fn next_event(&self) -> Instant {
        let interrupts = self.links.iter().map(|(link, end)| link.next_interrupt(*end));
        interrupts.fold(self.due, Instant::min)
    }

    /// Draws when this host notices its next event, if that has become earlier.
    fn plan(&mut self, now: Instant, jitter: Nanos, rng: &mut Rng) {
        let event = self.next_event().max(now);
        if event < self.aim {
            self.aim = event;
            self.wake = self.wake.min(event + rng.time(jitter));
        }
    }

    /// Does all that is due.
    fn run(&mut self, id: HostId, now: Instant) -> Result<(), Fault> {
        for _ in 0..MAX_ROUNDS {
            let stack_due = self.poll(id, now)?;
            let (mut did, mut due) = (false, Instant::FAR_FUTURE);
            for app in &mut self.apps {
                let step = app.step(&self.stack, now);
                did |= step.did;
                due = due.min(step.next);
            }
            if !did {
                self.due = due.min(stack_due);
                return Ok(());
            }
        }
        Err(Fault::Spinning(id))
    }

    fn poll(&self, id: HostId, now: Instant) -> Result<Instant, Fault> {
        for _ in 0..MAX_POLLS {
            let (due, _) = self.stack.poll(0, now);
            if due > now {
                return Ok(due);
            }
        }
        Err(Fault::Spinning(id))
    }
}

/// Hosts in virtual time. Equal configurations run equally, to the byte.
pub struct World {
    config: WorldConfig,
    now: Instant,
    hosts: Vec<Host>,
    links: u64,
    jitter: Rng,
}

impl World {
    /// An empty world.
    pub fn new(config: WorldConfig) -> Self {
        let jitter = Rng::new(config.seed).fork(1);
        Self { now: config.start, hosts: Vec::new(), links: 0, jitter, config }
    }

    /// Adds a host; its seed is derived from the world's.
    ///
    /// # Errors
    /// As [`Stack::new`].
    pub fn add_host(&mut self, mut config: StackConfig) -> Result<HostId, StackError> {
        let id = HostId(self.hosts.len());
        config.seed = Rng::new(self.config.seed).fork(2).fork(id.0 as u64).next_u64();
        self.hosts.push(Host {
            stack: Stack::new(config)?,
            links: Vec::new(),
            apps: Vec::new(),
            due: Instant::FAR_FUTURE,
            aim: Instant::FAR_FUTURE,
            wake: Instant::FAR_FUTURE,
        });
        Ok(id)
    }

    /// Connects two hosts; each gets an interface with its addresses.
    ///
    /// # Errors
    /// As [`Stack::add_interface`].
    pub fn add_link(
        &mut self,
        config: &LinkConfig,
        ends: [(HostId, &[Address]); ENDS],
    ) -> Result<Link, StackError> {
        self.links += 1;
        let rng = Rng::new(self.config.seed).fork(3).fork(self.links);
        let (link, devices) = Link::new(config, &rng);
        for (end, (device, (HostId(host), addresses))) in devices.into_iter().zip(ends).enumerate()
        {
            let host = &mut self.hosts[host];
            host.stack.add_interface(self.now, device, addresses)?;
            host.links.push((link.clone(), end));
            host.due = self.now;
        }
        Ok(link)
    }

    /// Starts an application on a host.
    pub fn add_app(&mut self, HostId(host): HostId, app: impl App + 'static) {
        self.hosts[host].apps.push(Box::new(app));
        self.hosts[host].due = self.now;
    }

    /// Now.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// A host's stack.
    pub fn stack(&self, HostId(host): HostId) -> &Stack {
        &self.hosts[host].stack
    }

    /// Lets the host whose turn it is do what is due. `None`, with the time at `until`, when nothing
    /// happens before.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn step(&mut self, until: Instant) -> Result<Option<HostId>, Fault> {
        for host in &mut self.hosts {
            host.plan(self.now, self.config.wake_jitter, &mut self.jitter);
        }
        let next = self.hosts.iter().enumerate().min_by_key(|(_, host)| host.wake);
        let Some((index, wake)) = next.map(|(index, host)| (index, host.wake)) else {
            return Ok(None);
        };
        if wake > until {
            self.now = self.now.max(until);
            return Ok(None);
        }
        self.now = self.now.max(wake);
        let host = &mut self.hosts[index];
        (host.aim, host.wake) = (Instant::FAR_FUTURE, Instant::FAR_FUTURE);
        host.run(HostId(index), self.now)?;
        Ok(Some(HostId(index)))
    }

    /// Runs until `until`.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn run_until(&mut self, until: Instant) -> Result<(), Fault> {
        while self.step(until)?.is_some() {}
        Ok(())
    }

    /// Whether nothing will ever happen again: no timer, nothing on any link.
    pub fn is_over(&self) -> bool {
        self.hosts.iter().all(|host| host.next_event() == Instant::FAR_FUTURE)
    }
}
