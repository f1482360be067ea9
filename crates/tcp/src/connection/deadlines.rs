//! When a connection wants to be called again: one due time per kind, no callbacks. Delayed ACKs
//! are the receiver's own.
//!
//! Cost: a store to arm or cancel, a minimum over eight words to ask.

use crate::time::Instant;

/// What a due time is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum Deadline {
    /// Retransmission timeout (RFC 6298), of data, SYN or FIN.
    Retransmit,
    /// Tail loss probe (RFC 8985 section 7).
    LossProbe,
    /// RACK's reordering window ends (RFC 8985 section 6.3).
    Reorder,
    /// Zero-window probe, and the safety net for what every gate blocked.
    Probe,
    /// A paced frame may depart.
    Pacing,
    /// Keepalive probe (RFC 9293 section 3.8.4).
    Keepalive,
    /// An orphan in FIN-WAIT-2 ends.
    Orphan,
    /// Nothing was in flight for a while: memory kept for the next write is given back.
    IdleMemory,
}

const KINDS: [Deadline; 8] = [
    Deadline::Retransmit,
    Deadline::LossProbe,
    Deadline::Reorder,
    Deadline::Probe,
    Deadline::Pacing,
    Deadline::Keepalive,
    Deadline::Orphan,
    Deadline::IdleMemory,
];

/// Due times by kind.
#[derive(Clone, Debug)]
pub(super) struct Deadlines([Instant; KINDS.len()]);

impl Default for Deadlines {
    fn default() -> Self {
        Self([Instant::FAR_FUTURE; KINDS.len()])
    }
}

impl Deadlines {
    /// When `kind` is due; [`Instant::FAR_FUTURE`] if it is not armed.
    pub(super) fn get(&self, kind: Deadline) -> Instant {
        self.0[kind as usize]
    }

    /// Whether `kind` is armed.
    pub(super) fn is_armed(&self, kind: Deadline) -> bool {
        self.get(kind) != Instant::FAR_FUTURE
    }

    /// Arms `kind`.
    pub(super) fn set(&mut self, kind: Deadline, at: Instant) {
        self.0[kind as usize] = at;
    }

    /// Disarms `kind`.
    pub(super) fn clear(&mut self, kind: Deadline) {
        self.set(kind, Instant::FAR_FUTURE);
    }

    /// Arms one of the four that share a place in Linux (`icsk_pending`), disarms the others.
    pub(super) fn set_retransmit(&mut self, kind: Deadline, at: Instant) {
        self.clear_retransmit();
        self.set(kind, at);
    }

    /// Disarms retransmission, loss probe, reordering and zero-window probe.
    pub(super) fn clear_retransmit(&mut self) {
        for kind in [Deadline::Retransmit, Deadline::LossProbe, Deadline::Reorder, Deadline::Probe]
        {
            self.clear(kind);
        }
    }

    /// Disarms everything.
    pub(super) fn clear_all(&mut self) {
        *self = Self::default();
    }

    /// The earliest.
    pub(super) fn next(&self) -> Instant {
        self.0.into_iter().min().unwrap_or(Instant::FAR_FUTURE)
    }

    /// Takes one that is due at `now`, if any.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<Deadline> {
        let kind = KINDS.into_iter().find(|&kind| self.get(kind) <= now)?;
        self.clear(kind);
        Some(kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_counts_and_is_taken_once() {
        let mut deadlines = Deadlines::default();
        assert_eq!(deadlines.next(), Instant::FAR_FUTURE);
        deadlines.set(Deadline::Keepalive, Instant::from_nanos(9));
        deadlines.set_retransmit(Deadline::Retransmit, Instant::from_nanos(5));
        deadlines.set_retransmit(Deadline::LossProbe, Instant::from_nanos(3));
        assert!(!deadlines.is_armed(Deadline::Retransmit));
        assert_eq!(deadlines.next(), Instant::from_nanos(3));
        assert_eq!(deadlines.take_due(Instant::from_nanos(2)), None);
        assert_eq!(deadlines.take_due(Instant::from_nanos(4)), Some(Deadline::LossProbe));
        assert_eq!(deadlines.take_due(Instant::from_nanos(4)), None);
        assert_eq!(deadlines.next(), Instant::from_nanos(9));
    }
}
