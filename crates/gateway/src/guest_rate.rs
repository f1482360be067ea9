//! The rate of what guests get: the stack's `tbf` over `fq_codel` at each queue of its interfaces,
//! and short segments.

use neap::time::{Nanos, Rate};
use neap::{InterfaceError, Stack};

/// Time of the rate that leaves at once after a pause.
const BURST: Nanos = Nanos::from_millis(2);
/// Time of the rate that a flow gets in one turn.
const QUANTUM: Nanos = Nanos::from_micros(500);
/// Bytes that a turn has at least and at most.
const QUANTA: (u64, u64) = (1514, 64 << 10);
/// Bytes of a packet of Ethernet, with its header.
const PACKET: u64 = 1514;
/// Length of a link header.
const LINK_HEADER: u64 = 14;
/// Payload of a segment of Ethernet. A longer one would hold up others for longer.
const SEGMENT: u16 = 1460;
/// From this rate on, the longest segment takes less than a millisecond.
const LONG_SEGMENTS: Rate = Rate::from_mbit(500);

/// Sets the rate of all interfaces.
///
/// # Errors
/// As [`Stack::set_qdisc`].
pub(crate) fn limit(stack: &Stack, rate: Rate) -> Result<(), InterfaceError> {
    for interface in stack.host().interfaces() {
        stack.set_qdisc(interface.id, &words(rate, interface.capabilities.mtu))?;
    }
    Ok(())
}

/// The qdisc of an interface, in the words of `tc`.
fn words(rate: Rate, mtu: u16) -> String {
    let burst = rate.bytes_in(BURST).max(u64::from(mtu) + LINK_HEADER).min(u32::MAX.into());
    let quantum = rate.bytes_in(QUANTUM).clamp(QUANTA.0, QUANTA.1);
    // At a low rate one packet takes longer than the target (RFC 8290 section 5.2.2).
    let target = Nanos::from_millis(5).max(Nanos(rate.time_for(PACKET).0.saturating_mul(3) / 2));
    let interval = Nanos::from_millis(100).max(target).min(Nanos::from_secs(4));
    format!(
        "tbf rate {}bit burst {burst} fq_codel quantum {quantum} target {}us interval {}us",
        rate.0.saturating_mul(8),
        target.as_micros(),
        interval.as_micros()
    )
}

/// The longest segment to guests under a rate, if it is bounded.
pub(crate) fn max_segment(rate: Option<Rate>) -> Option<u16> {
    rate.filter(|&rate| rate < LONG_SEGMENTS).map(|_| SEGMENT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use neap::qdisc::QdiscConfig;

    fn qdisc(rate: &str, mtu: u16) -> (u32, u32) {
        let words = words(rate.parse().expect("a rate"), mtu);
        match words.parse().expect("a qdisc") {
            QdiscConfig::Shaped(bucket, child) => match *child {
                QdiscConfig::FqCodel(config) => (bucket.burst, config.quantum.expect("given")),
                other => panic!("{other}"),
            },
            other => panic!("{other}"),
        }
    }

    #[test]
    fn the_longest_packet_passes_and_turns_are_short() {
        assert_eq!(qdisc("19mbit", 1500), (4750, 1514));
        assert_eq!(qdisc("8kbit", 65_520), (65_534, 1514));
        assert_eq!(qdisc("1gbit", 65_520), (250_000, 62_500));
        assert_eq!(qdisc("100gbit", 1500), (25_000_000, 65_536));
    }

    #[test]
    fn segments_are_short_at_a_low_rate() {
        let of = |rate: Option<&str>| max_segment(rate.map(|rate| rate.parse().expect("a rate")));
        assert_eq!(of(Some("19mbit")), Some(1460));
        assert_eq!(of(Some("1gbit")), None);
        assert_eq!(of(None), None);
    }
}
