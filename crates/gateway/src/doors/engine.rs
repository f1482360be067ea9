//! The thread of doors.

use super::config::{DoorsConfig, DoorsError};
use super::figures::{Counters, DoorsFigures, DoorsInspector};
use super::handle::{DoorsHandle, Request, Requests};
use neap::Poller;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

/// Doors of a stack, which one thread serves.
pub struct Doors {
    poller: Arc<Poller>,
    config: DoorsConfig,
    counters: Arc<Counters>,
    requests: Requests,
}

impl std::fmt::Debug for Doors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Doors").field("doors", &self.config.doors).finish_non_exhaustive()
    }
}

impl Doors {
    /// Opens the ports of all doors.
    ///
    /// # Errors
    /// The door whose port cannot be had, and why.
    pub fn open(config: DoorsConfig) -> Result<Self, DoorsError> {
        let poller = Arc::new(Poller::new()?);
        let requests = Requests::new(poller.clone());
        Ok(Self { poller, config, counters: Arc::default(), requests })
    }

    /// Where each door listens, in their order; `None` for one that does not.
    pub fn addresses(&self) -> Vec<Option<SocketAddr>> {
        Vec::new()
    }

    /// What other threads use while it [runs](Self::run).
    pub fn handle(&self) -> DoorsHandle {
        self.requests.handle()
    }

    /// What looks at the doors from other threads while they run.
    pub fn inspector(&self) -> DoorsInspector {
        DoorsInspector::new(self.handle(), self.counters.clone())
    }

    /// What happened so far.
    pub fn figures(&self) -> DoorsFigures {
        self.counters.figures()
    }

    /// Serves until it is [stopped](DoorsHandle::stop), and sleeps while nothing happens. With a
    /// [`Door::Stdio`](super::Door::Stdio) it ends with that connection.
    ///
    /// # Errors
    /// The process cannot wait for its descriptors; the connection of standard input and output
    /// could not be opened, or was lost.
    pub fn run(&mut self) -> io::Result<()> {
        let mut events = Vec::new();
        while !self.requests.is_stopped() {
            self.poller.wait(&mut events, None)?;
            while let Some(request) = self.requests.next() {
                match request {
                    Request::Look(answer) => drop(answer.send(Vec::new())),
                    Request::Drain(_) => return Ok(()),
                }
            }
        }
        Ok(())
    }
}
