//! Frames to datagrams: routing, sealing, one call per frame, and what the host has let go of.

use crate::counters::Counters;
use crate::device::black_hole::BlackHole;
use crate::device::credits::{Account, Credits};
use crate::device::path;
use crate::device::sealers::{Chunk, LEAST_PACKETS, Sealers};
use crate::device::shared::Shared;
use crate::device::socket::{Batch, MOST_BYTES, Sent};
use crate::device::waiting::Waiting;
use crate::engine::{Ends, Way};
use crate::ip::Header;
use crate::protocol::{Chosen, Protocol, sealed_len};
use neap_device::clock;
use neap_stack::device::{Completed, TxQueue};
use neap_stack::frame::Frame;
use neap_stack::gso;
use neap_tcp::time::{Instant, Nanos};
use nix::errno::Errno;
use smallvec::SmallVec;
use std::sync::Arc;

/// When a frame that the host's qdisc had no room for is tried again, if no other event comes
/// first. Nothing tells when somebody else's queue has room.
const RETRY: Nanos = Nanos::from_millis(1);
/// Bytes of memory that a datagram counts for beside its own, at most: a head of its own, after
/// the qdisc has cut a super-datagram.
const TRUESIZE: u64 = 1280;

type Counter = <Chosen as Protocol>::Seal;

/// Sending half.
pub(crate) struct Sender {
    shared: Arc<Shared>,
    credits: Credits,
    /// Sealed datagrams of one frame, in order; the room is used again.
    chunks: Vec<Chunk<Counter>>,
    /// Chunks that are not needed for this frame.
    spare: Vec<Chunk<Counter>>,
    /// Helpers that are wanted. They start with the first frame that has work for them: a program
    /// gives up rights once its device is there, and threads of before would keep them.
    helpers: usize,
    sealers: Option<Sealers<Counter>>,
    /// One packet before it is sealed; the room is used again.
    packet: Vec<u8>,
    seals: Vec<Counter>,
    /// What the host has not taken yet. Its datagrams are in `chunks`.
    pending: Option<Pending>,
    waiting: Waiting,
    /// Frames that waited for a handshake may go.
    is_resuming: bool,
    retry_at: Instant,
    hole: BlackHole,
    is_latest_complete: bool,
    /// Frames in a row that were complete when they were taken.
    at_once: u32,
}

struct Pending {
    frame: Frame,
    account: Account,
    segment: usize,
    to: Ends,
    class: u8,
    /// Datagrams that the host has taken.
    done: usize,
}

/// What became of a frame on its way to the socket.
enum Outcome {
    /// Complete: the wire has it, it waits for a handshake, or it was dropped and counted.
    Complete,
    /// The host holds it.
    Held,
    /// It is sealed, and the host is full.
    Pending,
}

impl Sender {
    /// The half that sends, with as many helpers.
    pub(crate) fn new(shared: Arc<Shared>, helpers: usize) -> Self {
        Self {
            shared,
            credits: Credits::default(),
            chunks: Vec::new(),
            spare: Vec::new(),
            helpers,
            sealers: None,
            packet: Vec::with_capacity(2048),
            seals: Vec::with_capacity(64),
            pending: None,
            waiting: Waiting::default(),
            is_resuming: false,
            retry_at: Instant::FAR_FUTURE,
            hole: BlackHole::default(),
            is_latest_complete: false,
            at_once: 0,
        }
    }

    /// Whether the frame fits under the bound, as far as the host has let go of others.
    fn has_room(&mut self, frame: &Frame) -> bool {
        let (count, bytes) = sizes(frame);
        let room = bytes as u64 + count as u64 * TRUESIZE;
        let bound = self.shared.socket.quiet_bound();
        let fits = |credits: &Credits| credits.is_empty() || credits.charged() + room <= bound;
        if fits(&self.credits) {
            return true;
        }
        self.credits.settle(self.shared.socket.held());
        fits(&self.credits)
    }

    fn settle(&mut self) {
        if !self.credits.is_empty() || self.shared.socket.has_old() {
            self.credits.settle(self.shared.socket.held());
        }
    }

    /// Routes, seals and sends a frame.
    fn send(&mut self, frame: Frame, account: Account, now: Instant) -> Outcome {
        let counters = &self.shared.counters;
        let Some(header) = Header::of_headers(frame.headers.as_slice()) else {
            counters.dropped_bad_frame.one();
            return Outcome::Complete;
        };
        let (count, bytes) = sizes(&frame);
        if bytes > MOST_BYTES {
            counters.dropped_bad_frame.one();
            return Outcome::Complete;
        }
        if self.hole.suspects(&frame, path::LEAST.into(), now) && self.shared.path.suspect(now) {
            counters.black_holes.one();
            self.shared.ring_for_path();
        }
        let may_be_behind = account == Account::New && !self.waiting.is_empty();
        let (mut way, mut segment) = (Way::NoPeer, 0);
        // The second time, with other counters, no helper can be late.
        for (helpers, bytes) in [(self.helpers, bytes), (0, 0)] {
            self.seals.clear();
            let (seals, waiting, to) = (&mut self.seals, &self.waiting, header.destination);
            way = self.shared.engine(|engine| {
                let peer = if may_be_behind { engine.session_with(to, now) } else { None };
                match peer {
                    // The session came after the look at those that wait. They go first.
                    Some(peer) if waiting.contains(peer) => Way::Waits(peer),
                    _ => engine.begin_send(to, (count, bytes), seals, now),
                }
            });
            let is_sent = matches!(way, Way::To(_));
            let sealed = if is_sent { self.seal(&frame, count, helpers) } else { Some(0) };
            if let Some(len) = sealed {
                segment = len;
                break;
            }
            self.shared.counters.sealed_again.one();
        }
        match way {
            Way::To(to) => {
                let class = header.ecn;
                self.put(Pending { frame, account, segment, to, class, done: 0 }, now)
            }
            Way::Waits(peer) => {
                let dropped = self.waiting.push(peer, frame);
                self.shared.counters.dropped_waiting.add(dropped);
                Outcome::Complete
            }
            Way::NoPeer => {
                if self.shared.unreachables.add(&frame, now) {
                    self.shared.ring();
                }
                Outcome::Complete
            }
        }
    }

    /// Seals the `count` packets of a frame one behind the other. Returns the length of the first,
    /// and `None` if a helper is late: its packets are missing.
    fn seal(&mut self, frame: &Frame, count: usize, helpers: usize) -> Option<usize> {
        let sealers = &mut self.sealers;
        let wants_help = helpers > 0 && count >= LEAST_PACKETS;
        let sealers = wants_help.then(|| &*sealers.get_or_insert_with(|| Sealers::new(helpers)));
        let parts = sealers.map_or(1, |sealers| sealers.count() + 1);
        let in_each = count.div_ceil(parts).max(1);
        self.spare.append(&mut self.chunks);
        let (mut segment, mut index) = (0, 0);
        let mut seals = self.seals.drain(..);
        let (chunks, spare) = (&mut self.chunks, &mut self.spare);
        gso::write_packets(frame, &mut self.packet, |packet| {
            let Some(seal) = seals.next() else { return };
            if index % in_each == 0 {
                let mut chunk = spare.pop().unwrap_or_default();
                chunk.clear();
                chunks.push(chunk);
            }
            let Some(chunk) = chunks.last_mut() else { return };
            match sealers {
                Some(_) => chunk.add(packet, seal),
                None => chunk.seal(packet, seal),
            }
            segment = segment.max(sealed_len(packet.len()));
            index += 1;
        });
        let is_whole = sealers.is_none_or(|sealers| sealers.seal(chunks));
        is_whole.then_some(segment)
    }

    /// Gives sealed datagrams to the host.
    fn put(&mut self, pending: Pending, now: Instant) -> Outcome {
        let socket = &self.shared.socket;
        let counters = &self.shared.counters;
        let before = if self.credits.is_empty() { 0 } else { socket.held() };
        let Pending { segment, to, class, mut done, .. } = pending;
        let parts: SmallVec<[&[u8]; 4]> = self.chunks.iter().map(Chunk::datagrams).collect();
        let may_be_cut = segment > sealed_len(path::LEAST.into()) && self.shared.path.is_cautious();
        let batch = Batch { parts: &parts, segment, to, class, may_be_cut };
        counters.sends.one();
        match self.shared.send_batch(batch, &mut done) {
            Ok(sent) => {
                match sent {
                    Sent::Whole => {}
                    Sent::OneByOne => counters.sent_one_by_one.one(),
                    Sent::Fragmentable => counters.sent_fragmentable.one(),
                }
                let after = socket.held();
                if self.credits.sent(pending.frame, pending.account, before, after) {
                    return Outcome::Complete;
                }
                Outcome::Held
            }
            Err(errno @ (Errno::EAGAIN | Errno::ENOBUFS | Errno::ENOMEM)) => {
                counters.socket_full.one();
                // The socket tells of its own room. It does not tell of that of a qdisc.
                if errno != Errno::EAGAIN || self.credits.is_empty() {
                    self.retry_at = now + RETRY;
                }
                let account = match pending.account {
                    Account::Closed => Account::Closed,
                    Account::New | Account::Queued => Account::Queued,
                };
                self.pending = Some(Pending { account, done, ..pending });
                Outcome::Pending
            }
            Err(_) => {
                let left = sizes(&pending.frame).0.saturating_sub(done);
                counters.dropped_send_error.add(left as u64);
                self.credits.refused(&pending.frame, pending.account);
                Outcome::Complete
            }
        }
    }

    /// Sends what had to wait: for room below the socket, and for handshakes. Whether the socket
    /// takes more.
    fn resume(&mut self, now: Instant) -> bool {
        self.is_resuming |= self.shared.take_revival();
        if let Some(pending) = self.pending.take() {
            self.retry_at = Instant::FAR_FUTURE;
            self.put(pending, now);
        }
        if self.pending.is_none() && self.is_resuming {
            self.is_resuming = false;
            self.send_waiting(now);
        }
        self.pending.is_none()
    }

    /// Sends frames that waited for a handshake, and drops those that waited in vain.
    fn send_waiting(&mut self, now: Instant) {
        for peer in self.waiting.peers() {
            let (is_ready, is_hopeful, lacks_endpoint) = self.shared.engine(|engine| {
                let is_ready = engine.has_session(peer, now);
                (is_ready, engine.awaits_answer(peer), engine.lacks_endpoint(peer))
            });
            if !is_ready && is_hopeful {
                continue;
            }
            let mut frames = self.waiting.take(peer);
            if !is_ready {
                let Counters { dropped_no_endpoint, dropped_unanswered, .. } =
                    &*self.shared.counters;
                let dropped = if lacks_endpoint { dropped_no_endpoint } else { dropped_unanswered };
                dropped.add(frames.len() as u64);
                continue;
            }
            while self.pending.is_none()
                && let Some(frame) = frames.pop_front()
            {
                self.send(frame, Account::Closed, now);
            }
            self.is_resuming |= !frames.is_empty();
            for frame in frames {
                let dropped = self.waiting.push(peer, frame);
                self.shared.counters.dropped_waiting.add(dropped);
            }
        }
    }
}

/// Packets of a frame, and bytes of their datagrams.
fn sizes(frame: &Frame) -> (usize, usize) {
    let headers = frame.headers.len();
    let payload = frame.payload.len() as usize;
    let size = frame.gso.map_or(0, |gso| usize::from(gso.size));
    if size == 0 || payload <= size {
        return (1, sealed_len(headers + payload));
    }
    let (full, rest) = (payload / size, payload % size);
    let last = if rest > 0 { sealed_len(headers + rest) } else { 0 };
    (full + usize::from(rest > 0), full * sealed_len(headers + size) + last)
}

impl TxQueue for Sender {
    fn submit(&mut self, frame: Frame, now: Instant) -> Result<(), Frame> {
        if !self.resume(now) || !self.has_room(&frame) {
            return Err(frame);
        }
        self.is_latest_complete = matches!(self.send(frame, Account::New, now), Outcome::Complete);
        self.at_once = if self.is_latest_complete { self.at_once.saturating_add(1) } else { 0 };
        Ok(())
    }

    fn is_latest_complete(&self) -> bool {
        self.is_latest_complete
    }

    fn completes_within_calls(&self) -> bool {
        self.at_once >= 64
    }

    fn departure(&self, now: Instant) -> Instant {
        clock::present(now)
    }

    fn flush(&mut self, _: Instant) {}

    fn reap(&mut self, now: Instant) -> Completed {
        self.shared.advance(now);
        if self.shared.path.wants_look(now) {
            self.shared.ring_for_path();
        }
        self.settle();
        self.resume(now);
        self.credits.take_completed()
    }

    fn next_event(&self) -> Instant {
        self.shared.deadline().min(self.retry_at).min(self.shared.path.next_look())
    }

    fn errors(&self) -> u64 {
        let counters = &self.shared.counters;
        counters.dropped_send_error.get() + counters.dropped_bad_frame.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Peer, WireguardConfig};
    use crate::device::namespace::{in_namespace, run};
    use crate::device::receive::Receiver;
    use crate::device::socket::SEND_BUFFER_MAX;
    use crate::device::waiting::FRAMES_MAX;
    use crate::keys::{PrivateKey, PublicKey};
    use core::net::SocketAddr;
    use neap_stack::device::RxQueue;
    use neap_stack::frame::{Gso, GsoKind, Headers};
    use neap_tcp::segment::Payload;

    /// An interface with a peer at an address.
    fn shared(endpoint: Option<SocketAddr>) -> Arc<Shared> {
        let mut config = WireguardConfig::new(PrivateKey::from([1; 32]));
        config.peers = vec![Peer::new(PrivateKey::from([2; 32]).public_key())];
        config.peers[0].endpoint = endpoint;
        Arc::new(Shared::open(&config).expect("a socket"))
    }

    /// A datagram with a number, from an end of the tunnel to the other.
    fn numbered(number: u8) -> Frame {
        let mut headers = Headers::default();
        let ip = headers.prepend(20);
        (ip[0], ip[3], ip[8], ip[9]) = (0x45, 60, 64, 17);
        ip[12..].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        Frame::new(headers, Payload::from(bytes::Bytes::from(vec![number; 40])))
    }

    /// The number of a datagram.
    fn number(frame: &Frame) -> Option<u8> {
        let (mut packet, mut number) = (Vec::new(), None);
        gso::write_packets(frame, &mut packet, |packet| number = packet.last().copied());
        number
    }

    /// Two ends of a tunnel, of which the first knows where the second is.
    fn ends() -> [Arc<Shared>; 2] {
        let keys = [PrivateKey::from([1; 32]), PrivateKey::from([2; 32])];
        let mut endpoint = None;
        let mut ends = [1, 0].map(|end| {
            let mut config = WireguardConfig::new(keys[end].clone());
            let mut peer = Peer::new(keys[1 - end].public_key());
            let inside = core::net::IpAddr::from([10, 0, 0, 2 - end as u8]);
            (peer.allowed_ips, peer.endpoint) = (vec![inside.into()], endpoint);
            config.peers = vec![peer];
            let shared = Arc::new(Shared::open(&config).expect("a socket"));
            endpoint = Some(SocketAddr::from(([127, 0, 0, 1], shared.socket.port())));
            shared
        });
        ends.reverse();
        ends
    }

    #[test]
    fn the_oldest_of_too_many_frames_that_wait_is_dropped() {
        let [near, _far] = ends();
        let mut sender = Sender::new(near.clone(), 0);
        let now = neap_device::clock::now();
        for index in 0..=FRAMES_MAX {
            assert!(sender.submit(numbered(index as u8), now).is_ok());
        }
        let numbers: Vec<_> = sender.waiting.frames(0).into_iter().filter_map(number).collect();
        assert_eq!(numbers, (1..=FRAMES_MAX as u8).collect::<Vec<_>>());
        assert_eq!(near.counters.dropped_waiting.get(), 1);
    }

    #[test]
    fn a_new_frame_does_not_pass_those_that_waited() {
        let [near, far] = ends();
        let mut sender = Sender::new(near.clone(), 0);
        let now = neap_device::clock::now();
        let mut receivers = [Receiver::new(near.clone()), Receiver::new(far.clone())];
        assert!(sender.submit(numbered(0), now).is_ok());
        for (end, receiver) in [(&far, 1), (&near, 0)] {
            end.socket.wait(rustix::event::PollFlags::IN);
            assert!(receivers[receiver].receive(now).is_none());
        }
        assert!(near.engine(|engine| engine.has_session(0, now)));
        // `submit` has looked at those that wait before there was a session.
        sender.send(numbered(1), Account::New, now);
        sender.reap(now);
        let mut numbers = Vec::new();
        while numbers.len() < 2 {
            match receivers[1].receive(now) {
                Some(packet) => numbers.extend(packet.data.last().copied()),
                None => far.socket.wait(rustix::event::PollFlags::IN),
            }
        }
        assert_eq!(numbers, [0, 1]);
    }

    /// Two ends of a tunnel of which none knows where the other is, the key of the second, and
    /// where that is.
    fn apart() -> ([Arc<Shared>; 2], PublicKey, SocketAddr) {
        let [near, far] = ends();
        let (mut peer, at) = (Peer::new(far.status().public_key), near.status().peers[0].endpoint);
        peer.allowed_ips = near.status().peers[0].allowed_ips.clone();
        near.set_peers(Vec::new()).expect("nobody");
        near.set_peers(vec![peer.clone()]).expect("a peer");
        ([near, far], peer.public_key, at.expect("the far end"))
    }

    #[test]
    fn a_frame_to_a_peer_without_an_endpoint_arrives_once_it_has_one() {
        let ([near, far], key, at) = apart();
        let mut sender = Sender::new(near.clone(), 0);
        let now = neap_device::clock::now();
        let mut receivers = [Receiver::new(near.clone()), Receiver::new(far.clone())];
        assert!(sender.submit(numbered(7), now).is_ok());
        sender.reap(now);
        near.set_endpoint(&key, at).expect("a peer");
        assert_eq!(near.counters.initiations_sent.get(), 1);
        sender.reap(now);
        for (end, receiver) in [(&far, 1), (&near, 0)] {
            end.socket.wait(rustix::event::PollFlags::IN);
            assert!(receivers[receiver].receive(now).is_none());
        }
        sender.reap(now);
        let packet = loop {
            match receivers[1].receive(now) {
                Some(packet) => break packet,
                None => far.socket.wait(rustix::event::PollFlags::IN),
            }
        };
        assert_eq!(packet.data.last(), Some(&7));
    }

    #[test]
    fn a_frame_waits_for_an_endpoint_for_ninety_seconds() {
        let ([near, _far], ..) = apart();
        let mut sender = Sender::new(near.clone(), 0);
        let now = neap_device::clock::now();
        assert!(sender.submit(numbered(7), now).is_ok());
        let dropped = || near.counters.dropped_no_endpoint.get();
        sender.reap(now + Nanos::from_secs(89));
        assert_eq!((sender.waiting.frames(0).len(), dropped()), (1, 0));
        assert!(near.deadline() <= now + Nanos::from_secs(90));
        sender.reap(now + Nanos::from_secs(90));
        assert_eq!((sender.waiting.frames(0).len(), dropped()), (0, 1));
        assert_eq!(near.counters.dropped_unanswered.get(), 0);
    }

    #[test]
    fn each_datagram_of_a_frame_that_the_host_refuses_is_counted() {
        let mut sender = Sender::new(shared(None), 0);
        let (mut frame, now) = (numbered(0), neap_device::clock::now());
        let count = sizes(&frame).0;
        // The host refuses a broadcast address.
        let to = SocketAddr::from(([255, 255, 255, 255], 9)).into();
        let pending =
            |frame| Pending { frame, account: Account::New, segment: 96, to, class: 0, done: 0 };
        sender.put(pending(frame), now);
        assert_eq!(sender.shared.counters.dropped_send_error.get(), count as u64);
        frame = numbered(0);
        frame.gso = Some(Gso { size: 10, kind: GsoKind::Tcp4 });
        sender.put(pending(frame), now);
        assert_eq!(sender.shared.counters.dropped_send_error.get(), 1 + 4);
    }

    /// Whether the driver is to look at the link, since this was last asked.
    fn has_rung(shared: &Shared) -> bool {
        rustix::io::read(shared.bell(), &mut [0; 8]).is_ok()
    }

    #[test]
    fn a_path_that_took_less_is_looked_at_again_after_ten_minutes() {
        let shared = shared(Some(SocketAddr::from(([127, 0, 0, 1], 9))));
        let mut sender = Sender::new(shared.clone(), 0);
        shared.path.lower(1280);
        let now = neap_device::clock::now();
        sender.reap(now + Nanos::from_secs(500));
        assert!(!has_rung(&shared));
        // The look at the start was before.
        sender.reap(now + Nanos::from_secs(600));
        assert!(has_rung(&shared));
        sender.reap(now + Nanos::from_secs(601));
        assert!(!has_rung(&shared), "once");
        assert_eq!(shared.look_at_path(now), 1420);
        sender.reap(now + Nanos::from_secs(3000));
        assert!(!has_rung(&shared), "there is nothing more");
    }

    #[test]
    fn an_error_that_a_send_has_taken_away_has_the_driver_look() {
        let shared = shared(None);
        let peer = std::net::UdpSocket::bind("[::1]:0").expect("a port");
        let to: Ends = peer.local_addr().expect("an address").into();
        let closed = SocketAddr::from((core::net::Ipv6Addr::LOCALHOST, 9)).into();
        for (to, rings) in [(closed, false), (to, true), (to, false)] {
            let parts: &[&[u8]] = &[b"anybody?"];
            let batch = Batch { parts, segment: 8, to, class: 0, may_be_cut: false };
            assert_eq!(shared.send_batch(batch, &mut 0), Ok(Sent::Whole));
            assert_eq!(has_rung(&shared), rings);
            if to == closed {
                shared.socket.wait(rustix::event::PollFlags::empty());
            }
        }
        shared.look_at_path(neap_device::clock::now());
        assert_eq!(shared.counters.icmp_errors.get(), 1);
    }

    #[test]
    fn an_own_address_that_is_gone_is_forgotten() {
        let peer = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
        let peer = peer.local_addr().expect("an address");
        let shared = shared(Some(peer));
        let own = Some(core::net::IpAddr::from([192, 0, 2, 1]));
        let to = Ends { peer, own };
        let way = |shared: &Shared| shared.engine_unsent(|engine| engine.ends(0)).0;
        shared.engine_unsent(|engine| engine.hear(0, to));
        assert_eq!(way(&shared), Some(to));
        let parts: &[&[u8]] = &[b"hello"];
        let batch = Batch { parts, segment: 5, to, class: 0, may_be_cut: false };
        assert_eq!(shared.send_batch(batch, &mut 0), Ok(Sent::Whole));
        assert_eq!(way(&shared), Some(peer.into()));
    }

    /// The loopback device sends a byte in a second as long as this exists. A packet in its queue
    /// keeps the namespace after all processes of it have ended, and takes room from all ICMP
    /// of this kernel (`icmp_sk`, one socket per processor): none may stay.
    struct Stuck;

    impl Stuck {
        fn new(limit: &str) -> Self {
            run(&format!("tc qdisc add dev lo root tbf rate 8bit burst 2000 limit {limit}"));
            Self
        }
    }

    impl Drop for Stuck {
        fn drop(&mut self) {
            run("tc qdisc del dev lo root");
        }
    }

    #[test]
    fn what_the_socket_of_the_old_port_holds_is_not_complete() {
        in_namespace(|| {
            run("ip link set lo up");
            let stuck = Stuck::new("1mb");
            let shared = shared(None);
            let mut sender = Sender::new(shared.clone(), 0);
            let now = neap_device::clock::now();
            let to: Ends = SocketAddr::from(([127, 0, 0, 1], 9)).into();
            let put = |sender: &mut Sender| {
                let (frame, account) = (numbered(0), Account::New);
                sender.put(Pending { frame, account, segment: 96, to, class: 0, done: 0 }, now)
            };
            while !matches!(put(&mut sender), Outcome::Held) {}
            put(&mut sender);
            let (held, first) = (shared.socket.held(), shared.socket.port());
            shared.set_listen_port(0).expect("a port");
            assert_eq!(shared.socket.held(), held);
            assert_eq!(sender.reap(now).frames, 0);
            put(&mut sender);
            assert!(shared.socket.held() > held);
            assert_eq!(sender.reap(now).frames, 0);
            // Back to a port whose socket is not done.
            let second = shared.socket.port();
            shared.set_listen_port(first).expect("the port is there");
            assert_eq!((shared.socket.port(), sender.reap(now).frames), (first, 0));
            shared.set_listen_port(0).expect("a port");
            drop(stuck);
            let mut done = 0;
            while done < 3 {
                done += sender.reap(now).frames;
                std::thread::yield_now();
            }
            for port in [first, second] {
                std::net::UdpSocket::bind(("0.0.0.0", port)).expect("it is free");
            }
        });
    }

    #[test]
    fn the_bound_below_the_socket_follows_a_port_with_a_smaller_buffer() {
        in_namespace(|| {
            run("ip link set lo up");
            let _stuck = Stuck::new("10mb");
            let shared = shared(None);
            let mut sender = Sender::new(shared.clone(), 0);
            // As if the right to have more was given up.
            SEND_BUFFER_MAX.set(SEND_BUFFER_MAX.get().min(212_992));
            shared.set_listen_port(0).expect("a port");
            let now = neap_device::clock::now();
            let to: Ends = SocketAddr::from(([127, 0, 0, 1], 9)).into();
            while sender.has_room(&numbered(0)) {
                let (frame, account) = (numbered(0), Account::New);
                let pending = Pending { frame, account, segment: 96, to, class: 0, done: 0 };
                assert!(!matches!(sender.put(pending, now), Outcome::Pending));
            }
            let buffer = shared.socket.buffers().0;
            assert!(buffer.is_capped(), "{buffer:?}");
            // The host tells of completions below half of it.
            assert!(sender.credits.charged() <= buffer.granted / 2, "{buffer:?}");
        });
    }

    #[test]
    fn a_frame_that_is_sealed_again_counts_once() {
        let [near, far] = ends();
        let now = neap_device::clock::now();
        let to = core::net::IpAddr::from([10, 0, 0, 2]);
        let mut receivers = [Receiver::new(near.clone()), Receiver::new(far.clone())];
        let mut seals = Vec::new();
        let mut begin =
            |bytes| near.engine(|engine| engine.begin_send(to, (3, bytes), &mut seals, now));
        assert_eq!(begin(400), Way::Waits(0));
        for (end, receiver) in [(&far, 1), (&near, 0)] {
            end.socket.wait(rustix::event::PollFlags::IN);
            assert!(receivers[receiver].receive(now).is_none());
        }
        assert!([400, 0].into_iter().all(|bytes| matches!(begin(bytes), Way::To(_))));
        let (frames, datagrams) = (&near.counters.frames_sealed, &near.counters.datagrams_sealed);
        assert_eq!((frames.get(), datagrams.get()), (1, 3));
    }

    #[test]
    fn helpers_start_with_the_first_frame_that_wants_them() {
        let mut sender = Sender::new(shared(None), 1);
        let mut headers = Headers::default();
        headers.prepend(40)[0] = 0x45;
        let mut frame = Frame::new(headers, Payload::from(bytes::Bytes::from(vec![0; 100])));
        sender.seal(&frame, 1, sender.helpers);
        assert!(sender.sealers.is_none());
        frame.payload = Payload::from(bytes::Bytes::from(vec![0; 8000]));
        sender.seal(&frame, LEAST_PACKETS, sender.helpers);
        assert_eq!(sender.sealers.map(|sealers| sealers.count()), Some(1));
    }

    #[test]
    fn a_frame_that_waited_and_was_refused_for_good_is_complete() {
        let mut sender = Sender::new(shared(None), 0);
        let now = neap_device::clock::now();
        for (account, frames) in [(Account::Queued, 1), (Account::Closed, 0)] {
            let mut headers = Headers::default();
            headers.prepend(40)[0] = 0x45;
            let frame = Frame::new(headers, Payload::from(bytes::Bytes::from(vec![0; 100])));
            // The host refuses a broadcast address.
            let to: SocketAddr = "255.255.255.255:9".parse().expect("an address");
            let to = to.into();
            sender.pending = Some(Pending { frame, account, segment: 144, to, class: 0, done: 0 });
            assert_eq!(sender.reap(now).frames, frames);
        }
        assert_eq!(sender.shared.counters.dropped_send_error.get(), 2);
    }
}
