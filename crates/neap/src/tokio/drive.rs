//! The task that drives a shard.

use crate::clock;
use crate::driver::{Driver, Sleeper};
use crate::engine::Engine;
use ::tokio::io::Interest;
use ::tokio::io::unix::AsyncFd;
use neap_stack::stack::Why;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::task::Waker;

/// Makes sure that a task drives the shard, or the worker if the runtime of that task has ended.
///
/// # Errors
/// There is no runtime here, or one without I/O, or the process has no descriptors left.
pub(super) fn ensure(engine: &Arc<Engine>, shard: usize) -> io::Result<()> {
    let driver = engine.driver(shard);
    if driver.has_task() {
        return Ok(());
    }
    let runtime = ::tokio::runtime::Handle::try_current().map_err(io::Error::other)?;
    let Some(task) = Task::begin(engine, shard)? else { return Ok(()) };
    runtime.spawn(task.drive());
    Ok(())
}

struct Task {
    engine: Arc<Engine>,
    shard: usize,
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
        let is_first = driver.begin_task();
        Ok(is_first.then(|| Self { engine: engine.clone(), shard, set }))
    }

    fn driver(&self) -> &Driver {
        self.engine.driver(self.shard)
    }

    async fn drive(self) {
        while !self.engine.is_over() {
            let now = clock::now();
            let polled = self.driver().try_lead(&self.engine.stack).map(|lead| lead.poll(now));
            let follower = match polled {
                Some((_, Why::MoreWork)) => {
                    ::tokio::task::yield_now().await;
                    continue;
                }
                Some((next, _)) => {
                    self.set.get_ref().0.wake_at(next, now);
                    self.engine.driver(self.shard).expect_task(next);
                    None
                }
                None => match Follower::new(self.driver()) {
                    Some(follower) => Some(follower),
                    None => continue,
                },
            };
            // The set tells of what comes after it was found empty, once.
            let Ok(mut guard) = self.set.readable().await else { return };
            guard.clear_ready();
            drop(follower);
            while self.driver().drain(&self.set.get_ref().0) {}
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.driver().end_task();
    }
}

/// A follower, while somebody else leads: the shard's kick tells that he has left.
struct Follower<'a> {
    driver: &'a Driver,
    waker: Waker,
}

impl<'a> Follower<'a> {
    /// `None` if nobody leads any more.
    fn new(driver: &'a Driver) -> Option<Self> {
        let waker = driver.waker();
        driver.follow(waker.clone());
        let follower = Self { driver, waker };
        driver.is_held().then_some(follower)
    }
}

impl Drop for Follower<'_> {
    fn drop(&mut self) {
        self.driver.unfollow(&self.waker);
    }
}
