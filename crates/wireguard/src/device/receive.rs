//! Datagrams to packets: one call for up to 64 KB of them, opened into memory that the stack keeps.
//!
//! A handshake costs the time of hundreds of packets, and the engine's lock is held for it. So
//! handshakes leave the batches that they came in and wait for their turns, one between two calls
//! that receive. Packets come first, and those who send have the engine between two handshakes.

use crate::device::merge::Merger;
use crate::device::shared::Shared;
use crate::device::socket::{Arrived, HostSocket, MOST_SEGMENTS};
use crate::device::toll::TollMeter;
use crate::engine::{Ends, Outer};
use crate::protocol::{Chosen, Open, PeerId, Protocol, has_len_of_step, is_handshake};
use neap_device::arena::{Arena, PACKET_ROOM};
use neap_device::clock;
use neap_stack::device::{Received, RxChecksum, RxQueue};
use neap_tcp::time::{Instant, Nanos};
use nix::errno::Errno;
use std::collections::VecDeque;
use std::sync::Arc;

/// Calls of one [`receive`](RxQueue::receive) that brought nothing for the stack: handshakes, and
/// what is dropped. Others get their turn in between.
const VAIN_MAX: usize = 32;

/// Such calls that a full turn of handshakes counts for: it takes much longer.
const TURN_CALLS: usize = 8;

/// The thread is behind if for so long each of its visits has found datagrams.
const BEHIND: Nanos = Nanos::from_millis(10);
/// Handshakes that wait for their turns: those of two calls.
const HANDSHAKES_MAX: usize = 2 * MOST_SEGMENTS;
/// Handshakes have the engine until they are estimated to have taken this: one with an exchange of
/// keys, or some that are answered with a cookie.
const TURN: Nanos = Nanos::from_micros(50);

type Opening = <Chosen as Protocol>::Open;
type Opened = <Opening as Open>::Opened;

/// Receiving half.
pub(crate) struct Receiver {
    shared: Arc<Shared>,
    buffer: Vec<u8>,
    control: Vec<u8>,
    arena: Arena,
    /// Packets that the stack has not taken yet.
    ready: VecDeque<Received>,
    opening: Vec<(usize, PeerId, Opening)>,
    opened: Vec<Placed>,
    merger: Merger,
    /// Answers to the datagrams that were taken.
    unsent: usize,
    /// When datagrams were found first since the socket was last seen empty.
    busy_since: Option<Instant>,
    handshakes: VecDeque<Handshake>,
    toll: TollMeter,
}

/// A step of a handshake that waits for its turn, or what claims to be one.
struct Handshake {
    ends: Ends,
    datagram: Vec<u8>,
}

/// A packet that was opened, and where.
struct Placed {
    peer: PeerId,
    opened: Opened,
    at: usize,
    /// Bytes of its datagram.
    len: usize,
}

impl Receiver {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            buffer: vec![0; PACKET_ROOM],
            control: HostSocket::control_room(),
            arena: Arena::default(),
            ready: VecDeque::new(),
            opening: Vec::new(),
            opened: Vec::new(),
            merger: Merger::default(),
            unsent: 0,
            busy_since: None,
            handshakes: VecDeque::new(),
            toll: TollMeter::default(),
        }
    }

    /// Has the handshakes among the datagrams of one call wait for their turns.
    fn put_aside(&mut self, Arrived { ends, len, segment, .. }: Arrived) {
        let datagrams = self.buffer[..len].chunks(segment);
        for datagram in datagrams.filter(|datagram| is_handshake(datagram)) {
            if !has_len_of_step(datagram) {
                self.shared.counters.dropped_malformed.one();
            } else if self.handshakes.len() < HANDSHAKES_MAX {
                self.handshakes.push_back(Handshake { ends, datagram: datagram.to_vec() });
            } else {
                self.shared.counters.dropped_busy.one();
            }
        }
    }

    /// Takes the datagrams of one call. Handshakes among them wait for their turns.
    fn take(&mut self, arrived: Arrived, now: Instant) {
        self.put_aside(arrived);
        let shared = &self.shared;
        let Arrived { ends, len, segment, ecn, lost } = arrived;
        if lost > 0 {
            shared.counters.lost_in_socket.add(lost.into());
        }
        if len == 0 {
            shared.counters.dropped_malformed.one();
        }
        let datagrams = &self.buffer[..len];
        if datagrams.chunks(segment).all(is_handshake) {
            return;
        }
        self.opening.clear();
        let opening = &mut self.opening;
        let ((), unsent) = shared.engine_unsent(|engine| {
            for (index, datagram) in datagrams.chunks(segment).enumerate() {
                if !is_handshake(datagram)
                    && let Some((peer, open)) = engine.receive(ends, datagram, now)
                {
                    opening.push((index * segment, peer, open));
                }
            }
        });
        self.unsent = unsent;
        if self.opening.is_empty() {
            return;
        }
        let room = self.arena.room();
        room.resize(len, 0);
        self.opened.clear();
        let mut at = 0;
        for (start, peer, open) in self.opening.drain(..) {
            let datagram = &datagrams[start..len.min(start + segment)];
            let opened = open.open(datagram, &mut room[at..]);
            self.opened.push(Placed { peer, opened, at, len: datagram.len() });
            at += datagram.len();
        }
        let (opened, merger) = (&mut self.opened, &mut self.merger);
        merger.begin();
        let ((), unsent) = shared.engine_unsent(|engine| {
            let outer = Outer { ends, ecn };
            let mut last = None;
            for Placed { peer, opened, at, len } in opened.drain(..) {
                let packet = &mut room[at..at + len];
                if last.is_some_and(|last| last != peer) {
                    last.into_iter().for_each(|last| engine.committed(last, now));
                }
                last = Some(peer);
                if let Some(len) = engine.commit((peer, opened), outer, len, packet, now) {
                    merger.add(at, len);
                }
            }
            last.into_iter().for_each(|last| engine.committed(last, now));
        });
        self.unsent = unsent;
        merger.merge(room);
        let all = self.arena.take();
        // The key's tag is no proof that the checksum was right before the packet was sealed. The
        // kernel takes it for one too (`CHECKSUM_UNNECESSARY` in `wg_packet_consume_data_done`).
        self.ready.extend(self.merger.packets().map(|(range, gso_size)| Received {
            data: all.slice(range),
            gso_size,
            checksum: RxChecksum::Good,
        }));
    }

    /// Looks at handshakes that wait, for one turn. Whether it was a full one.
    fn take_turn(&mut self, now: Instant) -> bool {
        if self.handshakes.is_empty() {
            self.toll.end(None, Nanos::ZERO);
            return false;
        }
        let begin = self.toll.begin();
        let toll = self.toll.take();
        let is_behind = self.busy_since.is_some_and(|since| now.since(since) > BEHIND);
        let handshakes = &mut self.handshakes;
        let (estimated, unsent) = self.shared.engine_unsent(|engine| {
            engine.begin_visit(is_behind, toll);
            while engine.estimated() < TURN
                && let Some(Handshake { ends, datagram }) = handshakes.pop_front()
            {
                // It is no packet, so there is nothing to open.
                let _ = engine.receive(ends, &datagram, now);
            }
            engine.estimated()
        });
        self.unsent = unsent;
        self.toll.end(begin, estimated);
        if estimated > Nanos::ZERO {
            self.shared.give_way();
        }
        estimated >= TURN
    }

    /// Sends the answers to datagrams that were taken. Those to one address leave together: under a
    /// flood of handshakes a call for each would take longer than reading them.
    fn answer(&mut self) {
        if core::mem::take(&mut self.unsent) > 0 {
            let begin = self.toll.begin();
            self.shared.send_outgoing();
            self.toll.add(begin);
        }
    }

    /// The next packet, of as many calls as it takes.
    fn next(&mut self, now: Instant) -> Option<Received> {
        if let Some(data) = self.shared.unreachables.take() {
            return Some(Received { data, gso_size: 0, checksum: RxChecksum::Good });
        }
        let mut vain = 0;
        while vain < VAIN_MAX {
            if let Some(packet) = self.ready.pop_front() {
                return Some(packet);
            }
            vain += if self.take_turn(now) { TURN_CALLS } else { 1 };
            if self.unsent >= MOST_SEGMENTS {
                self.answer();
            }
            let begin = self.toll.begin();
            match self.shared.socket.receive(&mut self.buffer, &mut self.control) {
                Ok(arrived) => {
                    self.busy_since.get_or_insert(now);
                    self.shared.counters.receives.one();
                    self.take(arrived, now);
                    if self.ready.is_empty() && !self.handshakes.is_empty() {
                        self.toll.add(begin);
                    }
                }
                Err(Errno::EAGAIN) if self.handshakes.is_empty() => {
                    self.busy_since = None;
                    return None;
                }
                Err(Errno::EAGAIN) => {}
                // An error of a datagram that was sent: the monitor looks at the queue of errors.
                Err(_) => self.shared.ring_for_error(),
            }
        }
        // There is more. The socket's event was taken, so the bell brings the driver back.
        self.shared.ring();
        self.ready.pop_front()
    }
}

impl RxQueue for Receiver {
    fn receive(&mut self, now: Instant) -> Option<Received> {
        self.shared.advance(now);
        let received = self.next(now);
        self.answer();
        received
    }

    fn next_event(&self) -> Instant {
        let has_work = self.shared.is_revived() || self.shared.unreachables.has_some();
        if has_work { Instant::ZERO } else { self.shared.deadline() }
    }

    fn arrival(&self, now: Instant) -> Instant {
        clock::present(now)
    }

    fn drops(&self) -> u64 {
        let counters = &self.shared.counters;
        let dropped = [
            &counters.lost_in_socket,
            &counters.dropped_malformed,
            &counters.dropped_no_session,
            &counters.dropped_not_authentic,
            &counters.dropped_replayed,
            &counters.dropped_unknown_peer,
            &counters.dropped_rate_limited,
            &counters.dropped_busy,
            &counters.dropped_not_allowed,
            &counters.dropped_not_ip,
            &counters.dropped_ecn,
        ];
        dropped.iter().map(|count| count.get()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Peer, WireguardConfig};
    use crate::engine::Engine;
    use crate::keys::PrivateKey;
    use core::net::SocketAddr;
    use core::time::Duration;
    use zeroize::Zeroizing;

    fn receiver() -> Receiver {
        let config = WireguardConfig::new(PrivateKey::from([1; 32]));
        Receiver::new(Arc::new(Shared::open(&config).expect("a socket")))
    }

    /// An initiation by somebody who knows the public key of [`receiver`] alone.
    fn forged() -> Vec<u8> {
        let mut config = WireguardConfig::new(PrivateKey::from([7; 32]));
        let mut victim = Peer::new(PrivateKey::from([1; 32]).public_key());
        let inside = core::net::IpAddr::from([10, 0, 0, 1]);
        victim.allowed_ips = vec![inside.into()];
        victim.endpoint = Some(SocketAddr::from(([192, 0, 2, 1], 9)));
        config.peers = vec![victim];
        let (now, seed) = (clock::now(), Zeroizing::new([7; 32]));
        let unix = Duration::from_secs(1_000_000);
        let attacker = Engine::<Chosen>::new(&config, seed, Arc::default(), now, unix);
        let mut attacker = attacker.expect("an engine");
        attacker.begin_send(inside, (1, 64), &mut Vec::new(), now);
        attacker.take_outgoing().remove(0).message.bytes().to_vec()
    }

    /// Somebody who sends to a receiver.
    fn sender(receiver: &Receiver) -> std::net::UdpSocket {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let to = SocketAddr::from(([127, 0, 0, 1], receiver.shared.socket.port()));
        socket.connect(to).expect("a way");
        socket
    }

    #[test]
    fn others_have_the_engine_between_two_handshakes_of_one_batch() {
        let (mut receiver, initiation) = (receiver(), forged());
        let (now, ends) = (clock::now(), SocketAddr::from(([192, 0, 2, 7], 9)).into());
        let batch = initiation.repeat(64);
        receiver.buffer[..batch.len()].copy_from_slice(&batch);
        let (len, segment) = (batch.len(), initiation.len());
        receiver.take(Arrived { ends, len, segment, ecn: 0, lost: 0 }, now);
        let shared = receiver.shared.clone();
        let looked_at = || {
            let counters = &shared.counters;
            let exchanges = counters.dropped_unknown_peer.get() + counters.dropped_replayed.get();
            (
                exchanges,
                counters
                    .figures()
                    .iter()
                    .filter(|(name, _)| name.starts_with("dropped"))
                    .map(|one| one.1)
                    .sum::<u64>(),
            )
        };
        assert_eq!(looked_at(), (0, 0), "they wait");
        let mut before = 0;
        while !receiver.handshakes.is_empty() {
            receiver.take_turn(now);
            let (exchanges, _) = looked_at();
            assert!(exchanges <= before + 1, "{exchanges} after {before}");
            before = exchanges;
        }
        assert!(before >= 20, "each address has twenty a second: {before}");
        assert_eq!(looked_at().1, 64);
    }

    #[test]
    fn handshakes_that_find_no_place_are_dropped_and_counted() {
        let (mut receiver, now) = (receiver(), clock::now());
        let ends = SocketAddr::from(([192, 0, 2, 7], 9)).into();
        let (len, segment) = (64 * 92, 92);
        receiver.buffer[..len].fill(2);
        for _ in 0..3 {
            receiver.take(Arrived { ends, len, segment, ecn: 0, lost: 0 }, now);
        }
        assert_eq!(
            (receiver.handshakes.len(), receiver.shared.counters.dropped_busy.get()),
            (128, 64)
        );
    }

    #[test]
    fn what_has_not_the_length_of_a_handshake_does_not_wait_as_one() {
        let (mut receiver, now) = (receiver(), clock::now());
        let ends = SocketAddr::from(([192, 0, 2, 7], 9)).into();
        for (kind, segment) in [(1, 1), (1, 92), (2, 148)] {
            receiver.buffer[..64 * segment].fill(kind);
            receiver.take(Arrived { ends, len: 64 * segment, segment, ecn: 0, lost: 0 }, now);
        }
        assert_eq!(receiver.handshakes.len(), 0);
        assert_eq!(receiver.shared.counters.dropped_malformed.get(), 192);
    }

    #[test]
    fn a_thread_that_was_idle_is_not_behind() {
        let (mut receiver, initiation) = (receiver(), forged());
        let sender = sender(&receiver);
        let mut now = clock::now();
        let mut is_behind_after = |pause, is_emptied: bool| {
            now += pause;
            sender.send(&initiation).expect("sent");
            // What is behind it is more than one visit takes.
            let junk = if is_emptied { 0 } else { VAIN_MAX };
            (0..junk).for_each(|_| assert_eq!(sender.send(&[0]).ok(), Some(1)));
            receiver.shared.socket.wait(rustix::event::PollFlags::IN);
            assert!(receiver.receive(now).is_none());
            while is_emptied && receiver.busy_since.is_some() {
                assert!(receiver.receive(now).is_none());
            }
            assert!(is_emptied || receiver.busy_since.is_some(), "the socket is empty");
            receiver.shared.engine(|engine| engine.is_behind())
        };
        assert!(!is_behind_after(Nanos::ZERO, true));
        assert!(!is_behind_after(Nanos::from_secs(60), true), "nobody has sent for a minute");
        assert!(!is_behind_after(Nanos::from_secs(60), false));
        assert!(!is_behind_after(BEHIND, false));
        assert!(is_behind_after(Nanos(1), false), "the socket was not empty for so long");
        assert!(is_behind_after(Nanos(1), true));
        assert!(!is_behind_after(Nanos(1), true));
    }

    #[test]
    fn an_empty_datagram_is_dropped_and_counted() {
        let mut receiver = receiver();
        sender(&receiver).send(&[]).expect("sent");
        receiver.shared.socket.wait(rustix::event::PollFlags::IN);
        assert!(receiver.receive(clock::now()).is_none());
        assert_eq!(receiver.drops(), 1);
    }
}
