//! Swarm: random worlds with every oracle on.
//!
//! A seed gives a scenario file, and the file gives a world. If a rule is broken, the file is made
//! smaller until nothing can be left out.

mod attack_memory;
mod draw;
mod shrink;

pub use attack_memory::AttackMemory;
pub use draw::{draw, draw_pair};
pub use shrink::shrink;

use crate::rng::Rng;
use crate::scenario::{Experiment, Outcome};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Turns of hosts after which a world is thought never to end.
const LONGEST: u64 = 20_000_000;

/// World in which a rule was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Description of the broken rule. Its first word names the oracle.
    pub fault: String,
}

impl Broken {
    /// Returns the name of the oracle.
    pub fn oracle(&self) -> &str {
        self.fault.split(':').next().unwrap_or_default()
    }
}

/// Runs a scenario under all oracles, for at most `most` turns of hosts. A panic is a fault like
/// any other.
///
/// # Errors
/// [`Broken`]. A text that is not a scenario is a fault of the oracle `file`.
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

/// Returns whether the world of this seed is run twice, to check that both runs are the same.
pub fn is_repeated(seed: u64) -> bool {
    Rng::new(seed).fork(9).below(16) == 0
}

/// Draws and runs the world of a seed. One world in sixteen runs twice.
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
