//! Leaving slow start before losses end it: HyStart++ (RFC 9406), or HyStart as Linux has it.

mod linux;
mod plus_plus;

use super::{AckSample, Window};
use crate::congestion::HyStartRule;
use crate::time::Instant;

/// What looks at slow start. Cost: O(1) per ACK, no memory beyond this enum.
#[derive(Clone, Copy, Debug)]
pub(super) enum HyStart {
    Off,
    Linux(linux::HyStart),
    PlusPlus(plus_plus::HyStart),
}

impl HyStart {
    pub(super) fn new(rule: HyStartRule, now: Instant) -> Self {
        match rule {
            HyStartRule::Off => Self::Off,
            HyStartRule::Linux => Self::Linux(linux::HyStart::new(now)),
            HyStartRule::Rfc9406 => Self::PlusPlus(plus_plus::HyStart::default()),
        }
    }

    /// Begins anew where another rule holds than so far.
    pub(super) fn follow(&mut self, rule: HyStartRule, now: Instant) {
        let is_same = match self {
            Self::Off => rule == HyStartRule::Off,
            Self::Linux(_) => rule == HyStartRule::Linux,
            Self::PlusPlus(_) => rule == HyStartRule::Rfc9406,
        };
        if !is_same {
            *self = Self::new(rule, now);
        }
    }

    /// Looks at an ACK before the window grows by it; may end slow start by setting ssthresh.
    /// `epoch` is when the stage of congestion avoidance began, if one has.
    pub(super) fn observe(
        &mut self,
        sample: &AckSample,
        epoch: Option<Instant>,
        window: &mut Window,
    ) {
        match self {
            Self::Off => {}
            Self::Linux(hystart) => hystart.observe(sample, epoch, window),
            Self::PlusPlus(hystart) => hystart.observe(sample, window),
        }
    }

    /// Grows a window in slow start; returns the acknowledged segments that are left for
    /// congestion avoidance.
    pub(super) fn grow(&mut self, sample: &AckSample, window: &mut Window) -> u32 {
        match self {
            Self::Off | Self::Linux(_) => window.slow_start(sample.acked_sacked),
            Self::PlusPlus(hystart) => hystart.grow(sample, window),
        }
    }

    /// The window was reduced; by a timeout, if `is_timeout`.
    pub(super) fn on_reduction(&mut self, is_timeout: bool, now: Instant) {
        match self {
            Self::Off => {}
            Self::Linux(hystart) if is_timeout => *hystart = linux::HyStart::new(now),
            Self::Linux(_) => {}
            Self::PlusPlus(hystart) => *hystart = plus_plus::HyStart::default(),
        }
    }

    /// Whether a train of ACKs ended slow start, and not their delay.
    pub(super) fn found_train(&self) -> bool {
        matches!(self, Self::Linux(hystart) if hystart.found_train())
    }
}
