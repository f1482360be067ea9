//! What the stack is told of frames to addresses of no peer: the error of ICMP that a router would
//! send, as the kernel's WireGuard does (`wg_xmit`). So a connection there fails at once, and not
//! after minutes.

use crate::ip::Header;
use bytes::Bytes;
use core::net::IpAddr;
use neap_stack::frame::{Frame, Headers};
use neap_stack::wire::{Protocol, icmp, icmpv6, ipv4, ipv6};
use neap_tcp::segment::{Ecn, Payload};
use neap_tcp::time::{Instant, Nanos};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Time between two errors on average, as the kernel has it for all of a host
/// (`icmp_msgs_per_sec`).
const PAUSE: Nanos = Nanos::from_millis(1);
/// So much of that time may be saved up: for 50 errors at once (`icmp_msgs_burst`).
const SAVED: Nanos = Nanos::from_millis(49);
/// Errors that wait for the stack. Beyond that none is made.
const ERRORS_MAX: usize = 50;
/// Most bytes of a frame that are quoted: all headers that this stack makes.
const QUOTE_MAX: usize = 128;
const HOPS: u8 = 64;

/// Errors that wait for the stack, as packets.
///
/// Cost: a look at an atomic for each visit of the receiver while there are none.
#[derive(Debug, Default)]
pub(crate) struct Unreachables {
    packets: Mutex<VecDeque<Bytes>>,
    has_some: AtomicBool,
    /// When errors at an even pace would have come to the next one, in nanoseconds.
    next: AtomicU64,
}

impl Unreachables {
    /// Makes the error for a frame to where nobody is, unless there were too many. Whether there is
    /// a new one.
    pub(crate) fn add(&self, frame: &Frame, now: Instant) -> bool {
        let next = Instant::from_nanos(self.next.load(Ordering::Relaxed)).max(now);
        if next > now + SAVED {
            return false;
        }
        let Some(packet) = error_for(frame.headers.as_slice()) else { return false };
        let mut packets = self.lock();
        if packets.len() == ERRORS_MAX {
            return false;
        }
        self.next.store((next + PAUSE).as_nanos(), Ordering::Relaxed);
        packets.push_back(packet);
        self.has_some.store(true, Ordering::Release);
        true
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Bytes>> {
        self.packets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there are any.
    pub(crate) fn has_some(&self) -> bool {
        self.has_some.load(Ordering::Acquire)
    }

    /// The oldest one.
    pub(crate) fn take(&self) -> Option<Bytes> {
        if !self.has_some() {
            return None;
        }
        let mut packets = self.lock();
        let packet = packets.pop_front();
        self.has_some.store(!packets.is_empty(), Ordering::Release);
        packet
    }
}

/// The error for a packet that begins with these headers. It comes from where the packet was to go.
/// `None` for what gets no error: a message of ICMP, a packet to a group (RFC 1122 section 3.2.2).
fn error_for(packet: &[u8]) -> Option<Bytes> {
    let Header { source: to, destination: from, .. } = Header::of_headers(packet)?;
    let protocol = Protocol(*packet.get(if to.is_ipv4() { 9 } else { 6 })?);
    if from.is_multicast() || !matches!(protocol, Protocol::TCP | Protocol::UDP) {
        return None;
    }
    let quote = Bytes::copy_from_slice(packet.get(..packet.len().min(QUOTE_MAX))?);
    let (mut headers, body) = (Headers::default(), Payload::from(quote.clone()));
    let (dscp, ecn) = (0, Ecn::NotEct);
    match (from, to) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            icmp::Message::Unreachable(icmp::Unreachable::Host).emit(&mut headers, &body);
            let len = (headers.len() + quote.len()) as u16;
            let (protocol, identification, dont_fragment) = (Protocol::ICMP, 0, true);
            ipv4::Header {
                source,
                destination,
                protocol,
                ttl: HOPS,
                dscp,
                ecn,
                identification,
                dont_fragment,
            }
            .emit(&mut headers, len);
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let message = icmpv6::Message::Unreachable(icmpv6::Unreachable::Address);
            message.emit(&mut headers, source, destination, &body);
            let len = (headers.len() + quote.len()) as u16;
            let (protocol, hop_limit, flow_label) = (Protocol::ICMPV6, HOPS, 0);
            ipv6::Header { source, destination, protocol, hop_limit, dscp, ecn, flow_label }
                .emit(&mut headers, len);
        }
        _ => return None,
    }
    Some([headers.as_slice(), &quote].concat().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ip;
    use neap_stack::wire::checksum;

    /// A frame of a protocol to an address of IPv4.
    fn frame(protocol: u8, to: [u8; 4]) -> Frame {
        let mut headers = Headers::default();
        let ip = headers.prepend(40);
        (ip[0], ip[3], ip[9]) = (0x45, 40, protocol);
        ip[12..16].copy_from_slice(&[10, 0, 0, 1]);
        ip[16..20].copy_from_slice(&to);
        Frame::new(headers, Payload::from(Bytes::new()))
    }

    #[test]
    fn the_error_quotes_the_frame_and_comes_from_where_it_was_to_go() {
        let (errors, now) = (Unreachables::default(), Instant::from_nanos(1 << 40));
        let frame = frame(6, [10, 0, 0, 9]);
        assert!(errors.add(&frame, now) && errors.has_some());
        let packet = errors.take().expect("an error");
        let header = ip::Header::parse(&packet).expect("a packet");
        assert_eq!((header.source, header.len), (IpAddr::from([10, 0, 0, 9]), packet.len()));
        assert_eq!(
            (header.destination, &packet[20..22]),
            (IpAddr::from([10, 0, 0, 1]), &[3, 1][..])
        );
        assert_eq!((checksum::of(&packet[..20]), checksum::of(&packet[20..])), (0, 0));
        assert_eq!(&packet[28..], frame.headers.as_slice());
        assert!(!errors.has_some() && errors.take().is_none());
    }

    #[test]
    fn errors_groups_and_too_many_frames_get_none() {
        let (errors, now) = (Unreachables::default(), Instant::from_nanos(1 << 40));
        assert!(!errors.add(&frame(1, [10, 0, 0, 9]), now), "it may be an error");
        assert!(!errors.add(&frame(17, [224, 0, 0, 1]), now), "a group");
        let frame = frame(17, [10, 0, 0, 9]);
        let in_a_millisecond = |now| {
            let made = (0..1000).filter(|_| errors.add(&frame, now)).count();
            while errors.take().is_some() {}
            made
        };
        assert_eq!(in_a_millisecond(now), 50);
        assert_eq!(in_a_millisecond(now), 0);
        assert_eq!(in_a_millisecond(now + PAUSE), 1);
    }
}
