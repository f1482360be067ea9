//! A running stack: the host, who drives it, and its worker threads.

use crate::builder::Builder;
use crate::clock;
use crate::driver::Driver;
use neap_stack::interface::InterfaceId;
use neap_stack::qdisc::config::{QdiscConfig, QdiscError};
use neap_stack::qdisc::report::Report;
use neap_stack::stack;
use neap_tcp::time::Instant;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// A host with its workers. Dropping it resets all connections, ends the threads and closes the
/// device; sockets that are still held then fail with `ConnectionAborted`.
#[derive(Debug)]
pub struct Stack {
    running: Arc<Running>,
    workers: Vec<JoinHandle<()>>,
}

/// What the stack, its workers and its sockets share.
#[derive(Debug)]
pub struct Running {
    pub(crate) stack: stack::Stack,
    drivers: Vec<Driver>,
    interface: InterfaceId,
    is_over: AtomicBool,
}

impl Running {
    pub(crate) fn new(stack: stack::Stack, drivers: Vec<Driver>, interface: InterfaceId) -> Self {
        Self { stack, drivers, interface, is_over: AtomicBool::new(false) }
    }

    /// The driver of a shard.
    pub(crate) fn driver(&self, shard: usize) -> &Driver {
        &self.drivers[shard % self.drivers.len()]
    }

    /// The stack was dropped.
    #[cfg(feature = "tokio")]
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// Polls a shard once if nobody else does.
    pub(crate) fn look_in(&self, shard: usize) {
        self.driver(shard).look_in(&self.stack);
    }
}

impl Stack {
    /// Begins to describe a stack.
    pub fn builder() -> Builder {
        Builder::new()
    }

    pub(crate) fn start(running: Arc<Running>) -> io::Result<Self> {
        let mut stack = Self { running, workers: Vec::new() };
        for shard in 0..stack.running.drivers.len() {
            let running = stack.running.clone();
            let worker = std::thread::Builder::new()
                .name(format!("neap-{shard}"))
                .spawn(move || running.driver(shard).work(&running.stack, &running.is_over))?;
            stack.workers.push(worker);
        }
        Ok(stack)
    }

    pub(crate) fn running(&self) -> &Arc<Running> {
        &self.running
    }

    /// The host, for figures: counters, flows, interfaces, qdiscs.
    pub fn host(&self) -> &stack::Stack {
        &self.running.stack
    }

    /// Replaces the queueing discipline of the device, in the words of `tc`. What waits moves into
    /// the new one, or leaves at its time where that would not hold it; no socket's account
    /// changes.
    ///
    /// # Errors
    /// [`QdiscError`], and nothing is replaced.
    pub fn set_qdisc(&self, qdisc: &str) -> Result<(), QdiscError> {
        let config: QdiscConfig = qdisc.parse()?;
        let Running { stack, interface, .. } = &*self.running;
        let is_there = stack.set_qdisc(clock::now(), *interface, &config);
        debug_assert!(is_there, "the device's interface stays as long as the stack");
        Ok(())
    }

    /// The queueing discipline with its figures, one for each queue of the device; each prints as
    /// `tc -s qdisc` does.
    pub fn qdiscs(&self) -> Vec<Report> {
        self.running.stack.qdiscs(clock::now(), self.running.interface)
    }

    /// The clock of this stack now, for calls of [`host`](Self::host) that take a time.
    pub fn now(&self) -> Instant {
        clock::now()
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        self.running.stack.shut_down(clock::now());
        self.running.is_over.store(true, Ordering::SeqCst);
        for (driver, worker) in self.running.drivers.iter().zip(self.workers.drain(..)) {
            driver.kick();
            worker.thread().unpark();
            // A worker that panicked has nothing left to say.
            let _ = worker.join();
        }
        // Resets that the workers did not get to send.
        for shard in 0..self.running.drivers.len() {
            self.running.stack.poll(shard, clock::now());
        }
        // Sockets that are still held keep the host, and may not keep the device.
        self.running.stack.remove_interfaces();
    }
}
