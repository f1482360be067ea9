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

/// The oracle of worlds that run twice.
const REPEAT: &str = "repeat";

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
    caught(|| {
        let files = |_: &str| Err("a world of the swarm names no files".to_owned());
        let experiment = Experiment::parse("swarm.toml", text, &files)
            .map_err(|error| format!("file: {error}"))?;
        experiment.check(&Vec::new(), most)
    })
}

/// What `work` returns; a panic is a fault.
fn caught<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, Broken> {
    let result = catch_unwind(AssertUnwindSafe(work));
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
    run_drawn(seed, draw)
}

fn run_drawn(seed: u64, draw: impl FnOnce(u64) -> String) -> Result<Outcome, Broken> {
    let text = caught(|| Ok(draw(seed)))?;
    if is_repeated(seed) { run_twice(&run, &text, LONGEST) } else { run(&text, LONGEST) }
}

/// What runs a scenario for at most so many turns of hosts.
type RunText<'a> = dyn Fn(&str, u64) -> Result<Outcome, Broken> + 'a;

/// Runs a scenario twice. That the second run is not as the first one is a fault of the oracle
/// [`REPEAT`].
fn run_twice(run: &RunText<'_>, text: &str, most: u64) -> Result<Outcome, Broken> {
    let outcome = run(text, most)?;
    match run(text, most) {
        Ok(again) if again == outcome => Ok(outcome),
        again => Err(Broken { fault: format!("{REPEAT}: {outcome:?}, then {again:?}") }),
    }
}

/// Returns a smaller scenario in which the fault of the world of this seed is found, or `None` if
/// the fault is that there is no scenario.
pub fn shrink_seed(seed: u64, broken: &Broken) -> Option<(String, Broken)> {
    let text = caught(|| Ok(draw(seed))).ok()?;
    Some(shrink(&text, broken, &|_| {}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_drawn_means_something() {
        let files = |_: &str| Err("no files".to_owned());
        for seed in 0..300 {
            for text in [draw(seed), draw_pair(seed)] {
                let parsed = Experiment::parse("swarm.toml", &text, &files).map(|_| ());
                assert!(parsed.is_ok(), "seed {seed}: {parsed:?}");
            }
        }
    }

    #[test]
    fn a_world_that_cannot_be_drawn_is_broken() {
        let broken = run_drawn(7, |seed| panic!("no world of seed {seed}"));
        assert_eq!(broken.expect_err("a fault").fault, "panic: no world of seed 7");
    }
}
