//! Mutexes of threads that may panic.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, also after a thread that held it has panicked. What the mutexes of this crate
/// guard is whole after each step, so others can go on with it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
