//! What a blocking call waits for.

use neap_stack::socket::readiness::{Ready, ReadyState};
use neap_stack::stack::Stack;
use neap_stack::wait::{Condition, Source};
use std::task::Waker;

/// Met when a source has become ready for any of `interest` since it was read as `seen`. What it is
/// ready for all along does not count: the call refused nevertheless. Of several threads that wait
/// to read, one is woken by each thing that comes.
pub(crate) struct Gained<'a> {
    pub(crate) source: &'a dyn Source,
    pub(crate) interest: Ready,
    pub(crate) seen: ReadyState,
}

impl Gained<'_> {
    fn is_worth_a_try(&self, state: ReadyState) -> bool {
        let has_changed = state.generation() != self.seen.generation();
        has_changed && state.bits().intersects(self.interest)
    }
}

impl Condition for Gained<'_> {
    fn is_met(&mut self) -> bool {
        self.is_worth_a_try(self.source.readiness())
    }

    fn arm(&mut self, waker: &Waker, drives: bool) -> bool {
        // What others wait for may have come since `seen`: only the present counts.
        let state = self.source.readiness();
        if self.is_worth_a_try(state) {
            return false;
        }
        // A writer leaves the error for a reader to take.
        match self.interest.contains(Ready::READABLE) {
            true => self.source.register_exclusive(state, self.interest, waker, drives),
            false => self.source.register(state, self.interest, waker),
        }
    }

    fn disarm(&mut self, waker: &Waker) {
        self.source.unregister(waker);
    }
}

/// Met while a source is ready for any of `interest`.
pub(crate) struct IsReady<'a> {
    pub(crate) source: &'a dyn Source,
    pub(crate) interest: Ready,
}

impl Condition for IsReady<'_> {
    fn is_met(&mut self) -> bool {
        self.source.readiness().bits().intersects(self.interest)
    }

    fn arm(&mut self, waker: &Waker, _: bool) -> bool {
        let state = self.source.readiness();
        !state.bits().intersects(self.interest) && self.source.register(state, self.interest, waker)
    }

    fn disarm(&mut self, waker: &Waker) {
        self.source.unregister(waker);
    }
}

/// Met when a stack that closes has no connection left.
pub(crate) struct Drained<'a>(pub(crate) &'a Stack);

impl Condition for Drained<'_> {
    fn is_met(&mut self) -> bool {
        self.0.open_connections() == 0
    }

    fn arm(&mut self, waker: &Waker, _: bool) -> bool {
        self.0.register_drained(waker)
    }

    fn disarm(&mut self, waker: &Waker) {
        self.0.unregister_drained(waker);
    }
}

/// A condition, and the waker that it may hold.
pub(crate) struct Armed<'a> {
    condition: &'a mut dyn Condition,
    waker: Option<Waker>,
}

impl<'a> Armed<'a> {
    pub(crate) fn new(condition: &'a mut dyn Condition) -> Self {
        Self { condition, waker: None }
    }

    pub(crate) fn is_met(&mut self) -> bool {
        self.condition.is_met()
    }

    pub(crate) fn arm(&mut self, waker: Waker, drives: bool) -> bool {
        self.condition.arm(self.waker.insert(waker), drives)
    }

    pub(crate) fn disarm(&mut self) {
        if let Some(waker) = self.waker.take() {
            self.condition.disarm(&waker);
        }
    }
}
