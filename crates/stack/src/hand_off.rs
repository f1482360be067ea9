//! State that one thread owns at a time, and whose owner also does the work that other threads
//! leave.
//!
//! To own is to take the boxed state out of the gate, so that "owned" is no flag that may be wrong.
//! A thread that finds the state away adds to the debt; the owner settles all debts before it puts
//! the state back. In Linux's terms the gate is `sk_lock.slock`, an absent resident is
//! `sk_lock.owned`, the debt is `sk_tsq_flags` with `sk_backlog`, and [`Owner::release`] is
//! `release_sock`. The same type is the run lock of a port: `__qdisc_run` with
//! `QDISC_STATE_MISSED`.
//!
//! Cost: two uncontended mutexes for own and release, one more for each round of debt; no
//! allocation after [`HandOff::new`].

use crate::sync::{Condvar, Mutex, MutexGuard, lock, wait};

/// Rounds of debt that one release settles, so that an application is never captured by its own
/// socket.
const ROUNDS: u32 = 16;

/// State that can do deferred work.
pub trait Settle {
    /// Work that was left. The default is no work.
    type Debt: Default;
    /// Things that the work needs from outside: the time and the way down.
    type Cx<'a>;
    /// Returns whether nothing is left to do.
    fn is_settled(debt: &Self::Debt) -> bool;
    /// Does the work. If this panics, the debt that is being settled is lost.
    fn settle(&mut self, debt: Self::Debt, cx: &mut Self::Cx<'_>);
}

/// State that one thread at a time owns.
pub struct HandOff<T: Settle> {
    gate: Mutex<Gate<T>>,
    vacated: Condvar,
}

struct Gate<T: Settle> {
    /// `None` while some thread owns the state.
    resident: Option<Box<T>>,
    debt: T::Debt,
    /// Threads in `own`; `notify_one` is a system call even without any.
    waiters: u32,
}

/// Result of [`Owner::release`].
#[must_use = "a debt that is left must be posted again, by the run list"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// All debts are settled.
    Settled,
    /// Other threads left work as fast as this thread settled it. After 16 rounds the rest stays,
    /// and the caller sees to it that a thread visits again.
    DebtLeft,
}

/// Result of [`HandOff::post`].
#[must_use = "a debt that is left must be posted again, by the run list"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// The calling thread did the work.
    Settled,
    /// The thread that owns the state will do the work before it leaves.
    LeftToOwner,
    /// The calling thread owned the state, and debt remains, as with [`Released::DebtLeft`].
    DebtLeft,
}

impl<T: Settle> HandOff<T> {
    /// Makes a hand-off whose state is free and has no debt.
    pub fn new(state: T) -> Self {
        let gate = Gate { resident: Some(Box::new(state)), debt: T::Debt::default(), waiters: 0 };
        Self { gate: Mutex::new(gate), vacated: Condvar::new() }
    }

    /// Owns the state, and waits for another owner to leave. An application thread owns at most one
    /// state at a time.
    pub fn own(&self) -> Owner<'_, T> {
        let mut gate = lock(&self.gate);
        loop {
            if let Some(state) = gate.resident.take() {
                return self.owner(state);
            }
            gate.waiters += 1;
            gate = wait(&self.vacated, &self.gate, gate);
            gate.waiters -= 1;
        }
    }

    /// Owns the state if it is free.
    pub fn try_own(&self) -> Option<Owner<'_, T>> {
        let state = lock(&self.gate).resident.take()?;
        Some(self.owner(state))
    }

    /// Adds a debt and settles it, or leaves it to the owner. It never waits.
    pub fn post(&self, add: impl FnOnce(&mut T::Debt), cx: &mut T::Cx<'_>) -> Posted {
        let mut gate = lock(&self.gate);
        add(&mut gate.debt);
        let Some(state) = gate.resident.take() else {
            return Posted::LeftToOwner;
        };
        drop(gate);
        match self.owner(state).release(cx) {
            Released::Settled => Posted::Settled,
            Released::DebtLeft => Posted::DebtLeft,
        }
    }

    /// Adds a debt without settling it. Returns whether a thread owns the state and will settle it.
    ///
    /// If none does, the next visitor will, and the caller sees to it that there is one.
    pub fn post_only(&self, add: impl FnOnce(&mut T::Debt)) -> bool {
        let mut gate = lock(&self.gate);
        add(&mut gate.debt);
        gate.resident.is_none()
    }

    fn owner(&self, state: Box<T>) -> Owner<'_, T> {
        Owner { lock: self, state: Some(state) }
    }
}

impl<T: Settle> core::fmt::Debug for HandOff<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("HandOff").finish_non_exhaustive()
    }
}

/// Exclusive ownership of the state. No mutex is held meanwhile.
///
/// If an owner is dropped without [`release`](Self::release) (by a panic), the state is put back
/// and the debt is left to the next visitor.
pub struct Owner<'a, T: Settle> {
    lock: &'a HandOff<T>,
    state: Option<Box<T>>,
}

impl<T: Settle> Owner<'_, T> {
    /// Settles the debt that was left meanwhile, in at most 16 rounds, then gives the state up.
    pub fn release(mut self, cx: &mut T::Cx<'_>) -> Released {
        for _ in 0..ROUNDS {
            let mut gate = lock(&self.lock.gate);
            if T::is_settled(&gate.debt) {
                // Under the same lock as the look at the debt: nothing can be posted in between.
                self.put_back(gate);
                return Released::Settled;
            }
            let debt = core::mem::take(&mut gate.debt);
            drop(gate);
            self.settle(debt, cx);
        }
        let gate = lock(&self.lock.gate);
        let released =
            if T::is_settled(&gate.debt) { Released::Settled } else { Released::DebtLeft };
        self.put_back(gate);
        released
    }

    fn put_back(&mut self, mut gate: MutexGuard<'_, Gate<T>>) {
        gate.resident = self.state.take();
        if gate.waiters > 0 {
            self.lock.vacated.notify_one();
        }
    }
}

impl<T: Settle> core::ops::Deref for Owner<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.state.as_ref().expect("an owner has the state until it is consumed")
    }
}

impl<T: Settle> core::ops::DerefMut for Owner<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.state.as_mut().expect("an owner has the state until it is consumed")
    }
}

impl<T: Settle> Drop for Owner<'_, T> {
    fn drop(&mut self) {
        if self.state.is_some() {
            let gate = lock(&self.lock.gate);
            self.put_back(gate);
        }
    }
}

impl<T: Settle> core::fmt::Debug for Owner<'_, T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Owner").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;

    /// A debt that cannot be settled: more than any test leaves.
    const BAD: u32 = 1 << 30;

    #[derive(Default)]
    struct Sum(u32);

    /// `cx` posts that many further debts from within.
    impl Settle for Sum {
        type Debt = u32;
        type Cx<'a> = (&'a HandOff<Self>, u32);
        fn is_settled(debt: &u32) -> bool {
            *debt == 0
        }
        fn settle(&mut self, debt: u32, (lock, more): &mut Self::Cx<'_>) {
            assert!(debt < BAD, "a debt that nobody can settle");
            self.0 += debt;
            if *more > 0 {
                *more -= 1;
                assert!(lock.post_only(|debt| *debt += 1), "this thread owns the state");
            }
        }
    }

    #[test]
    fn debt_is_left_to_the_owner_and_settled_at_release() {
        let lock = HandOff::new(Sum(0));
        let owner = lock.own();
        assert!(lock.try_own().is_none());
        assert_eq!(lock.post(|debt| *debt += 3, &mut (&lock, 0)), Posted::LeftToOwner);
        assert_eq!(owner.0, 0);
        assert_eq!(owner.release(&mut (&lock, 0)), Released::Settled);
        assert_eq!(lock.own().0, 3);
        assert!(!lock.post_only(|debt| *debt += 1), "nobody owns it");
        assert_eq!(lock.post(|_| {}, &mut (&lock, 0)), Posted::Settled);
        assert_eq!(lock.own().0, 4);
    }

    #[test]
    fn an_owner_is_captured_for_16_rounds_only() {
        let lock = HandOff::new(Sum(0));
        assert_eq!(lock.post(|debt| *debt += 1, &mut (&lock, 15)), Posted::Settled);
        assert_eq!(lock.post(|debt| *debt += 1, &mut (&lock, 16)), Posted::DebtLeft);
        assert_eq!(lock.own().0, 32);
        assert_eq!(lock.post(|_| {}, &mut (&lock, 0)), Posted::Settled);
        assert_eq!(lock.own().0, 33);
    }

    #[test]
    fn a_panic_puts_the_state_back_and_keeps_the_debt() {
        let lock = HandOff::new(Sum(0));
        let panic = catch_unwind(AssertUnwindSafe(|| {
            let mut owner = lock.own();
            owner.0 = 7;
            assert!(lock.post_only(|debt| *debt += 2));
            panic!("application");
        }));
        assert!(panic.is_err());
        assert_eq!(lock.own().release(&mut (&lock, 0)), Released::Settled);
        assert_eq!(lock.own().0, 9);

        let panic = catch_unwind(AssertUnwindSafe(|| {
            let _ = lock.post(|debt| *debt = BAD, &mut (&lock, 0));
        }));
        assert!(panic.is_err());
        assert_eq!(lock.own().0, 9, "a panic while settling does not lose the state");
    }

    #[test]
    fn poisoning_does_not_spread() {
        let lock = HandOff::new(Sum(0));
        let panic = catch_unwind(AssertUnwindSafe(|| lock.post_only(|_| panic!("in the gate"))));
        assert!(panic.is_err());
        assert_eq!(lock.post(|debt| *debt += 1, &mut (&lock, 0)), Posted::Settled);
        assert_eq!(lock.own().0, 1);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "real threads are what is tested")]
    fn threads_lose_nothing() {
        let lock = Arc::new(HandOff::new(Sum(0)));
        let threads: Vec<_> = (0..4)
            .map(|i| {
                let lock = lock.clone();
                std::thread::spawn(move || {
                    for _ in 0..2000 {
                        if i % 2 == 0 {
                            let mut owner = lock.own();
                            owner.0 += 1;
                            let _ = owner.release(&mut (&lock, 0));
                        } else {
                            let _ = lock.post(|debt| *debt += 1, &mut (&lock, 0));
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        let _ = lock.post(|_| {}, &mut (&lock, 0));
        assert_eq!(lock.own().0, 8000);
    }
}
