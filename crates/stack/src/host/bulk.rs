//! Whether a flow moves bulk data.

use neap_tcp::time::Instant;

/// Bytes that a flow receives in a [`SPAN`], at the least, to be in bulk: 20 Mbit/s.
const RECEIVED: u32 = 256 << 10;
/// The same while the driver is slower than the senders. A thousand flows that share what it can
/// take have less than [`RECEIVED`] each, and what waits is theirs.
const RECEIVED_IN_A_CROWD: u32 = 32 << 10;
/// Bytes that a flow sends in a [`SPAN`], at the least, to be in bulk: 670 Mbit/s. What flows send
/// makes no other flow wait. But a device that takes bulk by a thread of its own takes more from a
/// few flows. It takes no more from many, each of which has less than this.
const SENT: u32 = 8 << 20;
/// Time over which bytes are counted, milliseconds. A flow stays in bulk for at least this long
/// after it moved so many, so that what waits in the bulk queue is received before the other queue
/// has more.
const SPAN: u32 = 100;

/// What a flow receives and sends. Cost: two comparisons per segment or visit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Volume {
    /// When the counting began, milliseconds of a clock that begins again after 49 days.
    since: u32,
    /// Bytes since then.
    received: u32,
    sent: u32,
    /// The span of the shard's [`Receivers`](super::receivers::Receivers) in which the flow was
    /// counted last; 0 before the first.
    counted_in: u16,
    receives_bulk: bool,
    sends_bulk: bool,
}

impl Volume {
    /// Counts bytes that arrived at `now`. `is_behind` says that the driver is slower than the
    /// senders.
    pub(crate) fn add_received(&mut self, now: Instant, bytes: u32, is_behind: bool) {
        self.begin_span(now, is_behind);
        self.received = self.received.saturating_add(bytes);
        self.receives_bulk |= self.received >= least_received(is_behind);
    }

    /// Counts bytes that left by `now`.
    pub(crate) fn add_sent(&mut self, now: Instant, bytes: u32, is_behind: bool) {
        self.begin_span(now, is_behind);
        self.sent = self.sent.saturating_add(bytes);
        self.sends_bulk |= self.sent >= SENT;
    }

    /// Begins a new span if the last one is over.
    fn begin_span(&mut self, now: Instant, is_behind: bool) {
        let now = (now.as_nanos() / 1_000_000) as u32;
        let passed = now.wrapping_sub(self.since);
        if passed >= SPAN {
            let is_recent = passed / 2 < SPAN;
            self.receives_bulk = is_recent && self.received >= least_received(is_behind);
            self.sends_bulk = is_recent && self.sent >= SENT;
            (self.since, self.received, self.sent) = (now, 0, 0);
        }
    }

    /// Where the shard notes that it has counted the flow.
    pub(crate) fn counted_in(&mut self) -> &mut u16 {
        &mut self.counted_in
    }

    /// Whether the flow received in bulk in this span or the one before.
    pub(crate) fn receives_bulk(&self) -> bool {
        self.receives_bulk
    }

    /// Whether the flow received or sent in bulk in this span or the one before.
    pub(crate) fn is_bulk(&self) -> bool {
        self.receives_bulk || self.sends_bulk
    }
}

fn least_received(is_behind: bool) -> u32 {
    if is_behind { RECEIVED_IN_A_CROWD } else { RECEIVED }
}

#[cfg(test)]
mod tests {
    use super::*;
    use neap_tcp::time::Nanos;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(0) + Nanos::from_millis(millis)
    }

    #[test]
    fn a_flow_is_in_bulk_until_a_span_after_it_received_little() {
        let mut volume = Volume::default();
        volume.add_received(at(1000), RECEIVED - 1, false);
        assert!(!volume.is_bulk());
        volume.add_received(at(1001), 1, false);
        assert!(volume.is_bulk() && volume.receives_bulk());
        volume.add_received(at(1101), 1, false);
        assert!(volume.is_bulk(), "what it received in the span before waits perhaps");
        volume.add_received(at(1200), 1, false);
        assert!(volume.is_bulk());
        volume.add_received(at(1201), 1, false);
        assert!(!volume.is_bulk());
    }

    #[test]
    fn a_flow_is_in_bulk_while_it_sends_much() {
        let mut volume = Volume::default();
        volume.add_sent(at(1000), SENT - 1, false);
        assert!(!volume.is_bulk());
        volume.add_sent(at(1099), 1, false);
        assert!(volume.is_bulk() && !volume.receives_bulk());
        volume.add_received(at(1100), 1, false);
        assert!(volume.is_bulk(), "an ACK begins a span too");
        volume.add_sent(at(1200), 1, false);
        assert!(!volume.is_bulk());
    }

    #[test]
    fn a_pause_ends_bulk() {
        let mut volume = Volume::default();
        volume.add_received(at(1000), RECEIVED, false);
        volume.add_received(at(5000), 1, false);
        assert!(!volume.is_bulk());
    }

    #[test]
    fn less_is_bulk_while_the_driver_is_behind() {
        let mut volume = Volume::default();
        volume.add_received(at(1000), RECEIVED_IN_A_CROWD, false);
        assert!(!volume.is_bulk());
        volume.add_received(at(1001), 1, true);
        assert!(volume.is_bulk());
        volume.add_received(at(1101), RECEIVED_IN_A_CROWD, true);
        volume.add_received(at(1201), 1, false);
        assert!(!volume.is_bulk(), "the driver has caught up");
    }
}
