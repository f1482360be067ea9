//! Size of frames: how many segments one frame carries, and whether it waits for more
//! (`tcp_tso_autosize`, `tso_should_defer`, `tcp_mss_split_point`).
//!
//! Everything here is a pure function of a handful of numbers.

use crate::config::{Config, SmallQueueRule, TsoBonus, TsoDefer};
use crate::time::{Instant, Nanos, Rate};

/// From this round trip on only Linux's rule bounds frames: its millisecond is a 32nd of it, and
/// the larger frames cost less at both ends. Flows that asked for pacing asked for short frames:
/// theirs is twice that.
const LONG_ROUND_TRIP: Nanos = Nanos::from_millis(32);

/// What a paced flow may send at once where nothing waits below, as time at its rate: a second of
/// its rate is met within a hundredth, whenever it begins.
pub const PACED_BURST: Nanos = Nanos::from_millis(10);

/// What the flows of a device do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Rate at which all of them send.
    pub rate: Rate,
    /// Doublings of the time that may be queued, in parts of 256: the mean of what each has learnt,
    /// weighted by what it sends.
    pub boost: u16,
    /// Whether the device passes frames on at once, so that they do not wait for each other there.
    pub is_at_once: bool,
}

/// Facts about a flow from which the size of its frames follows.
#[derive(Clone, Copy, Debug)]
pub struct FlowRate {
    /// Pacing rate (`sk_pacing_rate`); unlimited before the first round trip.
    pub pacing: Rate,
    /// Rate at which the flow moves data, without the pacing ratio; unlimited before the first
    /// sample.
    pub moved: Rate,
    /// What the flows of the device do together. `None` if it is not known, or if the flow is paced
    /// and competes with nobody.
    pub load: Option<Load>,
    /// Minimum round-trip time; [`Nanos::MAX`] before the first sample.
    pub min_rtt: Nanos,
    /// Shift by which the rate is divided (`sk_pacing_shift`).
    pub shift: u32,
    /// Whether the controller or the application asked for pacing.
    pub is_paced: bool,
    /// Whether frames are on the wire as soon as they are handed down, so that their size costs no
    /// delay.
    pub completes_at_once: bool,
    /// Doublings of the time that may be queued, because the queue below ran empty: what this flow
    /// has learnt.
    pub queue_boost: u8,
    /// Time between a frame's departure and its completion.
    pub lateness: Nanos,
    /// Segments that a paced frame may have however slow the flow is
    /// ([`Crowd::segments`](super::crowd::Crowd::segments)).
    pub crowd_segments: u8,
}

/// Size of a frame, and the bytes that may be below TCP at that size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Segments per frame.
    pub segments: u32,
    /// Bytes of one frame's worth of time, for the small-queue limit.
    pub queue_bytes: u64,
}

/// Segments per frame (`tcp_tso_segs` over `tcp_tso_autosize`), at least one.
///
/// `gso_bytes` and `gso_segs` are what the path takes, `min_segs` the floor of the controller or of
/// `tcp_min_tso_segs`. Linux's formula is rate >> shift, plus a bonus that halves with each
/// 2^`tcp_tso_rtt_log` microseconds of minimum RTT. Its price is two 64 KB frames below any socket
/// on a LAN, 10 ms at 100 Mbit/s, or half a second of a flow that asked for 1 Mbit/s; so with
/// [`TsoBonus::Bounded`] a frame takes at most `tso_max_usecs` at the rate of the flow, unless its
/// round trip is long. Where nothing waits below, the bound of paced flows is 10 ms, or
/// `crowd_segments`, and others have none.
pub fn sizes(
    config: &Config,
    flow: &FlowRate,
    mss: u32,
    gso_bytes: u32,
    gso_segs: u32,
    min_segs: u32,
) -> Sizes {
    let mss = mss.max(1);
    // Two frames fit the cap of what is below.
    let gso_bytes = gso_bytes.min((config.tcp_limit_output_bytes / 2).max(mss));
    let scaled = flow.pacing.0.checked_shr(flow.shift).unwrap_or(0);
    if !config.tso_autosizing || config.tso_at_write {
        let segments = (gso_bytes / mss).clamp(1, gso_segs.max(1));
        return Sizes { segments, queue_bytes: scaled };
    }
    let mut bytes = scaled.min(u64::from(gso_bytes));
    let steps = flow.min_rtt.as_micros().checked_shr(config.tcp_tso_rtt_log).unwrap_or(0);
    if steps < 32 && config.tso_bonus != TsoBonus::Off {
        bytes += u64::from(gso_bytes >> steps);
    }
    let mut queue_bytes = scaled;
    let is_bounded = config.tso_bonus == TsoBonus::Bounded;
    if joins_departures(config, flow) {
        let least = u64::from(flow.crowd_segments) * u64::from(mss);
        bytes = bytes.min(flow.pacing.bytes_in(PACED_BURST).max(least));
    } else if is_bounded && !flow.completes_at_once {
        // A wider shift is a device's wish for larger aggregates; it scales the time bound too.
        let micros = u64::from(config.tso_max_usecs) << 10u32.saturating_sub(flow.shift).min(10);
        let longest = Nanos::from_micros(micros);
        let long = Nanos(LONG_ROUND_TRIP.0 << u32::from(flow.is_paced));
        let common = common_rate(flow);
        if flow.min_rtt < long || flow.min_rtt == Nanos::MAX {
            bytes = bytes.min(frame_rate(flow, common).bytes_in(longest));
        }
        let bound = common.bytes_in(longest);
        queue_bytes = boosted(flow, bound.saturating_mul(2));
    }
    let segments = (bytes.min(u64::from(gso_bytes)) / u64::from(mss)) as u32;
    // No floor lifts a frame above what the path takes, as where one segment is all of it.
    let most = (gso_bytes / mss).min(gso_segs).max(1);
    let segments = segments.max(min_segs).clamp(1, most);
    let late = late_bytes(config, flow, segments.saturating_mul(mss));
    Sizes { segments, queue_bytes: queue_bytes.saturating_add(late) }
}

/// Returns the rate that bounds what a flow may have below: the geometric mean of its own rate and
/// that of all flows of the device.
///
/// In a queue that several flows share, each moves what it may have there. A bound by its own rate
/// alone would keep any shares as they are, because nothing is lost that could make them equal.
/// This way the logarithm of the ratio of two shares halves whenever rates are measured. It also
/// keeps frames from shrinking with the number of flows, where small frames cost the device some of
/// its rate. A flow that is alone has the bound by its own rate.
fn common_rate(flow: &FlowRate) -> Rate {
    let total = flow.load.map_or(flow.moved, |load| load.rate.max(flow.moved));
    if total == flow.moved {
        return total;
    }
    // The root of 64 bits, enough below 4 GB/s each, takes a fifth of that of 128.
    match flow.moved.0.checked_mul(total.0) {
        Some(product) => Rate(product.isqrt()),
        None => {
            let product = u128::from(flow.moved.0) * u128::from(total.0);
            Rate(u64::try_from(product.isqrt()).unwrap_or(u64::MAX))
        }
    }
}

/// Returns whether a paced flow may send at once what is due within [`PACED_BURST`], up to what the
/// small queue may hold. Each wake-up costs more than a frame, and nothing waits below.
pub fn joins_departures(config: &Config, flow: &FlowRate) -> bool {
    let is_sized = config.tso_autosizing && !config.tso_at_write;
    let is_bounded = config.tso_bonus == TsoBonus::Bounded;
    is_sized && is_bounded && flow.completes_at_once && flow.is_paced
}

/// Returns the rate that bounds how long a frame may take; `common` is [`common_rate`].
///
/// It is that of all flows where the device passes frames on at once: a frame keeps others waiting
/// only while the device works on it. A queue that takes frames off the account of their socket
/// looks like such a device, and has that rate too.
fn frame_rate(flow: &FlowRate, common: Rate) -> Rate {
    match flow.load {
        Some(load) if load.is_at_once => load.rate.max(flow.moved),
        _ => common,
    }
}

/// Returns `bytes`, doubled as often as all flows of the device do in the mean.
///
/// A flow finds out by trials whether more time below delivers more. In a queue that is shared it
/// always does, at the cost of others. So what one flow has learnt counts for all, and delivers
/// more only if the queue was empty.
fn boosted(flow: &FlowRate, bytes: u64) -> u64 {
    let boost = flow.load.map_or(u16::from(flow.queue_boost) << 8, |load| load.boost);
    let doubled = bytes.saturating_mul(1 << (boost >> 8).min(16));
    doubled.saturating_add((doubled >> 8).saturating_mul(u64::from(boost & 0xff)))
}

/// Memory of what has left and still counts as below, in frames of so many bytes; with an eighth
/// more, since a flow that is held back moves less than it could.
fn late_bytes(config: &Config, flow: &FlowRate, frame: u32) -> u64 {
    if flow.lateness == Nanos::ZERO {
        return 0;
    }
    // What is acknowledged counts no longer.
    let bytes = flow.moved.bytes_in(flow.lateness.min(flow.min_rtt));
    let frames = bytes / u64::from(frame.max(1));
    let truesize = bytes.saturating_add(frames.saturating_mul(config.skb_overhead.into()));
    truesize.saturating_add(truesize / 8)
}

/// Returns the small-queue limit for a frame that counts `truesize` bytes
/// (`tcp_small_queue_check`).
///
/// It is two frames or a time's worth of the rate, at most `tcp_limit_output_bytes`; doubled for
/// retransmissions.
pub fn small_queue_limit(
    config: &Config,
    queue_bytes: u64,
    truesize: u32,
    rtx: bool,
    is_paced: bool,
) -> u64 {
    let cap = u64::from(config.tcp_limit_output_bytes);
    if config.small_queue_rule == SmallQueueRule::Fixed {
        return cap;
    }
    let limit = queue_bytes.max(2 * u64::from(truesize));
    let is_capped = config.small_queue_cap_paced || !is_paced;
    (if is_capped { limit.min(cap) } else { limit }) << u32::from(rtx)
}

/// Facts from which a deferral is decided (`tcp_tso_should_defer`).
#[derive(Clone, Copy, Debug)]
pub struct Deferral {
    /// Whether the connection is in recovery or worse.
    pub in_recovery: bool,
    /// Current time.
    pub now: Instant,
    /// Departure of the last frame, which may be in the future.
    pub last_departure: Instant,
    /// Bytes that the congestion window leaves.
    pub cwnd_left: u64,
    /// Bytes that the peer's window leaves.
    pub rwnd_left: u64,
    /// Bytes of the smaller one of congestion window and peer's window.
    pub window: u64,
    /// Bytes that wait.
    pub unsent: u32,
    /// Bytes in the first buffer that waits.
    pub len: u32,
    /// Most segments per frame.
    pub max_segs: u32,
    /// Payload of a full segment, in bytes.
    pub mss: u32,
    /// Departure of the oldest unacknowledged frame; `None` when nothing is in flight.
    pub oldest_sent: Option<Instant>,
    /// Smoothed round-trip time.
    pub srtt: Nanos,
    /// Whether a FIN or an end of record ends the queue, so that no more bytes will come.
    pub is_final: bool,
}

/// Reason why a frame waits to grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeferredBy {
    /// The congestion window has less room than bytes wait.
    Cwnd,
    /// The peer's window has less room than bytes wait.
    Rwnd,
    /// The application may add bytes.
    Application,
}

/// Returns why a frame of several segments should wait for more window or data, if it should.
///
/// There is no timer: either the next ACK is sure to come soon, or the frame does not wait.
pub fn should_defer(config: &Config, d: &Deferral) -> Option<DeferredBy> {
    let oldest = d.oldest_sent?;
    let recent = d.now.since(d.last_departure) <= Nanos::from_millis(1);
    if d.in_recovery || !recent {
        return None;
    }
    let mss = u64::from(d.mss);
    let limit = d.cwnd_left.min(d.rwnd_left);
    if limit >= u64::from(d.max_segs) * mss {
        return None;
    }
    if d.unsent > d.len && limit >= u64::from(d.len) {
        return None;
    }
    let enough = match config.tcp_tso_win_divisor {
        0 => limit > 3 * mss,
        divisor => limit >= d.window / u64::from(divisor),
    };
    if enough {
        return None;
    }
    let is_far = match config.tso_defer {
        // The ACK of the oldest frame is expected at its departure plus srtt.
        TsoDefer::NextAck => (oldest + d.srtt).since(d.now) > Nanos((d.srtt.0 / 2).min(1_000_000)),
        TsoDefer::HalfRtt => d.now.since(oldest) < d.srtt / 2,
    };
    if is_far {
        return None;
    }
    let len = u64::from(d.len);
    if d.cwnd_left < d.rwnd_left && d.cwnd_left <= len {
        Some(DeferredBy::Cwnd)
    } else if d.rwnd_left <= len {
        Some(DeferredBy::Rwnd)
    } else {
        (!d.is_final).then_some(DeferredBy::Application)
    }
}

/// Returns the bytes to cut for one frame (`tcp_mss_split_point`): whole segments, unless the queue
/// ends here and Nagle lets a short one go.
pub fn split_point(unsent: u32, window: u32, mss: u32, segments: u32, short_may_go: bool) -> u32 {
    let max = mss.saturating_mul(segments);
    let needed = unsent.min(window);
    if max <= needed {
        return max;
    }
    let partial = needed % mss;
    // What the window cuts short is not the end of the data, so it waits for a whole segment.
    if needed > mss && partial != 0 && (needed < unsent || !short_may_go) {
        return needed - partial;
    }
    needed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(rate: Rate, min_rtt: Nanos) -> FlowRate {
        FlowRate {
            pacing: rate,
            moved: rate,
            load: None,
            min_rtt,
            shift: 10,
            is_paced: false,
            completes_at_once: false,
            queue_boost: 0,
            lateness: Nanos::ZERO,
            crowd_segments: 0,
        }
    }

    fn linux() -> Config {
        Config { tso_bonus: TsoBonus::Linux, ..Config::default() }
    }

    fn segs(config: &Config, flow: &FlowRate) -> u32 {
        sizes(config, flow, 1448, 65215, 65535, 2).segments
    }

    #[test]
    fn linux_bonus_by_minimum_rtt() {
        let slow = Rate(1);
        for (micros, want) in [(100, 45), (600, 22), (1100, 11), (1600, 5), (2100, 2), (3100, 2)] {
            let got = segs(&linux(), &flow(slow, Nanos::from_micros(micros)));
            assert_eq!(got, want, "{micros} us");
        }
    }

    #[test]
    fn one_millisecond_at_the_rate() {
        let far = Nanos::from_millis(40);
        assert_eq!(segs(&linux(), &flow(Rate(6_000_000), far)), 4);
        assert_eq!(segs(&linux(), &flow(Rate::UNLIMITED, Nanos::MAX)), 45);
        assert_eq!(segs(&linux(), &flow(Rate(100), far)), 2);
    }

    #[test]
    fn the_bound_keeps_two_frames_under_a_millisecond() {
        let near = Nanos::from_micros(200);
        for mbit in [100, 1000, 10_000] {
            let rate = Rate::from_bits(mbit * 1_000_000);
            let sizes = sizes(&Config::default(), &flow(rate, near), 1448, 65215, 65535, 2);
            let frame = u64::from(sizes.segments) * 1538;
            assert!(rate.time_for(2 * frame) < Nanos::from_millis(1), "{mbit} Mbit/s");
            assert!(rate.time_for(sizes.queue_bytes) < Nanos::from_millis(1));
        }
    }

    #[test]
    fn what_leaves_until_a_late_completion_is_on_top_of_the_limit() {
        let rate = Rate(125_000_000);
        let near = flow(rate, Nanos::from_millis(4));
        let queue =
            |flow: &FlowRate| sizes(&Config::default(), flow, 1448, 65215, 65535, 2).queue_bytes;
        let late = |millis| FlowRate { lateness: Nanos::from_millis(millis), ..near };
        let more = queue(&late(1)) - queue(&near);
        assert!(
            (140_000..160_000).contains(&more),
            "a millisecond, overhead and an eighth: {more}"
        );
        assert_eq!(queue(&late(9)), queue(&late(4)), "what is acknowledged counts no longer");
    }

    #[test]
    fn long_round_trips_allow_larger_frames_up_to_those_of_linux() {
        let config = Config::default();
        let far = flow(Rate(25_000_000), Nanos::from_millis(40));
        let linux = Config { tso_bonus: TsoBonus::Off, ..Config::default() };
        assert_eq!(segs(&config, &far), segs(&linux, &far));
        for rtt in [Nanos::from_millis(31), Nanos::MAX] {
            let near = flow(Rate(25_000_000), rtt);
            assert_eq!(segs(&config, &near), 5, "300 us");
        }
        let paced = |millis| {
            let far = flow(Rate(25_000_000), Nanos::from_millis(millis));
            segs(&config, &FlowRate { is_paced: true, ..far })
        };
        assert_eq!((paced(63), paced(64)), (5, segs(&linux, &far)));
        // What may be below does not grow with it: two frames, or the time of short paths.
        assert_eq!(sizes(&config, &far, 1448, 65215, 65535, 2).queue_bytes, 15_000);
    }

    /// What each flow moves after some rounds, of a device that moves `total` bytes per second: a
    /// part of it for each byte that it may have below.
    fn after_rounds(mut shares: Vec<f64>, total: f64, boosts: &[u8]) -> Vec<f64> {
        let config = Config::default();
        let boost = boosts.iter().map(|&boost| u64::from(boost) << 8).sum::<u64>();
        let boost = (boost / boosts.len() as u64) as u16;
        for _ in 0..12 {
            let below = |(&share, &queue_boost): (&f64, &u8)| {
                let moved = Rate((share * total) as u64);
                let load = Some(Load { rate: Rate(total as u64), boost, is_at_once: false });
                let flow = flow(moved, Nanos::from_micros(200));
                let flow = FlowRate { load, queue_boost, ..flow };
                sizes(&config, &flow, 1448, 65215, 65535, 2).queue_bytes as f64
            };
            let below: Vec<f64> = shares.iter().zip(boosts).map(below).collect();
            let sum: f64 = below.iter().sum();
            shares = below.into_iter().map(|below| below / sum).collect();
        }
        shares
    }

    #[test]
    fn shares_of_one_queue_become_equal() {
        let start = vec![0.001, 0.009, 0.09, 0.4, 0.5];
        for boosts in [[0; 5], [0, 0, 6, 1, 3]] {
            for share in after_rounds(start.clone(), 125e6, &boosts) {
                assert!((0.19..0.21).contains(&share), "{share}");
            }
        }
    }

    #[test]
    fn a_flow_that_is_alone_keeps_the_bound_by_its_own_rate() {
        let alone = flow(Rate(12_500_000), Nanos::from_micros(200));
        let sizes = |flow: &FlowRate| sizes(&Config::default(), flow, 1448, 65215, 65535, 2);
        let with = |rate| {
            let load = Some(Load { rate: Rate(rate), boost: 3 << 8, is_at_once: false });
            sizes(&FlowRate { load, queue_boost: 3, ..alone })
        };
        let without = sizes(&FlowRate { queue_boost: 3, ..alone });
        assert_eq!(with(12_500_000), without);
        assert_eq!(with(1), without, "what was sent before an idle time says nothing");
        assert_eq!(with(50_000_000).queue_bytes, 2 * without.queue_bytes, "four flows");
    }

    #[test]
    fn a_device_that_passes_frames_on_at_once_bounds_them_by_the_rate_of_all() {
        let one_of_many = flow(Rate(1_000_000), Nanos::from_micros(200));
        let segments = |rate, is_at_once| {
            let load = Some(Load { rate: Rate(rate), boost: 0, is_at_once });
            segs(&Config::default(), &FlowRate { load, ..one_of_many })
        };
        // 300 us at 31.6 MB/s, and at 1 GB/s.
        assert_eq!((segments(1_000_000_000, false), segments(1_000_000_000, true)), (6, 45));
        assert_eq!(segments(12_500_000, true), 2, "a slow one that nobody sees");
        let queue_bytes = |is_at_once| {
            let load = Some(Load { rate: Rate(1_000_000_000), boost: 0, is_at_once });
            let flow = FlowRate { load, ..one_of_many };
            sizes(&Config::default(), &flow, 1448, 65215, 65535, 2).queue_bytes
        };
        assert_eq!(queue_bytes(true), queue_bytes(false), "what waits after all is shared");
    }

    #[test]
    fn where_nothing_waits_below_frames_are_full() {
        let mut flow = flow(Rate::from_bits(100_000_000), Nanos::from_micros(200));
        flow.completes_at_once = true;
        assert_eq!(segs(&Config::default(), &flow), 45);
        flow.is_paced = true;
        flow.pacing = Rate::from_bits(50_000_000);
        assert_eq!(segs(&Config::default(), &flow), 43, "10 ms");
        flow.pacing = Rate::from_bits(1_000_000);
        assert_eq!(segs(&Config::default(), &flow), 2, "not 64 KB: half a second");
        let crowded = FlowRate { crowd_segments: 4, ..flow };
        assert_eq!(segs(&Config::default(), &crowded), 4);
        let far = FlowRate { min_rtt: Nanos::from_millis(10), ..crowded };
        assert_eq!(segs(&Config::default(), &far), 2, "as in Linux");
        let fast = FlowRate { pacing: Rate::from_bits(50_000_000), ..crowded };
        assert_eq!(segs(&Config::default(), &fast), 43, "10 ms");
    }

    #[test]
    fn limit_is_two_frames_or_a_time_and_never_above_the_sysctl() {
        let config = Config::default();
        assert_eq!(small_queue_limit(&config, 0, 66_056, false, false), 132_112);
        assert_eq!(small_queue_limit(&config, 200_000, 66_056, false, false), 200_000);
        assert_eq!(small_queue_limit(&config, 200_000, 66_056, true, false), 400_000);
        let tight = Config { tcp_limit_output_bytes: 40_000, ..config };
        assert_eq!(small_queue_limit(&tight, 200_000, 66_056, false, true), 40_000);
        let old = Config { small_queue_cap_paced: false, ..tight.clone() };
        assert_eq!(small_queue_limit(&old, 200_000, 66_056, false, true), 200_000);
        assert_eq!(small_queue_limit(&old, 200_000, 66_056, false, false), 40_000);
        let fixed = Config { small_queue_rule: SmallQueueRule::Fixed, ..tight };
        assert_eq!(small_queue_limit(&fixed, 1000, 2000, true, false), 40_000);
    }

    fn deferral() -> Deferral {
        let now = Instant::from_nanos(1_000_000_000);
        Deferral {
            in_recovery: false,
            now,
            last_departure: now,
            cwnd_left: 3000,
            rwnd_left: 1 << 20,
            window: 100_000,
            unsent: 60_000,
            len: 60_000,
            max_segs: 40,
            mss: 1000,
            oldest_sent: Some(now),
            srtt: Nanos::from_micros(100),
            is_final: false,
        }
    }

    #[test]
    fn deferral_waits_only_for_a_near_ack() {
        let config = Config::default();
        let near = Deferral { now: deferral().now + Nanos::from_micros(80), ..deferral() };
        assert_eq!(should_defer(&config, &near), Some(DeferredBy::Cwnd));
        assert_eq!(should_defer(&config, &deferral()), None, "ACK a whole srtt away");
        let long = Deferral { srtt: Nanos::from_millis(50), ..near };
        assert_eq!(should_defer(&config, &long), None);
        let late = Deferral { now: deferral().now + Nanos::from_millis(30), ..long };
        let late = Deferral { last_departure: late.now, ..late };
        assert_eq!(should_defer(&config, &late), None, "20 ms to go");
        let old = Config { tso_defer: TsoDefer::HalfRtt, ..config };
        assert_eq!(should_defer(&old, &late), Some(DeferredBy::Cwnd), "the flow that got stuck");
    }

    #[test]
    fn deferral_is_waived() {
        let config = Config::default();
        let base = Deferral { now: deferral().now + Nanos::from_micros(80), ..deferral() };
        let waived = [
            Deferral { in_recovery: true, ..base },
            Deferral { oldest_sent: None, ..base },
            Deferral { cwnd_left: 50_000, ..base },
            Deferral { cwnd_left: 40_000, max_segs: 80, ..base },
            Deferral { is_final: true, unsent: 2000, len: 2000, ..base },
            Deferral { now: base.now + Nanos::from_millis(2), ..base },
        ];
        for (index, case) in waived.iter().enumerate() {
            assert_eq!(should_defer(&config, case), None, "case {index}");
        }
        let growing = Deferral { unsent: 2000, len: 2000, ..base };
        assert_eq!(should_defer(&config, &growing), Some(DeferredBy::Application));
    }

    #[test]
    fn a_window_that_cuts_the_last_frame_short_is_waited_for() {
        let config = Config::default();
        let base = Deferral { now: deferral().now + Nanos::from_micros(80), ..deferral() };
        let last = Deferral { is_final: true, ..base };
        assert_eq!(should_defer(&config, &last), Some(DeferredBy::Cwnd));
        let last = Deferral { cwnd_left: 1 << 20, rwnd_left: 3000, ..last };
        assert_eq!(should_defer(&config, &last), Some(DeferredBy::Rwnd));
    }

    #[test]
    fn split_points() {
        assert_eq!(split_point(100_000, 100_000, 1000, 40, true), 40_000);
        assert_eq!(split_point(2500, 100_000, 1000, 40, true), 2500);
        assert_eq!(split_point(2500, 100_000, 1000, 40, false), 2000);
        assert_eq!(split_point(10_000, 2500, 1000, 40, true), 2000);
        assert_eq!(split_point(10_000, 700, 1000, 40, true), 700);
        assert_eq!(split_point(500, 100_000, 1000, 40, true), 500);
    }
}
