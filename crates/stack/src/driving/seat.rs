//! A seat for the one thread that drives: a try-lock that tells its holder who came in vain.

use crate::sync::atomic::{AtomicBool, Ordering::SeqCst};
use crate::sync::{Mutex, MutexGuard, lock};
use std::sync::TryLockError;

/// State that one thread at a time uses, and that others do not wait for.
///
/// A thread that comes in vain may have been called for something that the holder has already
/// passed by, such as a packet. So the holder learns of it when it leaves, and looks again or calls
/// a driver. Cost: one uncontended lock, and one exchange when the seat is left.
#[derive(Debug)]
pub struct Seat<T> {
    state: Mutex<T>,
    /// A thread came in vain since the last holder left.
    was_refused: AtomicBool,
}

impl<T> Seat<T> {
    /// Makes a free seat over `state`.
    pub fn new(state: T) -> Self {
        Self { state: Mutex::new(state), was_refused: AtomicBool::new(false) }
    }

    /// Takes the seat; `None` if another thread has it, which will learn of the attempt.
    pub fn try_take(&self) -> Option<Taken<'_, T>> {
        if let Some(taken) = self.try_lock() {
            return Some(taken);
        }
        self.was_refused.store(true, SeqCst);
        // The holder may have left before it could see that.
        self.try_lock()
    }

    /// Takes the seat, and waits for its holder to leave.
    pub fn take(&self) -> Taken<'_, T> {
        Taken { seat: self, state: lock(&self.state) }
    }

    fn try_lock(&self) -> Option<Taken<'_, T>> {
        let state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Taken { seat: self, state })
    }
}

/// The seat, taken. It is given up by [`leave`](Self::leave).
#[derive(Debug)]
pub struct Taken<'a, T> {
    seat: &'a Seat<T>,
    state: MutexGuard<'a, T>,
}

impl<T> Taken<'_, T> {
    /// Leaves the seat. Returns whether another thread came in vain meanwhile; then somebody has to
    /// look again for what that thread was called for.
    #[must_use = "what the other thread came for would be left lying"]
    pub fn leave(self) -> bool {
        let Self { seat, state } = self;
        drop(state);
        seat.was_refused.swap(false, SeqCst)
    }
}

impl<T> core::ops::Deref for Taken<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.state
    }
}

impl<T> core::ops::DerefMut for Taken<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.state
    }
}
