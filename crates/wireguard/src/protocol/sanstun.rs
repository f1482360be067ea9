//! The protocol by the crate `sanstun`.

use super::{Committed, Due, Incoming, Message, Open, PeerId, Protocol, Refused, Seal, Step};
use crate::config::Peer;
use crate::keys::{PresharedKey, PrivateKey, PublicKey};
use core::net::SocketAddr;
use core::time::Duration;
use neap_tcp::time::{Instant, Nanos};
use sanstun::{
    Datagram, Decrypted, Error, Event, Interface, PendingDecapsulate, PendingEncapsulate, Received,
    ReceivedMessage, Tunnel, TunnelConfig, TunnelId,
};
use std::collections::HashMap;
use zeroize::Zeroizing;

/// How long after data that were not answered a keepalive is sent (WireGuard's paper,
/// `Keepalive-Timeout`).
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// The same for neap's clock.
const WAIT: Nanos = Nanos(KEEPALIVE_TIMEOUT.as_nanos() as u64);

/// An interface of `sanstun`.
pub(crate) struct Sanstun {
    interface: Interface,
    clock: Clock,
    /// The clock of new tunnels. It is ahead of the other one by as much as the time of day was put
    /// forward.
    latest: Clock,
    peers: Vec<Option<PeerTunnel>>,
    by_tunnel: HashMap<TunnelId, PeerId>,
}

/// A peer and its tunnel. An expired tunnel is dropped, and the next use makes a new one.
struct PeerTunnel {
    key: sanstun::PublicKey,
    preshared_key: Option<PresharedKey>,
    keepalive: Duration,
    tunnel: Option<Tunnel>,
    /// The clock of the tunnel. An interface of `sanstun` takes the time of day once, and its
    /// tunnels add to it what has passed. A tunnel whose times are all later begins with a later
    /// time of day.
    clock: Clock,
    /// When the first data came that nothing was sent after. `sanstun` counts from the latest, so
    /// that a peer that never pauses would get no keepalive, and take the session for dead.
    unanswered: Option<Instant>,
}

/// `sanstun` takes the times of `std`, which have no epoch: those of neap are added to one that was
/// read once. Only differences count.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Clock {
    base: std::time::Instant,
    start: Instant,
}

impl Clock {
    fn at(self, now: Instant) -> std::time::Instant {
        self.base + Duration::from_nanos(now.since(self.start).0)
    }

    fn back(self, at: std::time::Instant) -> Instant {
        let nanos = at.saturating_duration_since(self.base).as_nanos();
        self.start + Nanos(u64::try_from(nanos).unwrap_or(u64::MAX / 4))
    }
}

impl PeerTunnel {
    /// The tunnel, if there is one, and its time.
    fn at(&mut self, now: Instant) -> Option<(&mut Tunnel, std::time::Instant)> {
        Some((self.tunnel.as_mut()?, self.clock.at(now)))
    }
}

impl Sanstun {
    /// The tunnel of a peer, made anew if the last one has expired, and its time.
    fn tunnel(&mut self, id: PeerId, now: Instant) -> Option<(&mut Tunnel, std::time::Instant)> {
        let peer = self.peers.get_mut(id)?.as_mut()?;
        if peer.tunnel.is_none() {
            let mut config = TunnelConfig::default().with_persistent_keepalive(peer.keepalive);
            if let Some(key) = &peer.preshared_key {
                config = config.with_preshared_key(key.secret());
            }
            let at = self.latest.at(now);
            let tunnel = self.interface.new_tunnel(peer.key, config, at).ok()?;
            self.by_tunnel.insert(tunnel.id(), id);
            (peer.tunnel, peer.clock) = (Some(tunnel), self.latest);
        }
        peer.at(now)
    }

    /// The tunnel of a peer, if it has one, and its clock.
    fn existing(&self, id: PeerId) -> Option<(&Tunnel, Clock)> {
        let peer = self.peers.get(id)?.as_ref()?;
        Some((peer.tunnel.as_ref()?, peer.clock))
    }

    /// Something was sent to a peer in its session.
    fn answered(&mut self, id: PeerId) {
        if let Some(peer) = self.peers.get_mut(id).and_then(Option::as_mut) {
            peer.unanswered = None;
        }
    }

    fn drop_tunnel(&mut self, id: PeerId) {
        let Some(peer) = self.peers.get_mut(id).and_then(Option::as_mut) else { return };
        peer.unanswered = None;
        if let Some(tunnel) = peer.tunnel.take() {
            self.by_tunnel.remove(&tunnel.id());
        }
    }

    /// The peer that a datagram names, its tunnel, and the time of that.
    fn named(
        &mut self,
        tunnel: TunnelId,
        now: Instant,
    ) -> Result<(PeerId, &mut Tunnel, std::time::Instant), Refused> {
        let id = *self.by_tunnel.get(&tunnel).ok_or(Refused::NoSession)?;
        let peer = self.peers.get_mut(id).and_then(Option::as_mut);
        let (tunnel, at) = peer.and_then(|peer| peer.at(now)).ok_or(Refused::NoSession)?;
        Ok((id, tunnel, at))
    }
}

impl Protocol for Sanstun {
    type Seal = PendingEncapsulate;
    type Open = PendingDecapsulate;

    fn new(key: &PrivateKey, seed: Zeroizing<[u8; 32]>, now: Instant, unix: Duration) -> Self {
        let clock = Clock { base: std::time::Instant::now(), start: now };
        let interface = Interface::new(seed, clock.base, unix).with_static_private(key.secret());
        let (peers, by_tunnel) = (Vec::new(), HashMap::new());
        Self { interface, clock, latest: clock, peers, by_tunnel }
    }

    fn put_forward(&mut self, by: Duration) {
        if let Some(base) = self.latest.base.checked_add(by) {
            self.latest.base = base;
        }
    }

    fn is_behind(&self, id: PeerId) -> bool {
        self.existing(id).is_some_and(|(_, clock)| clock != self.latest)
    }

    fn add(&mut self, id: PeerId, peer: &Peer, now: Instant) -> bool {
        if self.peers.len() <= id {
            self.peers.resize_with(id + 1, || None);
        }
        self.peers[id] = Some(PeerTunnel {
            key: sanstun::PublicKey::from(*peer.public_key.as_bytes()),
            preshared_key: peer.preshared_key.clone(),
            keepalive: peer.persistent_keepalive.unwrap_or_default(),
            tunnel: None,
            clock: self.latest,
            unanswered: None,
        });
        let is_good = self.tunnel(id, now).is_some();
        if !is_good {
            self.peers[id] = None;
        }
        is_good
    }

    fn remove(&mut self, id: PeerId) {
        self.drop_tunnel(id);
        if let Some(peer) = self.peers.get_mut(id) {
            *peer = None;
        }
    }

    fn begin_seal(&mut self, id: PeerId, now: Instant) -> Option<PendingEncapsulate> {
        let (tunnel, at) = self.tunnel(id, now)?;
        let seal = tunnel.begin_encapsulate(at).ok()?;
        self.answered(id);
        Some(seal)
    }

    fn receive(
        &mut self,
        from: SocketAddr,
        datagram: &[u8],
        now: Instant,
        by_key: impl FnOnce(&PublicKey) -> Option<PeerId>,
    ) -> Result<Incoming<PendingDecapsulate>, Refused> {
        let at = self.clock.at(now);
        let message = match self.interface.receive(from, datagram, at).map_err(refused)? {
            Received::SendCookieReply(reply) => {
                return Ok(Incoming::Demand(Message::Cookie(bytes(&reply))));
            }
            Received::Message(message) => message,
        };
        match message {
            ReceivedMessage::TransportData(data) => {
                let (id, tunnel, at) = self.named(data.tunnel_id(), now)?;
                let open = tunnel.begin_decapsulate(data, at).map_err(refused)?;
                Ok(Incoming::Data(id, open))
            }
            ReceivedMessage::HandshakeInitiation(initiation) => {
                let key = PublicKey::from(initiation.peer_static_public().to_bytes());
                let id = by_key(&key).ok_or(Refused::UnknownPeer)?;
                let (tunnel, at) = self.tunnel(id, now).ok_or(Refused::UnknownPeer)?;
                let response =
                    tunnel.handle_handshake_initiation(initiation, at).map_err(refused)?;
                let message = Message::Response(bytes(&response));
                Ok(Incoming::Handshake(id, message, Step::Answered))
            }
            ReceivedMessage::HandshakeResponse(response) => {
                let (id, tunnel, at) = self.named(response.tunnel_id(), now)?;
                let keepalive = tunnel.handle_handshake_response(response, at).map_err(refused)?;
                let message = Message::Keepalive(bytes(&keepalive));
                self.answered(id);
                Ok(Incoming::Handshake(id, message, Step::Completed))
            }
            ReceivedMessage::CookieReply(reply) => {
                let (_, tunnel, at) = self.named(reply.tunnel_id(), now)?;
                tunnel.handle_cookie_reply(reply, at).map_err(refused)?;
                Ok(Incoming::Cookie)
            }
        }
    }

    fn commit(
        &mut self,
        id: PeerId,
        opened: Decrypted<usize>,
        now: Instant,
    ) -> Result<Committed, Refused> {
        let peer = self.peers.get_mut(id).and_then(Option::as_mut).ok_or(Refused::NoSession)?;
        let (tunnel, at) = peer.at(now).ok_or(Refused::NoSession)?;
        match tunnel.commit_decapsulate(opened, at).map_err(refused)? {
            sanstun::Committed::Data { len, .. } => {
                peer.unanswered.get_or_insert(now);
                Ok(Committed::Data(len))
            }
            sanstun::Committed::Keepalive => Ok(Committed::Keepalive),
        }
    }

    fn initiate(&mut self, id: PeerId, now: Instant) -> Option<Message> {
        let (tunnel, at) = self.tunnel(id, now)?;
        let initiation = tunnel.initiate_handshake(at)?;
        Some(Message::Initiation(bytes(&initiation)))
    }

    fn restart(&mut self, id: PeerId, now: Instant) -> Option<Message> {
        let (tunnel, at) = self.tunnel(id, now)?;
        let initiation = tunnel.restart_handshake(at)?;
        Some(Message::Initiation(bytes(&initiation)))
    }

    fn established(&self, id: PeerId, now: Instant) -> Option<Instant> {
        let (tunnel, clock) = self.existing(id)?;
        let age = tunnel.time_since_last_handshake(clock.at(now))?;
        Some(now - Nanos(u64::try_from(age.as_nanos()).ok()?))
    }

    fn take_due(&mut self, id: PeerId, now: Instant) -> Option<Due> {
        let peer = self.peers.get_mut(id)?.as_mut()?;
        let mut was_advanced = false;
        loop {
            let is_due = peer.unanswered.is_some_and(|first| now >= first + WAIT);
            let (tunnel, at) = peer.at(now)?;
            match tunnel.poll_event() {
                Some(Event::SendHandshakeInitiation(datagram)) => {
                    return Some(Due::Send(Message::Initiation(bytes(&datagram))));
                }
                Some(Event::SendKeepalive(datagram)) => {
                    peer.unanswered = None;
                    return Some(Due::Send(Message::Keepalive(bytes(&datagram))));
                }
                Some(Event::Established { .. }) => {}
                Some(Event::ConnectionExpired) => {
                    self.drop_tunnel(id);
                    return Some(Due::Expired);
                }
                None if was_advanced => return None,
                None => {
                    if is_due {
                        // What has come since makes the keepalive due at once.
                        tunnel.set_keepalive_timeout(Duration::ZERO);
                    }
                    tunnel.handle_timeout(at);
                    tunnel.set_keepalive_timeout(KEEPALIVE_TIMEOUT);
                    if is_due {
                        // Where a handshake is under way instead, that is an answer, too.
                        peer.unanswered = None;
                    }
                    was_advanced = true;
                }
            }
        }
    }

    fn deadline(&self, id: PeerId) -> Instant {
        let deadline = |(tunnel, clock): (&Tunnel, Clock)| Some(clock.back(tunnel.poll_timeout()?));
        let deadline = self.existing(id).and_then(deadline).unwrap_or(Instant::FAR_FUTURE);
        let unanswered = self.peers.get(id).and_then(|peer| peer.as_ref()?.unanswered);
        unanswered.map_or(deadline, |first| deadline.min(first + WAIT))
    }
}

impl Seal for PendingEncapsulate {
    fn seal(self, packet: &[u8], into: &mut [u8]) -> usize {
        self.encrypt(packet, into).map_or(0, |datagram| datagram.len())
    }
}

impl Open for PendingDecapsulate {
    type Opened = Decrypted<usize>;

    fn open(self, datagram: &[u8], into: &mut [u8]) -> Decrypted<usize> {
        self.decrypt(datagram, into).map(|_, len| len)
    }
}

fn bytes(datagram: &Datagram) -> Vec<u8> {
    datagram.to_vec()
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn refused(error: Error) -> Refused {
    match error {
        Error::InvalidMac => Refused::WrongMac,
        Error::InvalidAeadTag | Error::WrongKey | Error::LowOrderPoint => Refused::NotAuthentic,
        Error::ReplayedHandshakeInitiation | Error::InvalidCounter | Error::DuplicateCounter => {
            Refused::Replayed
        }
        Error::NoCurrentSession
        | Error::WrongIndex
        | Error::UnexpectedPacket
        | Error::ConnectionExpired => Refused::NoSession,
        Error::RateLimited => Refused::RateLimited,
        Error::InvalidPacket | Error::EmptyPlaintext | Error::DestinationBufferTooSmall { .. } => {
            Refused::Malformed
        }
    }
}
