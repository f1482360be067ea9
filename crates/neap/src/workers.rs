//! A running stack with its worker threads.

use crate::clock;
use crate::condition::Drained;
use crate::engine::Engine;
use crate::error::BuildError;
use crate::host::Host;
use crate::scheduling::Scheduling;
use neap_posix::{Fd, Process};
use neap_stack::wait::Drive;
use std::fmt;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

/// A running stack: one host with its devices and worker threads.
///
/// [`Stack::builder`] makes one, and sockets are made on it: [`TcpStream`](crate::TcpStream),
/// [`TcpListener`](crate::TcpListener), [`UdpSocket`](crate::UdpSocket).
///
/// Dropping it resets all connections, ends the threads and closes the devices; sockets that are
/// still held then fail with `ConnectionAborted`. [`close`](Self::close) lets connections end
/// first.
pub struct Stack {
    engine: Arc<Engine>,
    workers: Vec<JoinHandle<()>>,
}

/// Shows the interfaces with their addresses. [`Stack::host`] has the figures.
impl fmt::Debug for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.host().show("Stack", f)
    }
}

impl Stack {
    /// Starts a worker for each shard, and has the kernel schedule it as asked.
    ///
    /// # Errors
    /// The system refuses a thread or its scheduling. No worker is left then.
    pub(crate) fn start(engine: Engine, scheduling: &[Scheduling]) -> Result<Self, BuildError> {
        let mut stack = Self { engine: Arc::new(engine), workers: Vec::new() };
        for shard in 0..stack.engine.drivers().len() {
            let (engine, asked) = (stack.engine.clone(), scheduling.to_vec());
            let (tell, told) = mpsc::sync_channel(1);
            let worker =
                std::thread::Builder::new().name(format!("neap-{shard}")).spawn(move || {
                    let done = asked.into_iter().try_for_each(Scheduling::apply);
                    let is_as_asked = done.is_ok();
                    // The builder waits for it.
                    let _ = tell.send(done);
                    if is_as_asked {
                        engine.work(shard);
                    }
                })?;
            stack.workers.push(worker);
            // A worker always tells before it does anything else.
            told.recv().unwrap_or(Ok(()))?;
        }
        Ok(stack)
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Returns the figures of the host: flows, interfaces, routes, counters, drops. They can only
    /// be read.
    pub fn host(&self) -> Host<'_> {
        Host::new(&self.engine)
    }

    /// Returns the socket calls of a C library over this stack, which wait as those of Linux do.
    ///
    /// Use it to run code that is written for descriptors and `errno`. Each call makes a
    /// [`Process`](crate::posix::Process) with its own table of descriptors, numbered from
    /// `first_fd` on; all processes share the ports of the host. A process may outlive the stack,
    /// as a socket may.
    pub fn posix(&self, first_fd: Fd) -> Process {
        Process::new(self.engine.stack.clone(), self.engine.clone(), first_fd)
    }
}

impl Stack {
    /// Closes the stack in an orderly way, and waits for the end up to `deadline`. Returns how many
    /// connections were reset: those that were not over by then, and those that nobody had
    /// accepted.
    ///
    /// New connections are refused from the start. Every connection sends what was written to it
    /// and then a FIN; it is over when the peer has acknowledged all of it and has closed too. What
    /// arrives meanwhile can still be read, by other threads that hold the socket. A drop waits for
    /// nothing: it resets all connections at once, and what the peers have not acknowledged is
    /// lost.
    ///
    /// The call blocks and drives the stack. A task of tokio makes it by `spawn_blocking`.
    ///
    /// ```no_run
    /// # let stack = neap::Stack::builder().build()?;
    /// let reset = stack.close(std::time::Duration::from_secs(5));
    /// if reset > 0 {
    ///     eprintln!("{reset} connections did not end in time");
    /// }
    /// # Ok::<(), neap::BuildError>(())
    /// ```
    pub fn close(self, deadline: Duration) -> usize {
        let engine = &self.engine;
        let until = clock::now() + deadline.into();
        let not_accepted = engine.stack.begin_close(clock::now());
        engine.wait(0, until, &mut Drained(&engine.stack));
        // What is left is reset as `self` is dropped.
        not_accepted + engine.stack.open_connections()
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        let Self { engine, workers } = self;
        engine.stack.shut_down(clock::now());
        engine.end();
        for worker in workers.drain(..) {
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
