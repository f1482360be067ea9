//! What a gateway holds at a moment, for others to see.

use crate::relay::{End, Relay, Side};
use neap::control::{MappingReport, RelayReport, SocketReport};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

/// What relays hold, by the ends of their connections of the stack: its own, and the peer's.
pub(crate) type Relays = HashMap<(SocketAddr, SocketAddr), RelayReport>;

/// What bytes of a relay wait for, in the words of [`RelayReport::waits_for`]: a side that has no
/// room or is not open, the turn under a rate, the memory of all relays.
const PEER: &str = "peer";
const FAR: &str = "far";
pub(crate) const RATE: &str = "rate";
const MEMORY: &str = "memory";

/// A flow of a gateway, as the guest's side of the stack has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FlowView {
    /// Address of the stack's end of the guest's connection: what the guest wanted to reach, or
    /// the client of a published port.
    pub local: SocketAddr,
    /// The guest's address.
    pub guest: SocketAddr,
    /// The address that the other connection goes to, or comes from.
    pub far: SocketAddr,
    /// Bytes that the gateway has taken from one side and the other has not taken yet.
    pub held: usize,
}

/// What a gateway holds at a moment.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Holdings {
    /// TCP connections.
    pub flows: Vec<FlowView>,
    /// Addresses and ports of guests that have a UDP socket.
    pub mappings: usize,
}

/// A report of the socket that a guest's address has elsewhere, and of its use at `now`. `netid` is
/// the kind of both; ports are identifiers where it has none.
pub(crate) fn mapping(
    netid: &str,
    guest: SocketAddr,
    outside: Option<SocketAddr>,
    (last_used, now): (Instant, Instant),
    peers: Vec<IpAddr>,
) -> SocketReport {
    let unknown = || {
        let any: IpAddr = if guest.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
        SocketAddr::new(any, 0)
    };
    let mut report = SocketReport::new(netid, "ESTAB", outside.unwrap_or_else(unknown));
    report.remote = Some(guest);
    let mut mapping = MappingReport::default();
    let unused = now.saturating_duration_since(last_used).as_nanos();
    mapping.last_used = u64::try_from(unused).unwrap_or(u64::MAX);
    mapping.peers = peers;
    report.mapping = Some(mapping);
    report
}

impl FlowView {
    /// Where it is in the stack.
    pub(crate) fn key(&self) -> (SocketAddr, SocketAddr) {
        (self.local, self.guest)
    }

    /// A report of a flow whose `Server` side is not open yet. `far` is the side that the stack
    /// does not have.
    pub(crate) fn opening(&self, far: Side) -> RelayReport {
        let mut report = RelayReport::new(self.far);
        report.waits_for.push(if far == Side::Server { FAR } else { PEER }.to_owned());
        report
    }

    /// A report of a flow that is open: what it holds, and what that waits for. `far` is the side
    /// that the stack does not have. Bytes to a side that `goes_on` wait only for the thread.
    ///
    /// It costs the system calls of [`End::send_queue`].
    pub(crate) fn open(
        &self,
        far: Side,
        relay: &Relay,
        (client, server): (&dyn End, &dyn End),
        goes_on: [bool; 2],
    ) -> RelayReport {
        let end = |side| if side == Side::Client { client } else { server };
        let held_for = |side: Side| (relay.held_for(side) + end(side.other()).held()) as u64;
        let has_no_room = |side: Side| relay.waits_for(side) && !goes_on[side as usize];
        let (peer, queue) = (far.other(), end(far).send_queue());
        let has_unsent = queue.is_some_and(|queue| queue.not_sent > 0);
        let waits = [
            (PEER, has_no_room(peer)),
            (FAR, has_no_room(far) || has_unsent),
            (MEMORY, relay.waits_for_memory()),
        ];
        let mut report = RelayReport::new(self.far);
        (report.held_for_far, report.held_for_peer) = (held_for(far), held_for(peer));
        report.not_sent = queue.map(|queue| queue.not_sent);
        report.in_flight = queue.map(|queue| queue.in_flight);
        let waits = waits.into_iter().filter(|(_, waits)| *waits);
        report.waits_for = waits.map(|(word, _)| word.to_owned()).collect();
        report
    }
}
