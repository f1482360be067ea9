//! The task that drives a shard.

use crate::clock;
use crate::driver::{Driver, Follower};
use crate::engine::Engine;
use crate::sleeper::Sleeper;
use ::tokio::io::Interest;
use ::tokio::io::unix::AsyncFd;
use ::tokio::runtime::Handle;
use neap_stack::driving::roles::TaskId;
use neap_stack::stack::Why;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Makes sure that a task drives the shard: that of another runtime if it comes when something
/// happens, and one of this runtime otherwise. The worker drives when the runtime ends.
///
/// A task of this runtime that is absent stays: another one would not be run sooner. So does a task
/// of another runtime if the process has no descriptors left for one of this, or this runtime has
/// no I/O: the worker drives meanwhile.
///
/// # Errors
/// There is no runtime here. The shard has no task, and the process has no descriptors left or the
/// runtime has no I/O.
pub(super) fn ensure(engine: &Arc<Engine>, shard: usize) -> io::Result<()> {
    let runtime = Handle::try_current().map_err(io::Error::other)?;
    let driver = engine.driver(shard);
    if driver.expects_task() {
        return Ok(());
    }
    match Task::begin(engine, shard, &runtime) {
        Ok(Some(task)) => {
            runtime.spawn(task.drive());
            Ok(())
        }
        Err(error) if !driver.has_task() => Err(error),
        Ok(None) | Err(_) => Ok(()),
    }
}

/// [Makes sure](ensure) that a task drives the shard of a connection that is open, if that can be
/// had. Otherwise the worker drives: the connection is not to be lost.
pub(super) fn ensure_if_possible(engine: &Arc<Engine>, shard: usize) {
    let _ = ensure(engine, shard);
}

struct Task {
    engine: Arc<Engine>,
    shard: usize,
    id: TaskId,
    set: AsyncFd<Set>,
}

/// What tokio sleeps on for a shard.
struct Set(Sleeper);

impl AsRawFd for Set {
    fn as_raw_fd(&self) -> RawFd {
        self.0.descriptor().as_raw_fd()
    }
}

/// Registers a set with the I/O of this runtime.
///
/// # Errors
/// The runtime has no I/O: tokio panics then, and does not tell before. The system refuses.
fn register(set: Set) -> io::Result<AsyncFd<Set>> {
    #[expect(deprecated, reason = "its successor is unsafe: `Set` owns what it names to its end")]
    let register = || AsyncFd::with_interest(set, Interest::READABLE);
    catch_unwind(AssertUnwindSafe(register)).unwrap_or_else(|_| Err(without_io()))
}

fn without_io() -> io::Error {
    let why = "the runtime has no I/O: build it with enable_io or enable_all";
    io::Error::new(io::ErrorKind::Unsupported, why)
}

impl Task {
    /// `None` if another task was quicker, or is of this runtime, or there is one and this runtime
    /// is known to have no I/O.
    fn begin(engine: &Arc<Engine>, shard: usize, runtime: &Handle) -> io::Result<Option<Self>> {
        let driver = engine.driver(shard);
        let mut runtimes = driver.runtimes();
        if runtimes.without_io == Some(runtime.id()) {
            return if driver.has_task() { Ok(None) } else { Err(without_io()) };
        }
        if driver.has_task() && runtimes.of_task == Some(runtime.id()) {
            return Ok(None);
        }
        let set = register(Set(driver.sleeper()?)).inspect_err(|error| {
            if error.kind() == io::ErrorKind::Unsupported {
                runtimes.without_io = Some(runtime.id());
            }
        })?;
        let begun = driver.begin_task();
        if begun.is_some() {
            runtimes.of_task = Some(runtime.id());
        }
        Ok(begun.map(|id| Self { engine: engine.clone(), shard, id, set }))
    }

    fn driver(&self) -> &Driver {
        self.engine.driver(self.shard)
    }

    async fn drive(self) {
        while !self.driver().is_over() && self.driver().is_task(self.id) {
            self.driver().come(self.id);
            let now = clock::now();
            let polled = self.driver().try_lead(&self.engine.stack).map(|mut lead| {
                let (next, why) = lead.poll(now, false);
                if why != Why::MoreWork {
                    lead.rests(self.id);
                }
                (next, why)
            });
            let follower = match polled {
                Some((_, Why::MoreWork)) => {
                    ::tokio::task::yield_now().await;
                    continue;
                }
                Some((next, _)) => {
                    self.set.get_ref().0.wake_at(next, now);
                    None
                }
                None => {
                    // Who leaves rings the bell of the shard, which is in the set.
                    let follower = self.driver().follow(self.driver().waker());
                    if !self.driver().is_led() {
                        follower.take_up();
                        continue;
                    }
                    Some(follower)
                }
            };
            // The set tells of what comes after its events were taken, once.
            let Ok(mut guard) = self.set.readable().await else { return };
            guard.clear_ready();
            self.driver().note(self.set.get_ref().0.take_events());
            // A task whose place was taken does not lead: a call is passed on.
            if self.driver().is_task(self.id) {
                follower.into_iter().for_each(Follower::take_up);
            }
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.driver().end_task(self.id);
    }
}
