//! Locks and atomics, from `std` or, under `cfg(loom)`, from loom.
//!
//! Under `cfg(tsan)` locks are waited for by trying. ThreadSanitizer does not see inside of the
//! `std` that comes with a compiler: what waits there it takes for a race.

#[cfg(loom)]
pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard, atomic};
#[cfg(not(loom))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, atomic};

#[cfg(not(tsan))]
use std::sync::PoisonError;
#[cfg(tsan)]
use std::sync::TryLockError;

/// Locks `mutex` even if a thread panicked under it: what these mutexes guard is consistent
/// between any two statements, so a panic elsewhere is no reason to stop a stack.
#[cfg(not(tsan))]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As without `cfg(tsan)`.
#[cfg(tsan)]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    loop {
        match mutex.try_lock() {
            Ok(guard) => return guard,
            Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => core::hint::spin_loop(),
        }
    }
}

/// Waits for a notice of `condvar`, with the guard of `mutex` given up meanwhile. It may return
/// without a notice.
#[cfg(not(tsan))]
pub(crate) fn wait<'a, T>(
    condvar: &Condvar,
    _: &'a Mutex<T>,
    guard: MutexGuard<'a, T>,
) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// As without `cfg(tsan)`.
#[cfg(tsan)]
pub(crate) fn wait<'a, T>(
    _: &Condvar,
    mutex: &'a Mutex<T>,
    guard: MutexGuard<'a, T>,
) -> MutexGuard<'a, T> {
    drop(guard);
    lock(mutex)
}
