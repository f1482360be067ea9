//! What a blocking call waits for.

use neap_stack::socket::readiness::{Ready, ReadyState};
use neap_stack::stack::Stack;
use neap_stack::wait::{Condition, Source};
use std::task::Waker;

/// Met when a source has become ready for any of `interest` since it was read as `seen`. What it is
/// ready for all along does not count: the call refused nevertheless.
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

    fn arm(&mut self, waker: &Waker) -> bool {
        // What others wait for may have come since `seen`: only the present counts.
        let state = self.source.readiness();
        !self.is_worth_a_try(state) && self.source.register(state, self.interest, waker)
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

    fn arm(&mut self, waker: &Waker) -> bool {
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

    fn arm(&mut self, waker: &Waker) -> bool {
        self.0.register_drained(waker)
    }

    fn disarm(&mut self, waker: &Waker) {
        self.0.unregister_drained(waker);
    }
}
