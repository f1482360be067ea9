//! What handshakes take of the thread that receives, beside what the engine has estimated for them.
//!
//! The clock is that of the wall. The thread's own clock would leave out the time of others, but a
//! look at it takes half a microsecond, a twentieth of what is measured.
//!
//! Cost: two looks at the clock for each turn of handshakes, and for each call of the system that
//! receives or sends answers, for a few turns after one of handshakes; nothing while there are
//! none.

use crate::engine::Toll;
use neap_device::clock;
use neap_tcp::time::{Instant, Nanos};

/// So many turns are measured after one of handshakes. Data comes in between.
const MEASURED: u8 = 16;

/// Measures the turns of handshakes, from the second of a flood on.
#[derive(Debug, Default)]
pub(crate) struct TollMeter {
    /// Turns that will be measured yet.
    left: u8,
    toll: Toll,
}

impl TollMeter {
    /// The beginning of a call, if it is to be measured.
    pub(crate) fn begin(&self) -> Option<Instant> {
        (self.left > 0).then(clock::now)
    }

    /// The end of a turn of handshakes for which the engine estimates `estimated`; zero if there
    /// were none that were looked at.
    pub(crate) fn end(&mut self, begin: Option<Instant>, estimated: Nanos) {
        if estimated == Nanos::ZERO {
            self.left = self.left.saturating_sub(1);
            return;
        }
        self.left = MEASURED;
        if begin.is_some() {
            self.add(begin);
            self.toll.estimated = self.toll.estimated + estimated;
        }
    }

    /// The end of a call that has brought handshakes, or sent answers to them.
    pub(crate) fn add(&mut self, begin: Option<Instant>) {
        if let Some(begin) = begin {
            self.toll.taken = self.toll.taken + clock::now().since(begin);
        }
    }

    /// What was measured since the last call.
    pub(crate) fn take(&mut self) -> Toll {
        core::mem::take(&mut self.toll)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ESTIMATE: Nanos = Nanos::from_micros(12);

    fn work(begin: Instant) {
        while clock::now() < begin + Nanos::from_micros(50) {
            core::hint::spin_loop();
        }
    }

    #[test]
    fn calls_are_measured_after_one_that_brought_handshakes() {
        let mut meter = TollMeter::default();
        assert_eq!(meter.begin(), None);
        meter.end(None, ESTIMATE);
        assert_eq!(meter.take().estimated, Nanos::ZERO, "its beginning is not known");
        let begin = meter.begin();
        work(begin.expect("the second is measured"));
        meter.end(begin, ESTIMATE);
        meter.add(meter.begin());
        let toll = meter.take();
        assert_eq!(toll.estimated, ESTIMATE);
        assert!(toll.taken >= Nanos::from_micros(50), "{toll:?}");
        assert_eq!(meter.take().taken, Nanos::ZERO);
    }

    #[test]
    fn data_counts_for_nothing_and_ends_the_measuring() {
        let mut meter = TollMeter::default();
        meter.end(None, ESTIMATE);
        for _ in 0..MEASURED {
            let begin = meter.begin();
            work(begin.expect("a beginning"));
            meter.end(begin, Nanos::ZERO);
        }
        assert_eq!((meter.take().taken, meter.begin()), (Nanos::ZERO, None));
    }
}
