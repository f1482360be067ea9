//! Delivery of ICMP errors and of failures of neighbours to the sockets that they concern.

use super::Host;
use super::error_queue::{ErrorOrigin, ErrorRecord, ErrorReport};
use crate::flow::FourTuple;
use crate::net::Visit;
use crate::net::icmp::IcmpError;
use crate::net::interface::Undeliverable;
use crate::wire::{Protocol, icmp, ipv4, udp};
use bytes::Bytes;
use core::net::IpAddr;
use std::collections::VecDeque;

impl Host {
    /// Tells the sockets of these packets that their next hop does not answer, as if a router had.
    /// Their drops are counted already, and no message has come that could be bad.
    pub(crate) fn on_undeliverable(&self, visit: Visit, packets: Vec<Undeliverable>) {
        for packet in packets {
            if let Some(error) = IcmpError::undeliverable(&packet) {
                self.tell_of_error(visit, &error);
            }
        }
    }

    /// Hands an ICMP error to the socket whose packet it quotes; whether there is one. TCP believes
    /// it only about a segment in flight, and an ICMP socket only about an echo request that it has
    /// just sent. UDP has no such means.
    pub(crate) fn tell_of_error(&self, visit: Visit, error: &IcmpError) -> bool {
        match (error.quoted.protocol, error.tuple()) {
            (Protocol::TCP, Some(tuple)) => self.tell_tcp(visit, error, &tuple),
            (Protocol::UDP, Some(tuple)) => self.udp.on_error(&tuple, error.interface, |socket| {
                if error.is_too_big {
                    let (topology, current) = (&self.net.topology, u32::MAX);
                    topology.on_packet_too_big(visit.now, tuple.remote, error.info, current);
                }
                socket.on_report(self, report(error, &tuple, udp::HEADER_LEN));
            }),
            (Protocol::ICMP | Protocol::ICMPV6, _) => {
                // ICMP sockets hear of it besides (`icmp_err`, `icmpv6_err`). An answer of this
                // host says nothing that who asked for it does not know, so errors about answers
                // are not believed.
                if error.is_too_big && self.icmp.has_sent(error) {
                    let (topology, remote) = (&self.net.topology, error.quoted.destination);
                    topology.on_packet_too_big(visit.now, remote, error.info, u32::MAX);
                }
                false
            }
            _ => false,
        }
    }

    fn tell_tcp(&self, visit: Visit, error: &IcmpError, tuple: &FourTuple) -> bool {
        match (self.demux.connection(tuple), error.quoted.seq) {
            (Some(socket), Some(seq)) => {
                socket.on_icmp_error(self, visit.now, seq, report(error, tuple, 0));
                true
            }
            (None, Some(seq)) if error.ends_request() => {
                let listener = self.demux.listener(tuple.local_addr());
                let cx = self.listen_context(visit, 0);
                listener.is_some_and(|one| one.on_unreachable(&cx, tuple, seq))
            }
            _ => false,
        }
    }
}

/// The last echo requests of an ICMP socket that may be too long for their ways. An error about one
/// of them is believed, as one about a segment in flight is.
#[derive(Debug, Default)]
pub(super) struct LongRequests(VecDeque<LongRequest>);

#[derive(Debug)]
struct LongRequest {
    ends: (IpAddr, IpAddr),
    /// Type, code, checksum, identifier and sequence number: what every error quotes.
    header: [u8; icmp::HEADER_LEN],
}

impl LongRequests {
    /// Requests that are remembered: 48 bytes each.
    const MOST: usize = 64;
    /// No path MTU below 552 bytes is believed, so what fits into that is never too long.
    const LONG: usize = 552 - ipv4::HEADER_LEN;

    /// Remembers an echo request between these ends, if it is long.
    pub(super) fn note(&mut self, ends: (IpAddr, IpAddr), header: &[u8], len: usize) {
        let Some(&header) = header.first_chunk().filter(|_| len > Self::LONG) else { return };
        if self.0.len() >= Self::MOST {
            self.0.pop_front();
        }
        self.0.push_back(LongRequest { ends, header });
    }

    /// Whether the error quotes one of the requests.
    pub(super) fn contain(&self, error: &IcmpError) -> bool {
        let ends = (error.quoted.source, error.quoted.destination);
        let Some(header) = error.transport(0).first_chunk() else { return false };
        self.0.iter().any(|sent| sent.ends == ends && sent.header == *header)
    }
}

/// What a socket is told. Its record has what is quoted from `offset` bytes behind the start of the
/// transport header.
fn report(error: &IcmpError, tuple: &FourTuple, offset: usize) -> ErrorReport {
    let origin = match error.offender {
        IpAddr::V4(_) => ErrorOrigin::Icmp,
        IpAddr::V6(_) => ErrorOrigin::Icmp6,
    };
    let record = ErrorRecord {
        error: error.error,
        origin,
        kind: error.kind,
        code: error.code,
        info: error.info,
        destination: tuple.remote_addr(),
        source: Some(tuple.local_addr()),
        offender: Some(error.offender),
        // A copy: what came may share its memory with much more.
        data: Bytes::copy_from_slice(error.transport(offset)),
    };
    let IcmpError { is_hard, is_too_big, is_message, .. } = *error;
    ErrorReport { record, is_hard, is_too_big, is_message }
}
