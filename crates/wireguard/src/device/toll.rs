//! What handshakes take of the thread that receives, beside what the engine has estimated for them.
//!
//! The clock is that of the wall. The thread's own clock would leave out the time of others, but a
//! look at it takes half a microsecond, a twentieth of what is measured.
//!
//! Cost: two looks at the clock for each call of the system that receives or sends answers, for a
//! few after one that brought handshakes; nothing while there are none.

use crate::engine::Toll;
use neap_device::clock;
use neap_tcp::time::{Instant, Nanos};

/// So many calls are measured after one that brought handshakes. Data comes in between.
const MEASURED: u8 = 16;

/// Measures the calls that bring handshakes, from the second of a flood on.
#[derive(Debug, Default)]
pub(crate) struct TollMeter {
    /// Calls that will be measured yet.
    left: u8,
    toll: Toll,
}

impl TollMeter {
    /// The beginning of a call, if it is to be measured.
    pub(crate) fn begin(&self) -> Option<Instant> {
        (self.left > 0).then(clock::now)
    }

    /// The end of a call that has brought handshakes for which the engine estimates `estimated`;
    /// zero if it has brought none that were looked at.
    pub(crate) fn end(&mut self, begin: Option<Instant>, estimated: Nanos) {
        if estimated == Nanos::ZERO {
            self.left = self.left.saturating_sub(1);
            return;
        }
        self.left = MEASURED;
        if let Some(begin) = begin {
            self.add(begin);
            self.toll.estimated = self.toll.estimated + estimated;
        }
    }

    /// The end of a call that has sent answers to handshakes.
    pub(crate) fn add_answers(&mut self, begin: Option<Instant>) {
        if let Some(begin) = begin {
            self.add(begin);
        }
    }

    fn add(&mut self, begin: Instant) {
        self.toll.taken = self.toll.taken + clock::now().since(begin);
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
        meter.add_answers(meter.begin());
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
