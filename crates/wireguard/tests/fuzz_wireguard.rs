//! Two devices with somebody between them who drops, repeats, keeps back, cuts, spoils and invents
//! datagrams: no panic, what comes out is what the other side has put in, and each packet at most
//! once. Somebody elsewhere does that, too, and the peer is not taken to be there. When the lies
//! are over, packets pass both ways.
//!
//! Loopback sockets deliver at once, and time is an argument, so an input has the same course each
//! time but for the keys of sessions. `cargo test` runs it for two seconds; docs/fuzzing.md tells
//! of more.

use bytes::Bytes;
use neap_stack::device::{QueuePair, Received};
use neap_stack::frame::{Frame, Gso, GsoKind, Headers, PartialChecksum};
use neap_stack::wire::checksum;
use neap_tcp::segment::Payload;
use neap_tcp::time::{Instant, Nanos};
use neap_wireguard::{Peer, PrivateKey, Wireguard, WireguardConfig, WireguardHandle};
use std::collections::{HashMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::ops::Range;
use std::time::Duration;

const TIME: Duration = Duration::from_secs(2);
/// Decisions of one input.
const STEPS: usize = 64;
const INSIDE: [[u8; 4]; 2] = [[10, 0, 0, 1], [10, 0, 0, 2]];
const TCP_HEADERS: usize = 40;
/// The first byte of a datagram of a session.
const DATA: u8 = 4;
/// Bytes of the second code of a handshake, which is in the end.
const SECOND_CODE: usize = 16;
/// Bytes of the payload of a packet that shows that the tunnel works.
const PROOF: usize = 1000;
/// Before this no session of a world can be over, and no handshake is given up.
const YOUNG: Nanos = Nanos::from_secs(60);
/// Within this a packet that nobody holds back arrives: an initiation that was lost is repeated
/// after 5 s, and a session that the other end has lost is missed after 15 s.
const PATIENCE: Nanos = Nanos::from_secs(30);
/// Within this an initiation that was lost is repeated, and frames that waited are gone. There may
/// be so many that the socket of the one in the middle loses some.
const SETTLED: Nanos = Nanos::from_secs(7);
/// Time between two looks of an honest one in the middle.
const TICK: Nanos = Nanos::from_millis(250);

/// Arbitrary bytes as a source of decisions; zeros when they are used up.
struct Source<'a>(&'a [u8]);

impl<'a> Source<'a> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn short(&mut self) -> usize {
        usize::from(u16::from_be_bytes([self.byte(), self.byte()]))
    }

    fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

/// A device, and the socket by which the one in the middle is its peer.
struct End {
    queue: QueuePair,
    handle: WireguardHandle,
    middle: UdpSocket,
    own: SocketAddr,
}

fn end(index: usize, socket: UdpSocket) -> End {
    let keys = [PrivateKey::from([1; 32]), PrivateKey::from([2; 32])];
    let mut peer = Peer::new(keys[1 - index].public_key());
    peer.allowed_ips = vec![std::net::IpAddr::from(INSIDE[1 - index]).into()];
    peer.endpoint = Some(socket.local_addr().expect("an address"));
    let mut config = WireguardConfig::new(keys[index].clone());
    config.peers = vec![peer];
    let device = Wireguard::open(&config).expect("a device");
    let handle = device.handle();
    let own = SocketAddr::from((Ipv4Addr::LOCALHOST, handle.status().listen_port));
    let queue = device.into_device().queues.pop().expect("a queue");
    socket.set_nonblocking(true).expect("an option");
    End { queue, handle, middle: socket, own }
}

/// Both ends and what is on its way.
struct World {
    ends: [End; 2],
    now: Instant,
    /// Datagrams that the one in the middle has.
    caught: VecDeque<(usize, Vec<u8>)>,
    /// Datagrams of sessions that were handed on.
    delivered: Vec<(usize, Vec<u8>)>,
    /// Somebody who has datagrams of both, and is not in the middle.
    elsewhere: UdpSocket,
    /// Payload bytes that were put in, by sequence number, with how often they came out.
    sent: [HashMap<u32, u32>; 2],
    next: u32,
}

impl World {
    fn new() -> Self {
        let socket = || UdpSocket::bind("127.0.0.1:0").expect("a socket");
        Self {
            ends: [end(0, socket()), end(1, socket())],
            now: neap_device::clock::now(),
            caught: VecDeque::new(),
            delivered: Vec::new(),
            elsewhere: socket(),
            sent: Default::default(),
            next: 0,
        }
    }

    /// Puts in a TCP frame of `len` bytes in pieces of `size`. Each word is its own number. Returns
    /// the words, and whether the device has taken the frame.
    fn send(&mut self, from: usize, len: usize, size: u16) -> (Range<u32>, bool) {
        let words = (len / 4).max(1);
        let payload: Bytes =
            (self.next..).take(words).flat_map(|word: u32| word.to_be_bytes()).collect();
        let mut headers = Headers::default();
        let ip = headers.prepend(TCP_HEADERS);
        ip[0] = 0x45;
        let total = (TCP_HEADERS + payload.len()) as u16;
        ip[2..4].copy_from_slice(&total.to_be_bytes());
        (ip[8], ip[9]) = (64, 6);
        ip[12..16].copy_from_slice(&INSIDE[from]);
        ip[16..20].copy_from_slice(&INSIDE[1 - from]);
        let sum = checksum::of(&ip[..20]);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        ip[24..28].copy_from_slice(&(self.next * 4).to_be_bytes());
        (ip[32], ip[33]) = (0x50, 0x10);
        let is_whole = payload.len() <= usize::from(size);
        let frame = Frame {
            gso: (!is_whole).then_some(Gso { size, kind: GsoKind::Tcp4 }),
            checksum: Some(PartialChecksum { start: 20, offset: 16 }),
            ..Frame::new(headers, Payload::from(payload))
        };
        let words = self.next..self.next + words as u32;
        self.sent[from].extend(words.clone().map(|word| (word, 0)));
        self.next = words.end;
        // What is given back was not sent.
        let is_taken = self.ends[from].queue.tx.submit(frame, self.now).is_ok();
        (words, is_taken)
    }

    /// Lets both ends do what they have to do, and catches what they send.
    fn turn(&mut self) {
        for index in 0..2 {
            let end = &mut self.ends[index];
            end.queue.tx.reap(self.now);
            let mut taken = Vec::new();
            while let Some(packet) = end.queue.rx.receive(self.now) {
                taken.push(packet);
            }
            end.queue.tx.reap(self.now);
            taken.into_iter().for_each(|packet| self.check(index, &packet));
            let mut buffer = [0; 2048];
            while let Ok(len) = self.ends[index].middle.recv(&mut buffer) {
                self.caught.push_back((1 - index, buffer[..len].to_vec()));
            }
        }
    }

    /// What came out is what was put in.
    fn check(&mut self, to: usize, packet: &Received) {
        let data = &packet.data;
        assert_eq!(usize::from(u16::from_be_bytes([data[2], data[3]])), data.len());
        assert_eq!(checksum::of(&data[..20]), 0);
        assert_eq!((&data[12..16], &data[16..20]), (&INSIDE[1 - to][..], &INSIDE[to][..]));
        let (words, rest) = data[TCP_HEADERS..].as_chunks::<4>();
        let first = u32::from_be_bytes([data[24], data[25], data[26], data[27]]);
        assert!(rest.is_empty());
        for (index, word) in (first / 4..).zip(words) {
            assert_eq!(u32::from_be_bytes(*word), index);
            let count = self.sent[1 - to].get_mut(&index).expect("it was sent");
            *count += 1;
            assert_eq!(*count, 1, "twice");
        }
    }

    /// Hands a datagram on, from the socket that stands for the sender.
    fn deliver(&mut self, to: usize, bytes: &[u8]) {
        let end = &self.ends[to];
        let _ = end.middle.send_to(bytes, end.own);
        if bytes.first() == Some(&DATA) {
            self.delivered.push((to, bytes.to_vec()));
        }
    }

    /// Lets both ends say what they have to say, and hands everything on.
    fn be_honest(&mut self) {
        self.turn();
        while let Some((to, bytes)) = self.caught.pop_front() {
            self.deliver(to, &bytes);
            self.turn();
        }
    }

    /// Whether a packet from this end arrives where everything is handed on.
    fn passes(&mut self, from: usize) -> bool {
        let (words, is_taken) = self.send(from, PROOF, PROOF as u16);
        assert!(is_taken, "nothing is held back, and there is no room");
        let end = self.now + PATIENCE;
        loop {
            self.be_honest();
            if words.clone().all(|word| self.sent[from][&word] == 1) {
                return true;
            }
            if self.now >= end {
                return false;
            }
            self.now += TICK;
        }
    }

    /// Everything arrives again. Where the world is old, a session or a handshake may be at its
    /// end, and takes a packet with it; the next one arrives.
    fn check_that_it_works(&mut self, start: Instant) {
        let settled = self.now + SETTLED;
        while self.now < settled {
            self.be_honest();
            self.now += TICK;
        }
        for from in [0, 1] {
            let is_young = self.now.since(start) < YOUNG;
            let works = self.passes(from) || (!is_young && self.passes(from));
            assert!(
                works,
                "from {from}: {:?}",
                self.ends.each_ref().map(|end| end.handle.status())
            );
        }
        self.check_endpoints();
    }

    /// Sends one of the ends something that is not genuine, or not new.
    fn lie(&self, to: usize, bytes: &[u8], is_elsewhere: bool) {
        let end = &self.ends[to];
        let socket = if is_elsewhere { &self.elsewhere } else { &end.middle };
        let _ = socket.send_to(bytes, end.own);
    }

    /// Both ends have their peers where genuine datagrams came from.
    fn check_endpoints(&self) {
        for end in &self.ends {
            let middle = end.middle.local_addr().expect("an address");
            assert_eq!(end.handle.status().peers[0].endpoint, Some(middle));
        }
    }

    /// One decision of the one in the middle.
    fn meddle(&mut self, source: &mut Source<'_>) {
        let choice = source.byte();
        let caught = self.caught.pop_front();
        let is_elsewhere = choice >= 128;
        match (choice % 10, caught) {
            (0..=3, Some((to, bytes))) => self.deliver(to, &bytes),
            (4, Some((to, bytes))) => {
                self.deliver(to, &bytes);
                self.caught.push_back((to, bytes));
            }
            (5, Some(kept)) => self.caught.push_back(kept),
            (6, Some((to, mut bytes))) => {
                // Nobody reads the second code of a handshake, unless there are many of them.
                let read = if bytes[0] == DATA { bytes.len() } else { bytes.len() - SECOND_CODE };
                let at = source.short() % read;
                bytes[at] ^= source.byte().max(1);
                self.lie(to, &bytes, is_elsewhere);
            }
            (7, Some((to, bytes))) => {
                self.lie(to, &bytes[..source.short() % bytes.len()], is_elsewhere);
            }
            (8, Some((to, _))) => self.lie(1 - to, source.take(160), is_elsewhere),
            (9, caught) => {
                self.caught.extend(caught);
                if let Some((to, bytes)) = self.delivered.last() {
                    self.lie(*to, bytes, true);
                }
            }
            (_, None) => self.lie(usize::from(choice & 1), source.take(160), is_elsewhere),
            _ => {}
        }
    }
}

#[test]
fn wireguard() {
    bolero::check!().with_test_time(TIME).with_max_len(1000).for_each(|bytes: &[u8]| {
        let mut source = Source(bytes);
        let mut world = World::new();
        let start = world.now;
        for _ in 0..STEPS {
            let choice = source.byte();
            match choice % 5 {
                0 => {
                    let size = 4 * (1 + u16::from(source.byte()));
                    world.send(usize::from(choice >> 7), source.short() % 5000, size);
                }
                1 => world.now += Nanos::from_millis(u64::from(source.byte()) * 400),
                _ => world.meddle(&mut source),
            }
            world.turn();
            world.check_endpoints();
        }
        world.check_that_it_works(start);
    });
}

#[test]
fn an_honest_one_in_the_middle_passes_everything_and_nobody_elsewhere_is_believed() {
    let mut world = World::new();
    for round in 0..20 {
        world.send(round % 2, 3000, 1000);
        for _ in 0..5 {
            world.turn();
            while let Some((to, bytes)) = world.caught.pop_front() {
                world.deliver(to, &bytes);
            }
        }
    }
    let counts = world.sent.iter().flat_map(HashMap::values);
    assert!(counts.clone().count() > 10_000 && counts.clone().all(|count| *count == 1));
    for end in &world.ends {
        assert!(end.handle.status().peers[0].latest_handshake.is_some());
    }
    let (to, old) = world.delivered.last().cloned().expect("a datagram");
    let from = 1 - to;
    world.send(from, 1000, 1000);
    world.turn();
    let (to, bytes) = world.caught.pop_front().expect("a datagram");
    let spoiled = [4, 8, 15, 16, 40, bytes.len() - 1].map(|at| {
        let mut spoiled = bytes.clone();
        spoiled[at] ^= 1;
        spoiled
    });
    for lie in spoiled.iter().chain([&old, &bytes[..bytes.len() - 1].to_vec()]) {
        world.lie(to, lie, true);
        world.turn();
        world.check_endpoints();
    }
    // What is genuine and new is believed from everywhere.
    world.lie(to, &bytes, true);
    world.turn();
    let endpoint = world.ends[to].handle.status().peers[0].endpoint;
    assert_eq!(endpoint, Some(world.elsewhere.local_addr().expect("an address")));
}
