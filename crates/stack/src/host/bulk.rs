//! Whether a flow receives in bulk.

use neap_tcp::time::{Instant, Nanos};

/// Bytes that a bulk flow receives in a [`SPAN`]: 20 Mbit/s.
const BULK_BYTES: u32 = 256 << 10;
/// The same while the driver is slower than the senders. A thousand flows that share what it can
/// take have less than [`BULK_BYTES`] each, and what waits is theirs.
const CROWDED_BULK_BYTES: u32 = 32 << 10;
/// Time over which bytes are counted. A flow stays in bulk for at least this long after it received
/// so many, so that what waits in the bulk queue is received before the other queue has more.
const SPAN: Nanos = Nanos::from_millis(100);

/// What a flow receives. Cost: two comparisons per segment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Volume {
    /// When the counting began.
    since: Instant,
    /// Bytes since then.
    bytes: u32,
    is_bulk: bool,
    /// The span of the shard's [`Receivers`](super::receivers::Receivers) in which the flow was
    /// counted last; 0 before the first.
    counted_in: u16,
}

impl Volume {
    /// Counts bytes that arrived at `now`. `is_behind` says that the driver is slower than the
    /// senders.
    pub(crate) fn add(&mut self, now: Instant, bytes: u32, is_behind: bool) {
        let least = if is_behind { CROWDED_BULK_BYTES } else { BULK_BYTES };
        let passed = now.since(self.since);
        if passed >= SPAN {
            self.is_bulk = passed / 2 < SPAN && self.bytes >= least;
            (self.since, self.bytes) = (now, 0);
        }
        self.bytes = self.bytes.saturating_add(bytes);
        self.is_bulk |= self.bytes >= least;
    }

    /// Where the shard notes that it has counted the flow.
    pub(crate) fn counted_in(&mut self) -> &mut u16 {
        &mut self.counted_in
    }

    /// Whether the flow received in bulk in this span or the one before.
    pub(crate) fn is_bulk(&self) -> bool {
        self.is_bulk
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(0) + Nanos::from_millis(millis)
    }

    #[test]
    fn a_flow_is_in_bulk_until_a_span_after_it_received_little() {
        let mut volume = Volume::default();
        volume.add(at(1000), BULK_BYTES - 1, false);
        assert!(!volume.is_bulk());
        volume.add(at(1001), 1, false);
        assert!(volume.is_bulk());
        volume.add(at(1101), 1, false);
        assert!(volume.is_bulk(), "what it received in the span before waits perhaps");
        volume.add(at(1200), 1, false);
        assert!(volume.is_bulk());
        volume.add(at(1201), 1, false);
        assert!(!volume.is_bulk());
    }

    #[test]
    fn a_pause_ends_bulk() {
        let mut volume = Volume::default();
        volume.add(at(1000), BULK_BYTES, false);
        volume.add(at(5000), 1, false);
        assert!(!volume.is_bulk());
    }

    #[test]
    fn less_is_bulk_while_the_driver_is_behind() {
        let mut volume = Volume::default();
        volume.add(at(1000), CROWDED_BULK_BYTES, false);
        assert!(!volume.is_bulk());
        volume.add(at(1001), 1, true);
        assert!(volume.is_bulk());
        volume.add(at(1101), CROWDED_BULK_BYTES, true);
        volume.add(at(1201), 1, false);
        assert!(!volume.is_bulk(), "the driver has caught up");
    }
}
