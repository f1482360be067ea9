//! Applications on the hosts of a world.
//!
//! An application of connections is a `client` or a `server`. Both drive `stream`s, and what they
//! do with a stream is a `task`. There are two kinds of tasks: the traffic of a [`group`] of equal
//! connections, and one end of a [`session`], a single connection with a plan of its own.

mod client;
pub mod group;
pub(crate) mod page;
mod server;
pub mod session;
mod stream;
mod task;

use neap_stack::stack::Stack;
use neap_tcp::time::Instant;
use std::task::Waker;

/// Result of one turn of an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Time at which the application wants a turn even if nothing happens on its host.
    pub next: Instant,
    /// Whether the application changed something, so that the host may have more to do.
    pub did: bool,
}

impl Step {
    /// Result of a turn in which the application did nothing, and waits for something to happen.
    pub const IDLE: Self = Self { next: Instant::FAR_FUTURE, did: false };
}

/// Application on a host of a world.
///
/// It gets a turn after everything that happens on its host, unless it [sleeps](Self::sleeps), and
/// must do all it can.
pub trait App {
    /// Gives the application one turn.
    fn step(&mut self, stack: &Stack, now: Instant) -> Step;

    /// Returns whether the application promises to call `waker` when it has something to do, or to
    /// say when in [`Step::next`].
    ///
    /// It then gets a turn only at the start and at these times. It is asked once.
    fn sleeps(&mut self, waker: &Waker) -> bool {
        let _ = waker;
        false
    }
}
