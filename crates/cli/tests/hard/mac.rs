//! Ethernet as an attacker speaks it: addresses, and frames of any content.

use crate::wire::frame;
use neap::device::{Completed, Frame, QueuePair, Received, RxQueue, TxQueue};
use neap::time::Instant;
use neap_lab::hostile::packet;
use neap_lab::rng::Rng;
use neap_stack::wire::ethernet::{self, EtherType};
use std::net::SocketAddr;

/// The station of the gateway.
pub(crate) const GATEWAY: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// The attacker's own one.
pub(crate) const FOE: [u8; 6] = [2, 0, 0, 0, 0, 0x66];

/// An address as people write it.
pub(crate) fn show(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// Any station.
pub(crate) fn any(rng: &mut Rng) -> [u8; 6] {
    let [a, b, c, d, ..] = rng.next_u64().to_be_bytes();
    [2, 0x66, a, b, c, d]
}

/// A frame from one station to another.
pub(crate) fn between(from: [u8; 6], to: [u8; 6], kind: EtherType, body: &[u8]) -> Frame {
    frame([&to[..], &from, &kind.0.to_be_bytes(), body].concat())
}

/// A frame that carries an IP packet to the gateway.
pub(crate) fn around(from: [u8; 6], packet: &Frame) -> Frame {
    let packet = packet.to_bytes();
    between(from, GATEWAY, kind_of(&packet).unwrap_or(EtherType::IPV4), &packet)
}

/// What a packet is by its first byte, if it is one of IP. Stations of these tests never begin as
/// such a packet does.
fn kind_of(packet: &[u8]) -> Option<EtherType> {
    match packet.first()? >> 4 {
        4 => Some(EtherType::IPV4),
        6 => Some(EtherType::IPV6),
        _ => None,
    }
}

/// The attacker's end of an Ethernet: IP packets get a link header, and lose it. What is no packet
/// of IP leaves as it is. Of segments are seen those whose destination `hears` says.
pub(crate) fn attacked_by_packets(
    queue: QueuePair,
    hears: impl Fn(SocketAddr) -> bool + Send + 'static,
) -> QueuePair {
    QueuePair { tx: Box::new(Tx(queue.tx)), rx: Box::new(Rx(queue.rx, Box::new(hears))), ..queue }
}

struct Tx(Box<dyn TxQueue>);

impl TxQueue for Tx {
    fn submit(&mut self, frame: Frame, now: Instant) -> Result<(), Frame> {
        let is_packet = kind_of(&frame.to_bytes()).is_some();
        let frame = if is_packet { around(FOE, &frame) } else { frame };
        let Err(frame) = self.0.submit(frame, now) else { return Ok(()) };
        self.0.flush(now);
        self.0.reap(now);
        self.0.submit(frame, now)
    }

    fn flush(&mut self, now: Instant) {
        self.0.flush(now);
    }

    fn reap(&mut self, now: Instant) -> Completed {
        self.0.reap(now)
    }

    fn next_event(&self) -> Instant {
        self.0.next_event()
    }
}

struct Rx(Box<dyn RxQueue>, Box<dyn Fn(SocketAddr) -> bool + Send>);

impl RxQueue for Rx {
    fn receive(&mut self, now: Instant) -> Option<Received> {
        loop {
            let mut received = self.0.receive(now)?;
            // The rest of a short frame is nobody's packet.
            let length = received.data.len().min(ethernet::HEADER_LEN);
            received.data = received.data.slice(length..);
            let heard = packet::parse(&received.data);
            if heard.is_some_and(|(_, to, _)| (self.1)(to)) {
                return Some(received);
            }
        }
    }
}
