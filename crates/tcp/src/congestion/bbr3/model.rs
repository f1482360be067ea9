//! Bandwidth and volume of the path, at the time scales of probes and of round trips.

use super::super::AckSample;
use super::super::path_model::{MIN_WINDOW, bandwidth};
use super::UNLIMITED;
use crate::time::Rate;
use crate::windowed_min::WindowedMax;

/// The share of the long-term volume that is left free for others: 0.15.
const HEADROOM_PERCENT: u64 = 15;
/// Round trips for which ACKs that came all at once are remembered.
const EXCESS_ROUNDS: u64 = 10;

/// Bandwidth.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bandwidth {
    /// The highest samples of the previous cycle and of this one.
    cycles: [Rate; 2],
    /// What is safe now (`bw_shortterm`).
    pub(super) shortterm: Rate,
    excess: WindowedMax,
}

impl Default for Bandwidth {
    fn default() -> Self {
        let cycles = [Rate(0); 2];
        Self { cycles, shortterm: Rate::UNLIMITED, excess: WindowedMax::default() }
    }
}

impl Bandwidth {
    /// `max_bw`: the highest of two cycles.
    pub(super) fn max(&self) -> Rate {
        self.cycles[0].max(self.cycles[1])
    }

    /// `BoundBWForModel`.
    pub(super) fn bound(&self) -> Rate {
        self.max().min(self.shortterm)
    }

    /// `UpdateMaxBw`. A sample that the application limited counts when it is the highest.
    pub(super) fn sample(&mut self, sample: &AckSample) {
        let bw = bandwidth(sample);
        if bw.0 > 0 && (bw >= self.max() || !sample.is_app_limited) {
            self.cycles[1] = self.cycles[1].max(bw);
        }
    }

    /// `AdvanceMaxBwFilter`: the next cycle. One without samples keeps what was known.
    pub(super) fn advance(&mut self) {
        if self.cycles[1].0 > 0 {
            self.cycles = [self.cycles[1], Rate(0)];
        }
    }

    /// `UpdateACKAggregation`: remembers one round during start-up, ten later.
    pub(super) fn note_excess(&mut self, round: u64, extra: u32, is_full: bool) {
        let window = if is_full { EXCESS_ROUNDS } else { 1 };
        self.excess.update(window, round, u64::from(extra));
    }

    /// Segments by which ACKs were ahead of the bandwidth at the most.
    pub(super) fn extra_acked(&self) -> u32 {
        self.excess.get().map_or(0, |extra| u32::try_from(extra).unwrap_or(u32::MAX))
    }
}

/// Volume in flight, in segments; [`UNLIMITED`] where nothing is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Volume {
    /// What the path held without too much loss (`inflight_longterm`).
    pub(super) longterm: u32,
    /// What is safe now (`inflight_shortterm`).
    pub(super) shortterm: u32,
}

impl Default for Volume {
    fn default() -> Self {
        Self { longterm: UNLIMITED, shortterm: UNLIMITED }
    }
}

impl Volume {
    /// `InflightWithHeadroom`.
    pub(super) fn with_headroom(&self) -> u32 {
        if self.longterm == UNLIMITED {
            return UNLIMITED;
        }
        let headroom = (u64::from(self.longterm) * HEADROOM_PERCENT / 100).max(1) as u32;
        (self.longterm - headroom.min(self.longterm)).max(MIN_WINDOW)
    }
}
