//! Thousands of small random worlds: whatever links and applications do, every byte arrives once
//! and in order, every credit returns, and no flow is silent while it may send.
//!
//! `NEAP_SEED=n` runs only the world of that seed; `NEAP_WORLDS=n` so many worlds, `NEAP_FROM=n`
//! from that seed on (nightly, from a seed of the day).

mod world_of;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use world_of::Events;

const WORLDS: u64 = 4000;
/// Failures after which the rest is not worth the time.
const ENOUGH: usize = 10;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn random_worlds_deliver_everything() {
    if let Some(seed) = number("NEAP_SEED") {
        let result = world_of::run(seed);
        println!("{result:#?}");
        assert!(result.is_ok(), "seed {seed}");
        return;
    }
    let first = number("NEAP_FROM").unwrap_or(0);
    let last = first + number("NEAP_WORLDS").unwrap_or(WORLDS);
    let (next, failures) = (AtomicU64::new(first), Mutex::new(Vec::new()));
    let events = Mutex::new(Events::default());
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= last || failures.lock().expect("no panic").len() >= ENOUGH {
                        return;
                    }
                    let result = std::panic::catch_unwind(|| world_of::run(seed));
                    let fault = match result {
                        Ok(Ok(outcome)) => {
                            *events.lock().expect("no panic") += outcome.events;
                            continue;
                        }
                        Ok(Err(fault)) => fault,
                        Err(_) => "panicked".to_owned(),
                    };
                    failures.lock().expect("no panic").push((seed, fault));
                }
            });
        }
    });
    let failures = failures.into_inner().expect("no panic");
    for (seed, fault) in &failures {
        println!("seed {seed}: {fault}");
        println!("    NEAP_SEED={seed} cargo test -p neap-lab --test worlds -- --nocapture");
    }
    assert!(failures.is_empty(), "{} worlds failed", failures.len());
    for (name, count) in events.into_inner().expect("no panic").named() {
        println!("{count:>12} {name}");
        assert!(count > 0 || last - first < WORLDS, "nothing {name} in any world");
    }
}

#[test]
fn a_world_runs_the_same_every_time() {
    let run = || world_of::run(17).expect("a sound world");
    assert_eq!(run(), run());
}
