//! Actors: peers that send and receive packets themselves, without a stack.

use crate::link::Packet;
use bytes::Bytes;
use neap_stack::frame::Frame;
use neap_tcp::time::Instant;

/// Packets that an actor sends in one turn, in order.
pub type Outbox = Vec<Frame>;

/// Peer that sends and receives packets itself.
///
/// It has no card and no lateness: it answers at the instant of an arrival.
pub trait Actor {
    /// Takes an IP packet that has arrived.
    fn receive(&mut self, now: Instant, packet: &Bytes, out: &mut Outbox);

    /// Returns when the actor wants a turn even if nothing arrives. It is asked after each turn.
    fn next(&self) -> Instant;

    /// Gives the actor the turn that it wanted, or one before it.
    fn wake(&mut self, now: Instant, out: &mut Outbox);
}

/// An actor of a world, and the link by which it sends.
pub(super) struct ActorSlot {
    actor: Box<dyn Actor>,
    /// The link and end by which it sends.
    pub(super) port: Option<(usize, usize)>,
}

impl ActorSlot {
    pub(super) fn new(actor: Box<dyn Actor>) -> Self {
        Self { actor, port: None }
    }

    pub(super) fn next(&self) -> Instant {
        self.actor.next()
    }

    /// What the actor sends when it gets `packet`, or its turn.
    pub(super) fn turn(
        &mut self,
        now: Instant,
        packet: Option<Box<Packet>>,
    ) -> impl Iterator<Item = Box<Packet>> + use<> {
        let mut out = Outbox::new();
        match packet {
            // What the wire has damaged its checksums tell.
            Some(packet) if packet.is_damaged() => {}
            Some(packet) => self.actor.receive(now, &packet.frame.to_bytes(), &mut out),
            None => self.actor.wake(now, &mut out),
        }
        out.into_iter().map(|frame| Box::new(Packet::new(frame)))
    }
}
