//! A running stack with its worker threads.

use crate::clock;
use crate::engine::Engine;
use crate::host::Host;
use neap_posix::{Fd, Process};
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

/// A host with its workers. Dropping it resets all connections, ends the threads and closes the
/// device; sockets that are still held then fail with `ConnectionAborted`.
#[derive(Debug)]
pub struct Stack {
    engine: Arc<Engine>,
    workers: Vec<JoinHandle<()>>,
}

impl Stack {
    pub(crate) fn start(engine: Engine) -> io::Result<Self> {
        let mut stack = Self { engine: Arc::new(engine), workers: Vec::new() };
        for shard in 0..stack.engine.drivers().len() {
            let engine = stack.engine.clone();
            let worker = std::thread::Builder::new()
                .name(format!("neap-{shard}"))
                .spawn(move || engine.work(shard))?;
            stack.workers.push(worker);
        }
        Ok(stack)
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// The figures of the host: flows, interfaces, routes, counters, drops. They can only be read.
    pub fn host(&self) -> Host<'_> {
        Host::new(&self.engine)
    }

    /// The socket interface of a C library over this stack: descriptors from `first_fd` on, and
    /// calls that wait as those of Linux do. Each call of this makes a process of its own, with its
    /// own table of descriptors; the ports are those of the one host. Processes may outlive the
    /// stack, as sockets may.
    pub fn posix(&self, first_fd: Fd) -> Process {
        Process::new(self.engine.stack.clone(), self.engine.clone(), first_fd)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        let Self { engine, workers } = self;
        engine.stack.shut_down(clock::now());
        engine.end();
        for (driver, worker) in engine.drivers().iter().zip(workers.drain(..)) {
            driver.kick();
            worker.thread().unpark();
            // A worker that panicked has nothing left to say.
            let _ = worker.join();
        }
        // Resets that the workers did not get to send.
        for shard in 0..engine.drivers().len() {
            engine.stack.poll(shard, clock::now());
        }
        // Sockets that are still held keep the host, and may not keep the device.
        engine.stack.remove_interfaces(clock::now());
        engine.detach_gone();
    }
}
