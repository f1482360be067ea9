//! Doorbell of a shard, which calls its driver.
//!
//! A thread that leaves work for a driver rings. The driver's waker is called only if the driver is
//! not at work and does not come in time by itself, and at most once until it comes. Cost: a store
//! and two loads while the driver is at work.

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use crate::sync::{Mutex, lock};
use neap_tcp::time::Instant;
use std::sync::Arc;
use std::task::{Wake, Waker};

/// Bell by which a thread that leaves work calls the driver of a shard.
#[derive(Debug)]
pub struct Doorbell {
    /// A driver is at work and will look at `has_news` before it leaves.
    is_attended: AtomicBool,
    /// Something came since the driver last looked around.
    has_news: AtomicBool,
    /// The waker was called and no driver has come since.
    was_rung: AtomicBool,
    /// When the driver comes by itself, in nanoseconds.
    returns_at: AtomicU64,
    waker: Mutex<Option<Waker>>,
}

impl Default for Doorbell {
    fn default() -> Self {
        Self {
            is_attended: AtomicBool::new(false),
            has_news: AtomicBool::new(false),
            was_rung: AtomicBool::new(false),
            returns_at: AtomicU64::new(u64::MAX),
            waker: Mutex::new(None),
        }
    }
}

impl Doorbell {
    /// Replaces the waker of the driver.
    pub fn set_waker(&self, waker: Option<Waker>) {
        *lock(&self.waker) = waker;
    }

    /// Calls the driver unless it is at work or returns by `due` anyway. The caller has made
    /// visible before what the driver is to find.
    ///
    /// No call is lost: this leaves its news before it asks whether a driver is at work, and a
    /// driver stops being at work before it looks for news.
    pub fn ring(&self, due: Instant) {
        self.has_news.store(true, SeqCst);
        let is_coming =
            self.is_attended.load(SeqCst) || due.as_nanos() >= self.returns_at.load(SeqCst);
        if !is_coming && !self.was_rung.swap(true, SeqCst) {
            let waker = lock(&self.waker).clone();
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    /// A driver has come, before it knows whether it can work: another may be at work. Returns
    /// whether it was called. News from here on call again.
    pub fn answer(&self) -> bool {
        self.was_rung.swap(false, SeqCst)
    }

    /// The driver begins to work.
    pub fn attend(&self) {
        self.is_attended.store(true, SeqCst);
    }

    /// The driver is about to look at all that it may find. News from here on count as new.
    pub fn clear_news(&self) {
        self.has_news.swap(false, SeqCst);
    }

    /// The driver leaves and returns at `returns_at`. Returns whether news came since
    /// [`clear_news`](Self::clear_news), so that it must come back at once.
    #[must_use = "nobody is called for news that came meanwhile"]
    pub fn leave(&self, returns_at: Instant) -> bool {
        self.returns_at.store(returns_at.as_nanos(), SeqCst);
        self.is_attended.store(false, SeqCst);
        self.has_news.load(SeqCst)
    }
}

impl Wake for Doorbell {
    fn wake(self: Arc<Self>) {
        self.ring(Instant::ZERO);
    }
    fn wake_by_ref(self: &Arc<Self>) {
        self.ring(Instant::ZERO);
    }
}
