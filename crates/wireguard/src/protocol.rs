//! The protocol of WireGuard as the engine needs it: one peer's handshakes, sessions and timers.
//!
//! The cryptography and the state machine are those of a crate
//! ([`sanstun`](crate::protocol::sanstun)); the reasons are in
//! docs/decisions/wireguard-protocol.md. Time is an argument throughout, and nothing here does I/O.

mod sanstun;

/// The crate that the device uses.
pub(crate) type Chosen = sanstun::Sanstun;

use crate::config::Peer;
use crate::keys::{PrivateKey, PublicKey};
use core::net::SocketAddr;
use neap_tcp::time::Instant;

/// Bytes by which a sealed datagram is longer than its padded packet: header and tag.
pub(crate) const OVERHEAD: usize = 32;
/// Packets are padded with zeros to a multiple of this many bytes.
pub(crate) const PADDING: usize = 16;

/// Bytes of the datagram that a packet of `len` bytes becomes.
pub(crate) const fn sealed_len(len: usize) -> usize {
    len.next_multiple_of(PADDING) + OVERHEAD
}

/// Number of a peer in the engine, below the number of peers that were ever there at once.
pub(crate) type PeerId = usize;

/// A counter of a session that was reserved for one packet. Sealing needs no lock and any thread
/// can do it.
pub(crate) trait Seal: Send {
    /// Seals `packet` into the front of `into`, which has [`sealed_len`] bytes at least, and
    /// returns the length of the datagram.
    fn seal(self, packet: &[u8], into: &mut [u8]) -> usize;
}

/// A datagram that may be authentic. Opening needs no lock and any thread can do it.
pub(crate) trait Open: Send {
    /// What [`Protocol::commit`] takes.
    type Opened: Send;

    /// Opens `datagram` into the front of `into`, which is as long as the datagram.
    fn open(self, datagram: &[u8], into: &mut [u8]) -> Self::Opened;
}

/// A message of the protocol that is to be sent to a peer.
#[derive(Debug)]
pub(crate) enum Message {
    /// Initiation of a handshake.
    Initiation(Vec<u8>),
    /// Answer to an initiation.
    Response(Vec<u8>),
    /// Demand for a cookie.
    Cookie(Vec<u8>),
    /// Empty packet of a session.
    Keepalive(Vec<u8>),
}

impl Message {
    /// The datagram.
    pub(crate) fn bytes(&self) -> &[u8] {
        let (Self::Initiation(bytes)
        | Self::Response(bytes)
        | Self::Cookie(bytes)
        | Self::Keepalive(bytes)) = self;
        bytes
    }

    /// Whether it is a step of a handshake. Those have a DSCP of their own; a demand for a cookie
    /// has none, as the kernel's (`wg_socket_send_buffer_as_reply_to_skb`).
    pub(crate) fn is_step(&self) -> bool {
        matches!(self, Self::Initiation(_) | Self::Response(_))
    }
}

/// What a datagram was.
pub(crate) enum Incoming<O> {
    /// Data, which is still to be opened.
    Data(PeerId, O),
    /// A step of a handshake with a peer that has proved to be there. It has an answer.
    Handshake(PeerId, Message, Step),
    /// A cookie was taken.
    Cookie,
    /// The sender has to show a cookie first.
    Demand(Message),
}

/// Which step of a handshake was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The peer has asked for a session and was answered.
    Answered,
    /// The peer has answered: the session is there.
    Completed,
}

/// Whether a datagram claims to be a step of a handshake: an initiation or a response (WireGuard's
/// paper, 5.4.2 and 5.4.3).
pub(crate) fn is_handshake(datagram: &[u8]) -> bool {
    matches!(datagram.first(), Some(1 | 2))
}

/// Whether a datagram is as long as the step of a handshake that it claims to be.
pub(crate) fn has_len_of_step(datagram: &[u8]) -> bool {
    matches!((datagram.first(), datagram.len()), (Some(1), 148) | (Some(2), 92))
}

/// Why a datagram was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It is none of the protocol: length, type, reserved bytes.
    Malformed,
    /// It names no session or handshake that is there.
    NoSession,
    /// Its first MAC is wrong: its sender does not know the key of this interface.
    WrongMac,
    /// Its key or its tag is wrong.
    NotAuthentic,
    /// It was there before, or it is too old.
    Replayed,
    /// Its key is that of no peer.
    UnknownPeer,
    /// The source has used up its handshakes.
    RateLimited,
}

/// A packet that was opened, after its session and counter were checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Committed {
    /// A packet; its length with the padding.
    Data(usize),
    /// An empty packet.
    Keepalive,
}

/// What time has brought to a peer.
#[derive(Debug)]
pub(crate) enum Due {
    /// A message is to be sent.
    Send(Message),
    /// The session is over, or all initiations were in vain. A new session needs an initiation.
    Expired,
}

/// The protocol of one interface.
pub(crate) trait Protocol: Send + Sized {
    /// A reserved counter.
    type Seal: Seal;
    /// A datagram to be opened.
    type Open: Open;

    /// An interface with a key. `seed` is 32 random bytes, `unix` the time of day at `now`.
    fn new(
        key: &PrivateKey,
        seed: zeroize::Zeroizing<[u8; 32]>,
        now: Instant,
        unix: core::time::Duration,
    ) -> Self;

    /// Puts the time of day forward for peers that are added from here on, and for others once they
    /// have expired.
    fn put_forward(&mut self, by: core::time::Duration);

    /// Whether the time of day of a peer's initiations is older.
    fn is_behind(&self, id: PeerId) -> bool;

    /// Adds a peer under a number that no other has. Whether its key can be a peer's.
    fn add(&mut self, id: PeerId, peer: &Peer, now: Instant) -> bool;

    /// Forgets a peer.
    fn remove(&mut self, id: PeerId);

    /// Reserves a counter for one packet to a peer; `None` without a session that can take it.
    fn begin_seal(&mut self, id: PeerId, now: Instant) -> Option<Self::Seal>;

    /// Takes a datagram. `by_key` finds the peer with a key.
    ///
    /// # Errors
    /// Why it was not taken; it has changed nothing.
    fn receive(
        &mut self,
        from: SocketAddr,
        datagram: &[u8],
        now: Instant,
        by_key: impl FnOnce(&PublicKey) -> Option<PeerId>,
    ) -> Result<Incoming<Self::Open>, Refused>;

    /// Takes what was opened.
    ///
    /// # Errors
    /// Why it was not taken; it has changed nothing.
    fn commit(
        &mut self,
        id: PeerId,
        opened: <Self::Open as Open>::Opened,
        now: Instant,
    ) -> Result<Committed, Refused>;

    /// Starts a handshake, unless one is on its way.
    fn initiate(&mut self, id: PeerId, now: Instant) -> Option<Message>;

    /// Starts a handshake, which replaces one that is on its way.
    fn restart(&mut self, id: PeerId, now: Instant) -> Option<Message>;

    /// When the session that packets to a peer use was made.
    fn established(&self, id: PeerId, now: Instant) -> Option<Instant>;

    /// Takes one thing that time has brought by `now`.
    fn take_due(&mut self, id: PeerId, now: Instant) -> Option<Due>;

    /// When to ask for what time has brought.
    fn deadline(&self, id: PeerId) -> Instant;
}
