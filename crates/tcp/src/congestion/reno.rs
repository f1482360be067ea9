//! NewReno's window (RFC 5681, RFC 6582).

use super::{AckSample, CongestionControl, CongestionEvent, Window};
use crate::time::Instant;

/// Congestion controller NewReno: slow start, then one segment per round trip; a loss halves the
/// window.
///
/// It has no state. The sender undoes a reduction.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reno;

impl CongestionControl for Reno {
    fn name(&self) -> &'static str {
        "reno"
    }

    fn on_ack(&mut self, sample: &AckSample, window: &mut Window) {
        if !sample.is_cwnd_limited {
            return;
        }
        let mut acked = sample.acked_sacked;
        if window.in_slow_start() {
            acked = window.slow_start(acked);
        }
        if acked > 0 {
            window.additive_increase(window.cwnd, acked);
        }
    }

    fn ssthresh(&mut self, _now: Instant, window: &Window) -> u32 {
        (window.cwnd / 2).max(2)
    }

    fn on_event(&mut self, _event: CongestionEvent, _now: Instant, _window: &mut Window) {}
}
