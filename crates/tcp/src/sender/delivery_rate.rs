//! Delivery rate: the bandwidth that an ACK proves (Linux's `tcp_rate.c`).
//!
//! Each sent segment keeps a [`TxSnapshot`] of the connection's progress. When it is delivered, the
//! difference to the progress by then is a sample over the longer of send interval and ACK
//! interval. Cost: a 40-byte copy per sent frame and O(1) per delivered frame and per ACK.

use crate::congestion::AckSample;
use crate::seq::SeqNumber;
use crate::time::{Instant, Nanos, Rate};

/// Progress of the connection when a segment was sent. Each frame in flight keeps a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxSnapshot {
    first_tx: Instant,
    delivered_time: Instant,
    delivered: u64,
    delivered_ce: u32,
    /// Modulo 2^32.
    lost: u32,
    in_flight: u32,
    is_app_limited: bool,
}

impl TxSnapshot {
    /// Returns the segments in flight when the segment had left, itself included.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Returns whether the segment left while the application had nothing more to send.
    pub fn is_app_limited(&self) -> bool {
        self.is_app_limited
    }
}

/// Newest segment among those that the current ACK delivered. There is one value per ACK.
#[derive(Clone, Copy, Debug, Default)]
pub struct Newest(Option<Prior>);

impl Newest {
    /// Returns the connection's `delivered` when the segment was sent; `None` if the ACK delivered
    /// nothing.
    pub fn prior_delivered(&self) -> Option<u64> {
        self.0.map(|prior| prior.snapshot.delivered)
    }
}

#[derive(Clone, Copy, Debug)]
struct Prior {
    snapshot: TxSnapshot,
    end_seq: SeqNumber,
    send_interval: Nanos,
}

/// The best rate seen, kept for `tcpi_delivery_rate`.
#[derive(Clone, Copy, Debug, Default)]
struct Reported {
    delivered: u32,
    interval: Nanos,
    is_app_limited: bool,
}

/// Counter of a connection's deliveries, which turns them into samples of the delivery rate.
#[derive(Clone, Copy, Debug)]
pub struct RateSampler {
    first_tx: Instant,
    delivered_time: Instant,
    delivered: u64,
    delivered_ce: u32,
    lost: u32,
    /// `delivered` at which the application-limited phase has passed; `None` outside of one.
    app_limited_until: Option<u64>,
    /// A round ends when a segment sent after this many deliveries is delivered.
    round_end: u64,
    reported: Reported,
}

impl Default for RateSampler {
    /// A new connection: limited by its application until something was delivered.
    fn default() -> Self {
        Self {
            first_tx: Instant::ZERO,
            delivered_time: Instant::ZERO,
            delivered: 0,
            delivered_ce: 0,
            lost: 0,
            app_limited_until: Some(0),
            round_end: 0,
            reported: Reported { is_app_limited: true, ..Reported::default() },
        }
    }
}

impl RateSampler {
    /// Returns the snapshot for a segment that leaves at `departure` (`tcp_rate_skb_sent`).
    ///
    /// `in_flight` segments are then in flight. `is_first` says that nothing was in flight before:
    /// the send interval starts here, so that idle time does not count.
    pub fn on_transmit(
        &mut self,
        departure: Instant,
        is_first: bool,
        in_flight: u32,
    ) -> TxSnapshot {
        if is_first {
            self.first_tx = departure;
            self.delivered_time = departure;
        }
        TxSnapshot {
            first_tx: self.first_tx,
            delivered_time: self.delivered_time,
            delivered: self.delivered,
            delivered_ce: self.delivered_ce,
            lost: self.lost,
            in_flight,
            is_app_limited: self.app_limited_until.is_some(),
        }
    }

    /// Counts `segments` as delivered, by a cumulative ACK or SACK (`tcp_count_delivered`).
    /// `is_ece` says whether the ACK echoed a mark.
    pub fn count_delivered(&mut self, segments: u32, is_ece: bool) {
        self.delivered = self.delivered.saturating_add(u64::from(segments));
        if is_ece {
            self.delivered_ce = self.delivered_ce.wrapping_add(segments);
        }
    }

    /// Counts `segments` of a frame as lost (`tp->lost`). Returns how many were lost since the
    /// frame left, these included.
    pub fn count_lost(&mut self, snapshot: &TxSnapshot, segments: u32) -> u32 {
        self.lost = self.lost.wrapping_add(segments);
        self.lost.wrapping_sub(snapshot.lost)
    }

    /// Takes segments of one frame that the current ACK delivered (`tcp_rate_skb_delivered`).
    ///
    /// A frame is taken once for each ACK that delivers a part of it, a segment once at all: one
    /// that was SACKed and is acknowledged later is not taken again.
    pub fn on_delivered(
        &mut self,
        newest: &mut Newest,
        snapshot: &TxSnapshot,
        sent_at: Instant,
        end_seq: SeqNumber,
    ) {
        let is_newest = newest.0.is_none_or(|prior| {
            sent_at > self.first_tx || sent_at == self.first_tx && end_seq.after(prior.end_seq)
        });
        if is_newest {
            self.first_tx = sent_at;
            newest.0 = Some(Prior {
                snapshot: *snapshot,
                end_seq,
                send_interval: sent_at.since(snapshot.first_tx),
            });
        }
    }

    /// Returns the segments marked lost so far, modulo 2^32. A segment that is lost again counts
    /// again.
    pub fn lost(&self) -> u32 {
        self.lost
    }

    /// Returns the segments marked lost since the newest delivered one left; 0 without a sample.
    pub fn lost_since(&self, newest: &Newest) -> u32 {
        newest.0.map_or(0, |prior| self.lost.wrapping_sub(prior.snapshot.lost))
    }

    /// Ends the processing of an ACK and fills the rate fields of `sample` (`tcp_rate_gen`).
    ///
    /// The fields are `delivered`, `delivered_ce`, `interval`, `prior_delivered`,
    /// `total_delivered`, `is_app_limited` and `is_round_start`. `sample.now`,
    /// `sample.acked_sacked` and `sample.min_rtt` must be set. There is no sample when nothing new
    /// was delivered, when the receiver reneged, or when the interval is shorter than the minimum
    /// round trip, which happens when ACKs are compressed or a retransmission's original is
    /// acknowledged.
    pub fn sample(&mut self, newest: &Newest, sample: &mut AckSample, is_reneging: bool) {
        if self.app_limited_until.is_some_and(|until| self.delivered > until) {
            self.app_limited_until = None;
        }
        if sample.acked_sacked > 0 {
            self.delivered_time = sample.now;
        }
        sample.total_delivered = self.delivered;
        let Some(prior) = newest.0 else { return };
        if is_reneging {
            return;
        }
        let before = prior.snapshot;
        sample.prior_delivered = before.delivered;
        sample.is_app_limited = before.is_app_limited;
        sample.tx_in_flight = before.in_flight;
        if before.delivered >= self.round_end {
            self.round_end = self.delivered;
            sample.is_round_start = true;
        }
        let ack_interval = sample.now.since(before.delivered_time);
        let interval = prior.send_interval.max(ack_interval);
        let is_too_short = sample.min_rtt != Nanos::MAX && interval < sample.min_rtt;
        if interval == Nanos::ZERO || is_too_short {
            return;
        }
        sample.interval = interval;
        let delivered = self.delivered.saturating_sub(before.delivered);
        sample.delivered = u32::try_from(delivered).unwrap_or(u32::MAX);
        sample.delivered_ce = self.delivered_ce.wrapping_sub(before.delivered_ce);
        self.report(sample);
    }

    /// A sample of an application-limited phase may understate the path, so it is reported only if
    /// it is the highest.
    fn report(&mut self, sample: &AckSample) {
        let new = u128::from(sample.delivered) * u128::from(self.reported.interval.0);
        let old = u128::from(self.reported.delivered) * u128::from(sample.interval.0);
        if !sample.is_app_limited || new >= old {
            self.reported = Reported {
                delivered: sample.delivered,
                interval: sample.interval,
                is_app_limited: sample.is_app_limited,
            };
        }
    }

    /// Marks samples as limited by the application until all segments now in flight are delivered
    /// (`tcp_rate_check_app_limited`).
    ///
    /// The caller checks that the application has nothing to send although window and path have
    /// room.
    pub fn mark_app_limited(&mut self, in_flight: u32) {
        self.app_limited_until = Some(self.delivered.saturating_add(u64::from(in_flight)).max(1));
    }

    /// Returns whether segments sent now are marked as limited by the application.
    pub fn is_app_limited(&self) -> bool {
        self.app_limited_until.is_some()
    }

    /// Returns the segments delivered so far (`tcpi_delivered`).
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Returns the delivered segments that the receiver reported as marked (`tcpi_delivered_ce`),
    /// modulo 2^32.
    pub fn delivered_ce(&self) -> u32 {
        self.delivered_ce
    }

    /// Returns the last rate, or the highest one of an application-limited phase
    /// (`tcpi_delivery_rate`), for segments of `mss` bytes; `None` before the first sample.
    pub fn rate(&self, mss: u32) -> Option<Rate> {
        let Reported { delivered, interval, .. } = self.reported;
        let bytes = u64::from(delivered) * u64::from(mss);
        (interval > Nanos::ZERO).then(|| Rate::from_bytes_in(bytes, interval))
    }

    /// Returns whether [`rate`](Self::rate) was limited by the application
    /// (`tcpi_delivery_rate_app_limited`).
    pub fn is_rate_app_limited(&self) -> bool {
        self.reported.is_app_limited
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ops::{Deref, DerefMut};

    /// A sampler and what the ACK being processed has delivered.
    #[derive(Default)]
    struct Sampler {
        sampler: RateSampler,
        newest: Newest,
    }

    impl Sampler {
        fn on_delivered(&mut self, shot: &TxSnapshot, at: Instant, end: SeqNumber) {
            self.sampler.on_delivered(&mut self.newest, shot, at, end);
        }

        fn sample(&mut self, sample: &mut AckSample, is_reneging: bool) {
            let newest = core::mem::take(&mut self.newest);
            self.sampler.sample(&newest, sample, is_reneging);
        }
    }

    impl Deref for Sampler {
        type Target = RateSampler;
        fn deref(&self) -> &RateSampler {
            &self.sampler
        }
    }

    impl DerefMut for Sampler {
        fn deref_mut(&mut self) -> &mut RateSampler {
            &mut self.sampler
        }
    }

    fn ms(n: u64) -> Instant {
        Instant::ZERO + Nanos::from_millis(n)
    }

    fn ack(sampler: &mut Sampler, now: Instant, segments: u32) -> AckSample {
        sampler.count_delivered(segments, false);
        let mut sample = AckSample {
            now,
            acked_sacked: segments,
            min_rtt: Nanos::from_millis(10),
            ..AckSample::default()
        };
        sampler.sample(&mut sample, false);
        sample
    }

    #[test]
    fn a_snapshot_is_small() {
        assert!(size_of::<TxSnapshot>() <= 40);
    }

    #[test]
    fn rate_is_delivered_over_the_longer_interval() {
        let mut sampler = Sampler::default();
        let first = sampler.on_transmit(ms(0), true, 1);
        let second = sampler.on_transmit(ms(5), false, 1);
        sampler.on_delivered(&first, ms(0), SeqNumber(1000));
        let sample = ack(&mut sampler, ms(10), 1);
        assert_eq!((sample.delivered, sample.interval), (1, Nanos::from_millis(10)));
        let third = sampler.on_transmit(ms(10), false, 1);
        sampler.on_delivered(&second, ms(5), SeqNumber(2000));
        sampler.on_delivered(&third, ms(10), SeqNumber(3000));
        let sample = ack(&mut sampler, ms(30), 2);
        assert_eq!((sample.prior_delivered, sample.delivered), (1, 2));
        assert_eq!(sample.interval, Nanos::from_millis(20), "the ACK interval");
        assert_eq!(sampler.rate(1000), Some(Rate(100_000)));
    }

    #[test]
    fn compressed_acks_do_not_inflate_the_rate() {
        let mut sampler = Sampler::default();
        let shots: Vec<_> = (0..10).map(|i| sampler.on_transmit(ms(i * 10), i == 0, 1)).collect();
        sampler.on_delivered(&shots[0], ms(0), SeqNumber(1));
        ack(&mut sampler, ms(100), 1);
        for (i, shot) in shots.iter().enumerate().skip(1) {
            sampler.on_delivered(shot, ms(i as u64 * 10), SeqNumber(i as u32 + 1));
        }
        let sample = ack(&mut sampler, ms(101), 9);
        assert_eq!((sample.delivered, sample.interval), (10, Nanos::from_millis(101)));
    }

    #[test]
    fn each_ack_for_a_part_of_a_frame_is_a_sample() {
        let mut sampler = Sampler::default();
        let frame = sampler.on_transmit(ms(0), true, 4);
        sampler.on_delivered(&frame, ms(0), SeqNumber(1));
        let first = ack(&mut sampler, ms(20), 1);
        assert_eq!((first.delivered, first.is_round_start), (1, true));
        sampler.on_delivered(&frame, ms(0), SeqNumber(4));
        let last = ack(&mut sampler, ms(30), 3);
        assert_eq!((last.delivered, last.interval), (4, Nanos::from_millis(30)));
        assert!(!last.is_round_start, "one frame is in one round");
        assert_eq!(ack(&mut sampler, ms(40), 0).interval, Nanos::ZERO, "nothing was delivered");
    }

    #[test]
    fn short_intervals_and_reneging_give_no_sample() {
        let mut sampler = Sampler::default();
        let shot = sampler.on_transmit(ms(0), true, 1);
        sampler.on_delivered(&shot, ms(0), SeqNumber(1));
        assert_eq!(ack(&mut sampler, ms(9), 1).delivered, 0);
        let shot = sampler.on_transmit(ms(10), true, 1);
        sampler.on_delivered(&shot, ms(10), SeqNumber(2));
        let mut sample = AckSample { now: ms(50), acked_sacked: 1, ..AckSample::default() };
        sampler.sample(&mut sample, true);
        assert_eq!((sample.delivered, sample.interval), (0, Nanos::ZERO));
        assert_eq!(sampler.rate(1000), None);
    }

    #[test]
    fn application_limit_marks_what_is_sent_until_the_flight_is_delivered() {
        let mut sampler = Sampler::default();
        let fresh = sampler.on_transmit(ms(0), true, 1);
        sampler.on_delivered(&fresh, ms(0), SeqNumber(1));
        assert!(ack(&mut sampler, ms(10), 1).is_app_limited, "a new connection");
        assert!(!sampler.is_app_limited());
        sampler.mark_app_limited(2);
        let marked = sampler.on_transmit(ms(20), true, 1);
        ack(&mut sampler, ms(25), 2);
        assert!(sampler.is_app_limited());
        sampler.on_delivered(&marked, ms(20), SeqNumber(4));
        assert!(ack(&mut sampler, ms(30), 1).is_app_limited);
        assert!(!sampler.is_app_limited() && sampler.is_rate_app_limited());
    }

    #[test]
    fn a_round_starts_once_per_flight() {
        let mut sampler = Sampler::default();
        let mut starts = Vec::new();
        let mut flight: Vec<_> = (0..4).map(|i| sampler.on_transmit(ms(0), i == 0, 1)).collect();
        for round in 1..4 {
            let mut next = Vec::new();
            for shot in &flight {
                sampler.on_delivered(shot, ms(20 * (round - 1)), SeqNumber(0));
                starts.push(ack(&mut sampler, ms(20 * round), 1).is_round_start);
                next.push(sampler.on_transmit(ms(20 * round), false, 1));
            }
            flight = next;
        }
        let expected = [true, false, false, false].repeat(3);
        assert_eq!(starts, expected);
    }
}
