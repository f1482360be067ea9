//! Mutexes of threads that may panic.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, also what a thread that panicked has held: it is changed in steps that leave it whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
