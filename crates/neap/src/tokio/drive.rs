//! The task that drives a shard.

use crate::clock;
use crate::driver::{Driver, Follower};
use crate::engine::Engine;
use crate::sleeper::Sleeper;
use ::tokio::io::Interest;
use ::tokio::io::unix::AsyncFd;
use neap_stack::driving::roles::TaskId;
use neap_stack::stack::Why;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

/// Makes sure that a task drives the shard: that of another runtime if it comes when something
/// happens, and one of this runtime otherwise. The worker drives when the runtime ends.
///
/// # Errors
/// There is no runtime here, or the process has no descriptors left.
///
/// # Panics
/// The runtime has no I/O, and the task is to be one of it.
pub(super) fn ensure(engine: &Arc<Engine>, shard: usize) -> io::Result<()> {
    let runtime = ::tokio::runtime::Handle::try_current().map_err(io::Error::other)?;
    if engine.driver(shard).expects_task() {
        return Ok(());
    }
    let Some(task) = Task::begin(engine, shard)? else { return Ok(()) };
    runtime.spawn(task.drive());
    Ok(())
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

impl Task {
    /// `None` if another task was quicker.
    fn begin(engine: &Arc<Engine>, shard: usize) -> io::Result<Option<Self>> {
        let driver = engine.driver(shard);
        let sleeper = driver.sleeper()?;
        #[expect(
            deprecated,
            reason = "its successor is unsafe: `Set` owns what it names to its end"
        )]
        let set = AsyncFd::with_interest(Set(sleeper), Interest::READABLE)?;
        let begun = driver.begin_task();
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
