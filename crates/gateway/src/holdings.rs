//! What a gateway holds at a moment, for others to see.

use std::net::SocketAddr;

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
