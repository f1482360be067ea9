//! The swarm: random worlds with every oracle on. A seed gives a scenario file, a scenario file
//! gives a world; where something does not hold the file is made smaller until nothing can be left
//! out.

mod draw;
pub mod hostile;
mod rfc;
mod shrink;
mod siege;
mod watch;

pub use draw::draw;
pub use hostile::Attack;
pub use shrink::shrink;
pub use siege::Siege;
pub(crate) use watch::Watched;

use crate::rng::Rng;
use crate::scenario::Experiment;
use crate::world::{HostId, World};
use neap_tcp::time::Nanos;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Turns of hosts after which a world is thought never to end.
const LONGEST: u64 = 20_000_000;

/// Most memory and sockets of a host at any time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peaks {
    /// Bytes of what was received and not read, of all sockets (`skmem r`).
    pub received: u64,
    /// Of one socket.
    pub received_by_one: u64,
    /// Bytes of what is to be sent, of all sockets (`skmem w`).
    pub sending: u64,
    /// Of one socket.
    pub sending_by_one: u64,
    /// Connections with state of their own.
    pub connections: u64,
    /// Half-open connections and those that wait to be accepted, of all listeners.
    pub half_open: u64,
    /// In TIME_WAIT.
    pub time_wait: u64,
}

impl Peaks {
    fn look(&mut self, world: &World, host: HostId) {
        let stack = world.stack(host);
        let (mut received, mut sending) = (0, 0);
        for flow in stack.flows(world.now()) {
            let (r, w) = (u64::from(flow.info.rmem_alloc), u64::from(flow.info.wmem_queued));
            self.received_by_one = self.received_by_one.max(r);
            self.sending_by_one = self.sending_by_one.max(w);
            received += r;
            sending += w;
        }
        let tcp = stack.usage().tcp;
        self.received = self.received.max(received);
        self.sending = self.sending.max(sending);
        self.connections = self.connections.max(tcp.connections as u64);
        self.half_open = self.half_open.max((tcp.requests + tcp.waiting) as u64);
        self.time_wait = self.time_wait.max(tcp.time_wait as u64);
    }
}

/// What a sound world came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// How long it was, until nothing was left to happen.
    pub simulated: Nanos,
    /// Turns of hosts.
    pub steps: u64,
    /// Segments that were judged.
    pub segments: u64,
    /// Of when each frame left and how long it was.
    pub hash: u64,
    /// By host.
    pub peaks: Vec<(String, Peaks)>,
}

/// A world that is not sound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// What does not hold; its first word names the oracle.
    pub fault: String,
}

impl Broken {
    /// Which oracle says so.
    pub fn oracle(&self) -> &str {
        self.fault.split(':').next().unwrap_or_default()
    }
}

/// Runs a scenario under all oracles, no longer than `most` turns of hosts; a panic is a fault like
/// any other.
///
/// # Errors
/// [`Broken`]; a text that is no scenario is a fault of the oracle `file`.
pub fn run(text: &str, most: u64) -> Result<Outcome, Broken> {
    let result = catch_unwind(AssertUnwindSafe(|| {
        let files = |_: &str| Err("a world of the swarm names no files".to_owned());
        let experiment = Experiment::parse("swarm.toml", text, &files)
            .map_err(|error| format!("file: {error}"))?;
        experiment.check(&Vec::new(), most)
    }));
    let result = result.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("panic: {}", text.unwrap_or("without a message")))
    });
    result.map_err(|fault| Broken { fault })
}

/// Whether the world of this seed is run twice, to see that it is the same.
pub fn is_repeated(seed: u64) -> bool {
    Rng::new(seed).fork(9).below(16) == 0
}

/// Draws and runs the world of a seed; one in sixteen runs twice.
///
/// # Errors
/// [`Broken`].
pub fn run_seed(seed: u64) -> Result<Outcome, Broken> {
    let text = draw(seed);
    let outcome = run(&text, LONGEST)?;
    if is_repeated(seed) {
        let again = run(&text, LONGEST)?;
        if again != outcome {
            let fault = format!("repeat: {outcome:?}, then {again:?}");
            return Err(Broken { fault });
        }
    }
    Ok(outcome)
}
