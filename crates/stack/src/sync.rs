//! Locks and atomics, from `std` or, under `cfg(loom)`, from loom.

#[cfg(loom)]
pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard, atomic};
#[cfg(not(loom))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, atomic};

use std::sync::PoisonError;

/// Locks `mutex` even if a thread panicked under it: what these mutexes guard is consistent
/// between any two statements, so a panic elsewhere is no reason to stop a stack.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
