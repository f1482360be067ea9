//! Thousands of small random worlds of two hosts at one link: whatever link and applications do,
//! every byte arrives once and in order, every credit returns, no flow is silent while it may send,
//! and nothing waits above an idle wire.
//!
//! `NEAP_SEED=n` runs only the world of that seed; `NEAP_WORLDS=n` so many worlds, `NEAP_FROM=n`
//! from that seed on (nightly, from a seed of the day).

use neap_lab::scenario::Outcome;
use neap_lab::swarm::{self, Broken};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

const WORLDS: u64 = 4000;
/// Failures after which the rest is not worth the time.
const ENOUGH: usize = 10;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

fn run(seed: u64) -> Result<Outcome, Broken> {
    swarm::run(&swarm::draw_pair(seed), 20_000_000)
}

#[test]
fn random_worlds_deliver_everything() {
    if let Some(seed) = number("NEAP_SEED") {
        println!("{}", swarm::draw_pair(seed));
        let result = run(seed);
        println!("{result:#?}");
        assert!(result.is_ok(), "seed {seed}");
        return;
    }
    let first = number("NEAP_FROM").unwrap_or(0);
    let last = first + number("NEAP_WORLDS").unwrap_or(WORLDS);
    let (next, failures) = (AtomicU64::new(first), Mutex::new(Vec::new()));
    let events: Mutex<BTreeMap<&str, u64>> = Mutex::default();
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= last || failures.lock().expect("no panic").len() >= ENOUGH {
                        return;
                    }
                    match run(seed) {
                        Ok(outcome) => {
                            let mut events = events.lock().expect("no panic");
                            for (name, count) in outcome.events.named() {
                                *events.entry(name).or_default() += count;
                            }
                        }
                        Err(broken) => failures.lock().expect("no panic").push((seed, broken)),
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect("no panic");
    for (seed, broken) in &failures {
        println!("seed {seed}: {}", broken.fault);
        println!("    NEAP_SEED={seed} cargo test -p neap-lab --test worlds -- --nocapture");
    }
    assert!(failures.is_empty(), "{} worlds failed", failures.len());
    for (name, count) in events.into_inner().expect("no panic") {
        println!("{count:>12} {name}");
        assert!(count > 0 || last - first < WORLDS, "nothing {name} in any world");
    }
}

#[test]
fn a_world_runs_the_same_every_time() {
    assert_eq!(run(17).expect("a sound world"), run(17).expect("a sound world"));
}
