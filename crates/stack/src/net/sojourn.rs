//! Sojourn times: how long frames are in a device, and how much of that is lateness of their
//! completions.
//!
//! Byte queue limits see a queue that ran dry only where a completion round leaves nothing in the
//! ring. A device whose every completion comes late always holds something, so a limit that is far
//! too small looks sound. But there a frame that met an idle wire takes as long as one that met an
//! empty ring, and a frame that queued takes longer: the argument of Vegas (Brakmo and Peterson
//! 1995) for a path, here for a ring.
//!
//! One frame at a time is followed. Cost: a comparison per frame and per completion round; 120
//! bytes.

use neap_tcp::time::{Instant, Nanos};

/// A frame that is followed.
#[derive(Clone, Copy, Debug)]
struct Followed {
    since: Instant,
    /// The running total of queued bytes with this frame, which is complete when so many are.
    mark: u64,
    /// Bytes in the ring with this frame.
    held: u64,
    /// The ring was empty before.
    is_alone: bool,
    /// The limit stopped the stack behind this frame.
    is_stopped: bool,
}

/// A frame's way through the device: so many bytes left in this time.
#[derive(Clone, Copy, Debug)]
struct Passage {
    took: Nanos,
    bytes: u64,
}

impl Passage {
    /// The time that `bytes` take at the rate of this passage.
    fn time_for(self, bytes: u64) -> Nanos {
        Nanos(scale(self.took.0, bytes, self.bytes))
    }

    fn is_faster_than(self, other: Self) -> bool {
        u128::from(self.bytes) * u128::from(other.took.0)
            > u128::from(other.bytes) * u128::from(self.took.0)
    }
}

fn scale(value: u64, by: u64, of: u64) -> u64 {
    let scaled = u128::from(value) * u128::from(by) / u128::from(of.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// Knowledge about one device queue, from frames that were followed through it.
#[derive(Clone, Debug)]
pub(crate) struct Sojourn {
    followed: Option<Followed>,
    /// Through an empty ring; the shortest of an age.
    base: Option<Passage>,
    base_since: Instant,
    /// The fastest of an age, next to the device's own rate.
    fastest: Option<Passage>,
    last: Option<Passage>,
    drains: bool,
}

/// Advice about the limit, from one frame that was followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Advice {
    /// Bytes by which the limit must grow, because it stopped the stack while the wire was idle.
    pub(crate) grow: u64,
    /// Bytes that leave until a completion is known.
    pub(crate) needed: u64,
}

impl Sojourn {
    /// Time after which the base is measured anew, since devices moderate their interrupts by load.
    ///
    /// If need be the ring is left to drain for that, as BBR leaves the path.
    pub(crate) const AGE: Nanos = Nanos::from_secs(10);

    /// Starts without knowledge.
    pub(crate) const fn new(now: Instant) -> Self {
        Self {
            followed: None,
            base: None,
            base_since: now,
            fastest: None,
            last: None,
            drains: false,
        }
    }

    /// Returns whether the ring should run empty, so that the base can be measured.
    pub(crate) fn drains(&self) -> bool {
        self.drains
    }

    /// Returns the estimated time from a frame's last bit on the wire to its completion. The
    /// estimate errs low.
    pub(crate) fn lateness(&self) -> Nanos {
        let known = self.base.zip(self.fastest);
        known.map_or(Nanos::ZERO, |(base, fastest)| {
            Nanos(base.took.0.saturating_sub(fastest.time_for(base.bytes).0))
        })
    }

    /// Notes a queued frame: the running total with it, the bytes in the ring with it, and the
    /// limit.
    pub(crate) fn on_queued(
        &mut self,
        now: Instant,
        bytes: u64,
        total: u64,
        held: u64,
        limit: u64,
    ) {
        if self.followed.is_none() {
            let is_alone = held == bytes;
            let is_stopped = held > limit;
            self.followed = Some(Followed { since: now, mark: total, held, is_alone, is_stopped });
        }
    }

    /// Notes a completion round: the running total of completed bytes after it. Returns advice
    /// about the limit, if a followed frame gave any.
    pub(crate) fn on_completed(
        &mut self,
        now: Instant,
        total: u64,
        is_empty: bool,
    ) -> Option<Advice> {
        self.drains &= !is_empty;
        let frame = self.followed.filter(|frame| frame.mark <= total)?;
        self.followed = None;
        let passage =
            Passage { took: Nanos(now.since(frame.since).0.max(1)), bytes: frame.held.max(1) };
        let is_old = now.since(self.base_since) >= Self::AGE;
        if frame.is_alone && (is_old || self.base.is_none_or(|base| passage.took <= base.took)) {
            if is_old {
                self.fastest = self.last;
            }
            (self.base, self.base_since) = (Some(passage), now);
        } else if is_old && frame.is_stopped {
            self.drains = !is_empty;
        }
        if self.fastest.is_none_or(|fastest| passage.is_faster_than(fastest)) {
            self.fastest = Some(passage);
        }
        self.last = Some(passage);
        let base = self.base?;
        let is_idle = passage.took <= base.took + base.took / 4;
        let lateness = self.lateness();
        // A quarter for what differs from frame to frame.
        let needed = scale(passage.bytes, (lateness + lateness / 4).0, passage.took.0);
        Some(Advice { grow: if frame.is_stopped && is_idle { passage.bytes } else { 0 }, needed })
    }
}
