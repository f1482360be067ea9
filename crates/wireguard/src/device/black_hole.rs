//! Paths that lose large packets and say nothing, because somebody on them drops ICMP.
//!
//! WireGuard has no message that a peer answers with its size, so nothing can be probed. But the
//! flows inside tell: a path that loses only what is large makes TCP repeat the same large segment,
//! timeout after timeout. What repeats a segment sooner than a timeout, or the next segment, is
//! usual loss. The kernel's TCP concludes the same from `tcp_retries1` timeouts (`tcp_mtu_probing`,
//! RFC 4821 section 7.7). If the peer is dead instead, smaller packets do no harm: they cost 1.3 %
//! of the rate.

use crate::ip;
use neap_stack::frame::Frame;
use neap_tcp::time::{Instant, Nanos};

/// Flows that are watched at a time.
const FLOWS: usize = 16;
/// Repetitions that are believed: three timeouts (`tcp_retries1`) where the segment first left as a
/// part of a super-frame, as most do, and two where it left alone.
const REPEATS: u8 = 2;
/// The least time between timeouts (`TCP_RTO_MIN`, less the time in which a timer is late).
const LEAST_TIMEOUT: Nanos = Nanos::from_millis(180);

/// The latest large segment of some flows. A frame costs one comparison, 24 bytes per flow.
#[derive(Debug, Default)]
pub(crate) struct BlackHole {
    latest: [Option<Latest>; FLOWS],
}

#[derive(Clone, Copy, Debug)]
struct Latest {
    flow: u64,
    seq: [u8; 4],
    repeats: u8,
    at: Instant,
}

impl BlackHole {
    /// Looks at a frame that is about to leave. Whether large packets seem to be lost.
    pub(crate) fn suspects(&mut self, frame: &Frame, large: usize, now: Instant) -> bool {
        if frame.len() <= large || frame.gso.is_some() {
            return false;
        }
        let Some(seq) = ip::tcp_sequence(frame.headers.as_slice()) else { return false };
        let place = &mut self.latest[frame.flow as usize % FLOWS];
        let new = Latest { flow: frame.flow, seq, repeats: 0, at: now };
        let latest = place.get_or_insert(new);
        if (latest.flow, latest.seq) != (frame.flow, seq) {
            *latest = new;
        } else if now.since(latest.at) >= LEAST_TIMEOUT {
            (latest.repeats, latest.at) = (latest.repeats + 1, now);
        }
        if latest.repeats < REPEATS {
            return false;
        }
        *place = None;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use neap_stack::frame::Headers;
    use neap_tcp::segment::Payload;

    const LARGE: usize = 1280;

    fn frame(flow: u64, seq: u8, len: usize) -> Frame {
        let mut headers = Headers::default();
        let bytes = headers.prepend(40);
        (bytes[0], bytes[9], bytes[27]) = (0x45, 6, seq);
        let payload = Payload::from(bytes::Bytes::from(vec![0; len - 40]));
        Frame { flow, ..Frame::new(headers, payload) }
    }

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Nanos::from_millis(millis)
    }

    #[test]
    fn timeouts_of_one_large_segment_are_believed() {
        let mut hole = BlackHole::default();
        let mut send = |len, millis| hole.suspects(&frame(7, 1, len), LARGE, at(millis));
        let seen = [200, 210, 600, 1400, 1401].map(|millis| send(1400, millis));
        assert_eq!(seen, [false, false, false, true, false]);
        assert!((0..20).all(|index| !send(1280, 2000 + 300 * index)), "small enough");
    }

    #[test]
    fn usual_loss_is_not() {
        let mut hole = BlackHole::default();
        for index in 0..100 {
            // Repeated at once, and then the next one.
            for millis in [0, 20, 250] {
                let now = at(u64::from(index) * 500 + millis);
                assert!(!hole.suspects(&frame(7, index, 1400), LARGE, now));
            }
        }
    }
}
