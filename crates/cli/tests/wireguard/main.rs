//! `neap wireguard` with WireGuard of others as its far side, and programs as its clients.

mod by_name;
#[path = "../common/capture.rs"]
mod capture;
mod changes;
#[allow(dead_code, reason = "shared with tests of other faces")]
#[path = "../common/confined.rs"]
mod confined;
mod containers;
#[path = "../common/folder.rs"]
mod folder;
#[path = "../common/host.rs"]
mod host;
mod hostile;
#[path = "../common/namespace.rs"]
mod namespace;
mod near;
#[path = "../clients/next_debian.rs"]
mod next_debian;
mod peers;
mod programs;
mod queue;
mod refused;
mod rest;
mod running;
mod sandbox;
#[path = "../clients/scripts.rs"]
mod scripts;
#[path = "../common/udp_counter.rs"]
mod udp_counter;
mod world;

use std::thread;
use std::time::{Duration, Instant};

/// The longest that something may take: far above what it takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for something that nobody tells of.
fn eventually<T>(what: &str, ask: impl Fn() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = ask() {
            return found;
        }
        assert!(begin.elapsed() < PATIENCE, "{what} never comes");
        thread::sleep(Duration::from_millis(5));
    }
}
