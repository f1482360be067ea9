//! SYN cookies (RFC 4987 section 3.6): a handshake without memory, for a full SYN queue.
//!
//! The sequence number of the SYN-ACK carries 5 bits of a 64-second counter, 3 bits of an MSS table
//! and 24 bits of a keyed hash over these, the ends, the peer's sequence number and the options.
//! The options themselves travel in the low 6 bits of the timestamp (Linux's
//! `cookie_init_timestamp`): 4 bits window scale (15: none), SACK, ECN. Without timestamps there
//! are no options. Cost: one SipHash per SYN and two at most per ACK; no state.

use super::{Accepted, Negotiated, Offer, echoed_rtt, scaled_window, timestamp};
use crate::isn::TupleHash;
use crate::segment::{Flags, Segment, Timestamps};
use crate::seq::SeqNumber;
use crate::time::{Instant, Nanos};
use core::net::SocketAddr;

/// The MSS that a cookie can name: common paths (minimum IPv4, default, IPv6 minimum, tunnels,
/// PPPoE, Ethernet, FDDI, jumbo). The largest entry not above the peer's MSS is taken.
const MSS_TABLE: [u16; 8] = [88, 536, 1220, 1360, 1440, 1460, 4312, 8940];
const PERIOD: Nanos = Nanos::from_secs(64);
/// A cookie is good in the period in which it was made and in the next.
const PERIODS: u64 = 2;
const COUNTER_BITS: u32 = 5;
const HASH_BITS: u32 = 24;
const OPTION_MASK: u32 = 0x3f;
const NO_WSCALE: u32 = 0xf;
const SACK_BIT: u32 = 0x10;
const ECN_BIT: u32 = 0x20;
/// Hashed in place of options when there are no timestamps to carry any.
const NO_OPTIONS: u32 = u32::MAX;

/// Secret key of one host's SYN cookies.
#[derive(Clone, Copy, Debug)]
pub struct SynCookies(TupleHash);

impl SynCookies {
    /// Longest time for which a cookie is good.
    pub const LIFETIME: Nanos = Nanos(PERIOD.0 * PERIODS);

    /// Derives the key from one random `seed`.
    pub fn from_seed(seed: u64) -> Self {
        Self(TupleHash::from_seed(seed, 3))
    }

    /// Returns the SYN-ACK that answers `syn` with a cookie, so that no request has to be stored.
    /// `ts_offset` is the timestamp offset of these ends.
    pub fn synack(
        &self,
        now: Instant,
        ends: (SocketAddr, SocketAddr),
        syn: &Segment,
        ts_offset: u32,
        offer: &Offer,
    ) -> Segment {
        let mut agreed = Negotiated::of(syn, offer);
        let mut tsval = timestamp(now, ts_offset);
        let mut bits = NO_OPTIONS;
        if agreed.ts_recent.is_some() {
            bits = option_bits(&agreed);
            tsval = stamp_with(timestamp(now, 0), bits).wrapping_add(ts_offset);
        } else {
            agreed = Negotiated { snd_wscale: None, sack: false, ecn: false, ..agreed };
        }
        let mss_index = MSS_TABLE.iter().rposition(|&mss| mss <= agreed.mss).unwrap_or(0) as u32;
        let cookie = self.cookie(ends, syn.seq, period(now), mss_index, bits);
        offer.synack(&agreed, cookie, syn.seq + 1, tsval)
    }

    /// Returns the passive open that an ACK completes, if it echoes a cookie that this host made
    /// for these ends at most two periods ago.
    pub fn accept(
        &self,
        now: Instant,
        ends: (SocketAddr, SocketAddr),
        segment: &Segment,
        ts_offset: u32,
        offer: &Offer,
    ) -> Option<Accepted> {
        if segment.flags & (Flags::SYN | Flags::ACK | Flags::RST) != Flags::ACK {
            return None;
        }
        let timestamps = offer.with_timestamps(segment.options.timestamps);
        let bits =
            timestamps.map_or(NO_OPTIONS, |ts| ts.echo.wrapping_sub(ts_offset) & OPTION_MASK);
        let (iss, irs) = (segment.ack - 1, segment.seq - 1);
        let mss_index = (iss.0 >> HASH_BITS) & 7;
        let counter = u64::from(iss.0 >> (32 - COUNTER_BITS));
        let made = (0..PERIODS)
            .filter_map(|age| period(now).checked_sub(age))
            .find(|made| made & ((1 << COUNTER_BITS) - 1) == counter)?;
        if self.cookie(ends, irs, made, mss_index, bits) != iss {
            return None;
        }
        let negotiated = agreement(offer, MSS_TABLE[mss_index as usize], timestamps, bits);
        Some(Accepted {
            iss,
            irs,
            negotiated,
            snd_wnd: scaled_window(segment, negotiated.snd_wscale),
            rcv_wnd: offer.rcv_wnd,
            ts_offset,
            synack_rtt: timestamps.and_then(|ts| echoed_rtt(timestamp(now, ts_offset), ts.echo)),
            synack_timeouts: (0, Nanos::ZERO),
            is_first_echoed: false,
        })
    }

    fn cookie(
        &self,
        (local, remote): (SocketAddr, SocketAddr),
        irs: SeqNumber,
        made: u64,
        mss_index: u32,
        bits: u32,
    ) -> SeqNumber {
        let words = [made << 3 | u64::from(mss_index), u64::from(irs.0) << 32 | u64::from(bits)];
        let hash = self.0.hash(local, remote, words) as u32 & ((1 << HASH_BITS) - 1);
        SeqNumber((made as u32) << (32 - COUNTER_BITS) | mss_index << HASH_BITS | hash)
    }
}

fn period(now: Instant) -> u64 {
    now.as_nanos() / PERIOD.0
}

fn option_bits(agreed: &Negotiated) -> u32 {
    let wscale = agreed.snd_wscale.map_or(NO_WSCALE, u32::from);
    wscale | if agreed.sack { SACK_BIT } else { 0 } | if agreed.ecn { ECN_BIT } else { 0 }
}

/// The latest clock value not after `clock` whose low bits are `bits`.
fn stamp_with(clock: u32, bits: u32) -> u32 {
    let stamp = clock & !OPTION_MASK | bits;
    if bits > clock & OPTION_MASK { stamp.wrapping_sub(OPTION_MASK + 1) } else { stamp }
}

fn agreement(offer: &Offer, mss: u16, timestamps: Option<Timestamps>, bits: u32) -> Negotiated {
    let Some(timestamps) = timestamps else {
        let (snd_wscale, ts_recent) = (None, None);
        return Negotiated { mss, snd_wscale, rcv_wscale: 0, sack: false, ts_recent, ecn: false };
    };
    let snd_wscale = Some(bits & NO_WSCALE).filter(|&w| w != NO_WSCALE).map(|w| w as u8);
    Negotiated {
        mss,
        snd_wscale,
        rcv_wscale: if snd_wscale.is_some() { offer.rcv_wscale } else { 0 },
        sack: bits & SACK_BIT != 0,
        ts_recent: Some(timestamps.value),
        ecn: bits & ECN_BIT != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::segment::Options;
    use proptest::prelude::*;

    const TS_OFFSET: u32 = 0xffff_ff00;

    fn ends() -> (SocketAddr, SocketAddr) {
        let end = |text: &str| text.parse().expect("an address");
        (end("192.0.2.1:80"), end("198.51.100.7:40000"))
    }

    fn offer() -> Offer {
        Offer::new(&Config::default(), 20, 1460, 65536, u32::MAX)
    }

    fn syn(mss: u16, wscale: Option<u8>, sack: bool, has_timestamps: bool, ecn: bool) -> Segment {
        let mut flags = Flags::SYN;
        flags.set(Flags::ECE | Flags::CWR, ecn);
        Segment {
            seq: SeqNumber(1000),
            flags,
            window: 65535,
            options: Options {
                mss: Some(mss),
                window_scale: wscale,
                sack_permitted: sack,
                timestamps: has_timestamps.then_some(Timestamps { value: 77, echo: 0 }),
                ..Options::default()
            },
            ..Segment::default()
        }
    }

    /// The peer's last ACK.
    fn answer(synack: &Segment) -> Segment {
        let echo = |ts: Timestamps| Timestamps { value: 78, echo: ts.value };
        Segment {
            seq: synack.ack,
            ack: synack.seq + 1,
            flags: Flags::ACK,
            window: 100,
            options: Options {
                timestamps: synack.options.timestamps.map(echo),
                ..Options::default()
            },
            ..Segment::default()
        }
    }

    #[test]
    fn expired_after_two_periods() {
        let (cookies, offer) = (SynCookies::from_seed(1), offer());
        let start = Instant::ZERO + Nanos::from_secs(64 * 100);
        let synack =
            cookies.synack(start, ends(), &syn(1460, None, false, false, false), 0, &offer);
        let is_good = |secs| {
            let now = start + Nanos::from_secs(secs);
            cookies.accept(now, ends(), &answer(&synack), 0, &offer).is_some()
        };
        assert!(is_good(0) && is_good(64) && is_good(127));
        assert!(!is_good(128) && !is_good(64 * 32), "the counter in the cookie wraps");
    }

    #[test]
    fn without_timestamps_there_are_no_options() {
        let (cookies, offer) = (SynCookies::from_seed(1), offer());
        let syn = syn(1400, Some(7), true, false, true);
        let synack = cookies.synack(Instant::ZERO, ends(), &syn, 0, &offer);
        assert_eq!(synack.options, Options { mss: Some(1460), ..Options::default() });
        let accepted = cookies.accept(Instant::ZERO, ends(), &answer(&synack), 0, &offer);
        let negotiated = accepted.expect("a good cookie").negotiated;
        assert_eq!((negotiated.mss, negotiated.snd_wscale, negotiated.sack), (1360, None, false));
        assert_eq!((negotiated.rcv_wscale, negotiated.ecn), (0, false));
    }

    #[test]
    fn the_timestamp_never_lies_in_the_future() {
        for clock in [0, 1, 63, 64, 127, u32::MAX] {
            for bits in 0..=OPTION_MASK {
                let stamp = stamp_with(clock, bits);
                assert_eq!(stamp & OPTION_MASK, bits);
                assert!(clock.wrapping_sub(stamp) <= OPTION_MASK);
            }
        }
    }

    #[test]
    fn other_ends_numbers_and_keys_fail() {
        let (cookies, offer) = (SynCookies::from_seed(1), offer());
        let now = Instant::ZERO;
        let synack = cookies.synack(now, ends(), &syn(1460, Some(7), true, true, false), 0, &offer);
        let good = answer(&synack);
        let accept = |cookies: SynCookies, ends, segment: &Segment| {
            cookies.accept(now, ends, segment, 0, &offer).is_some()
        };
        assert!(accept(cookies, ends(), &good));
        assert!(!accept(SynCookies::from_seed(2), ends(), &good));
        let other = (ends().0, "198.51.100.7:40001".parse().expect("an address"));
        assert!(!accept(cookies, other, &good));
        let moved = Segment { seq: good.seq + 1, ..good.clone() };
        let stripped = Segment { options: Options::default(), ..good.clone() };
        let syn_too = Segment { flags: Flags::ACK | Flags::SYN, ..good.clone() };
        let mut other_options = good.clone();
        if let Some(ts) = &mut other_options.options.timestamps {
            ts.echo ^= SACK_BIT;
        }
        for forged in [moved, stripped, syn_too, other_options] {
            assert!(!accept(cookies, ends(), &forged));
        }
    }

    proptest! {
        #[test]
        fn options_survive_the_round_trip(
            mss in 88u16.., wscale in prop::option::of(0u8..15), sack: bool, ecn: bool,
            ms in 0u64..1 << 40, delay_ms in 0u64..64_000,
        ) {
            let (cookies, offer) = (SynCookies::from_seed(1), offer());
            let now = Instant::ZERO + Nanos::from_millis(ms);
            let syn = syn(mss, wscale, sack, true, ecn);
            let synack = cookies.synack(now, ends(), &syn, TS_OFFSET, &offer);
            let later = now + Nanos::from_millis(delay_ms);
            let accepted = cookies.accept(later, ends(), &answer(&synack), TS_OFFSET, &offer);
            let accepted = accepted.expect("a good cookie");
            let expected = Negotiated { ts_recent: Some(78), ..Negotiated::of(&syn, &offer) };
            prop_assert!(accepted.negotiated.mss <= expected.mss);
            let mss = accepted.negotiated.mss;
            prop_assert_eq!(accepted.negotiated, Negotiated { mss, ..expected });
            prop_assert_eq!((accepted.irs, accepted.iss), (syn.seq, synack.seq));
            prop_assert_eq!(accepted.snd_wnd, 100 << wscale.unwrap_or(0));
        }

        #[test]
        fn guesses_fail(ack: u32, seq: u32, echo: Option<u32>) {
            let segment = Segment {
                seq: SeqNumber(seq),
                ack: SeqNumber(ack),
                flags: Flags::ACK,
                options: Options {
                    timestamps: echo.map(|echo| Timestamps { value: 1, echo }),
                    ..Options::default()
                },
                ..Segment::default()
            };
            let now = Instant::ZERO + Nanos::from_secs(1000);
            let guess = SynCookies::from_seed(1).accept(now, ends(), &segment, 0, &offer());
            prop_assert!(guess.is_none());
        }
    }
}
