//! What peers may do and rarely do, between the stack and the kernel: timestamps that wrap, a
//! simultaneous open, segments with other boundaries the second time, windows that shrink. Every
//! byte is checked, and the tap counts what it saw, so that a test cannot pass without its event.

use std::collections::{BTreeSet, VecDeque};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use neap::info::Counter;
use neap::{ConnectOptions, SocketOption, Stack};
use neap_lab::rng::{Ppm, Rng};
use neap_stack::stack::secrets;
use neap_tcp::segment::{Flags, Segment};
use neap_tcp::seq::SeqNumber;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket, sockopt};
use rustix::time::{ClockId, clock_gettime};

use crate::common::{Family, Pattern, eventually, run};
use crate::ground::for_each_family;
use crate::tap::{Gate, Passing, Place};

for_each_family! {
    shared_turn:
    timestamps_pass_the_middle, timestamps_wrap, simultaneous_open,
    simultaneous_open_of_two_stacks, segments_are_cut_anew, retransmissions_are_cut_anew,
    the_window_shrinks, the_kernel_shrinks_its_window,
}

/// How long a read or a write may take before the connection counts as dead.
const PATIENCE: Duration = Duration::from_secs(60);
/// The first port of the stack, and of the kernel.
const OUR_PORT: u16 = 4000;
const THEIR_PORT: u16 = 5000;

/// One end of a connection.
trait End: Sync {
    fn take(&self, buf: &mut [u8]) -> std::io::Result<usize>;
    fn give(&self, data: &[u8]) -> std::io::Result<()>;
    /// Sends a FIN.
    fn finish(&self) -> std::io::Result<()>;
    /// No delay for short writes, and an error where nothing moves.
    fn prepare(&self) -> std::io::Result<()>;
}

impl End for std::net::TcpStream {
    fn take(&self, buf: &mut [u8]) -> std::io::Result<usize> {
        let mut stream = self;
        stream.read(buf)
    }
    fn give(&self, data: &[u8]) -> std::io::Result<()> {
        let mut stream = self;
        stream.write_all(data)
    }
    fn finish(&self) -> std::io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
    fn prepare(&self) -> std::io::Result<()> {
        self.set_read_timeout(Some(PATIENCE))?;
        self.set_write_timeout(Some(PATIENCE))?;
        self.set_nodelay(true)
    }
}

impl End for neap::TcpStream {
    fn take(&self, buf: &mut [u8]) -> std::io::Result<usize> {
        let mut stream = self;
        stream.read(buf)
    }
    fn give(&self, data: &[u8]) -> std::io::Result<()> {
        let mut stream = self;
        stream.write_all(data)
    }
    fn finish(&self) -> std::io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
    fn prepare(&self) -> std::io::Result<()> {
        self.set_read_timeout(Some(PATIENCE))?;
        self.set_write_timeout(Some(PATIENCE))?;
        self.set_option(SocketOption::NoDelay(true))
    }
}

/// Writes a stream in pieces of 1 to `most` bytes until `is_enough` of what was written; then its
/// end. Returns how many bytes it has.
fn pour(to: &dyn End, pattern: Pattern, most: u64, is_enough: &dyn Fn(u64) -> bool) -> u64 {
    let (mut rng, mut buf, mut offset) = (Rng::new(pattern.0), vec![0; most as usize], 0);
    while !is_enough(offset) {
        let piece = &mut buf[..rng.range(1, most) as usize];
        pattern.fill(offset, piece);
        to.give(piece).unwrap_or_else(|error| panic!("write at {offset}: {error}"));
        offset += piece.len() as u64;
    }
    to.finish().expect("a FIN");
    offset
}

/// Reads a stream to its end; each byte must be right. Returns how many bytes it has.
fn drain(from: &dyn End, pattern: Pattern, mut pause: impl FnMut(u64)) -> u64 {
    let (mut buf, mut offset) = (vec![0; 64 << 10], 0);
    loop {
        let len = from.take(&mut buf).unwrap_or_else(|error| panic!("read at {offset}: {error}"));
        if len == 0 {
            return offset;
        }
        pattern.check(offset, &buf[..len]);
        offset += len as u64;
        pause(offset);
    }
}

/// Streams both ways at once, in pieces of up to `most` bytes, until `is_enough` of each.
fn both_ways(ends: [&dyn End; 2], most: u64, is_enough: &(dyn Fn(u64) -> bool + Sync)) {
    ends.iter().for_each(|end| end.prepare().expect("options"));
    let patterns = [Pattern(1), Pattern(2)];
    thread::scope(|scope| {
        let poured = [0, 1]
            .map(|from| scope.spawn(move || pour(ends[from], patterns[from], most, is_enough)));
        let drained =
            [1, 0].map(|to| scope.spawn(move || drain(ends[to], patterns[1 - to], |_| ())));
        let poured = poured.map(|thread| thread.join().expect("all is written"));
        let drained = drained.map(|thread| thread.join().expect("all is right"));
        assert_eq!(poured, drained);
    });
}

/// A socket of the kernel at this address.
fn bound(address: SocketAddr) -> OwnedFd {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket(family, SocketType::STREAM, None).expect("a socket");
    bind(&socket, &address).expect("a port");
    socket
}

/// The end of the kernel from [`THEIR_PORT`] to [`OUR_PORT`].
fn kernel_connects(place: Place) -> std::net::TcpStream {
    let socket = bound(SocketAddr::new(place.kernel, THEIR_PORT));
    connect(&socket, &SocketAddr::new(place.ours, OUR_PORT)).expect("connect");
    socket.into()
}

/// The end of the stack from [`OUR_PORT`] to `remote`.
fn stack_connects(stack: &Stack, place: Place, remote: SocketAddr) -> neap::TcpStream {
    let local = Some(SocketAddr::new(place.ours, OUR_PORT));
    let options = ConnectOptions { local, ..ConnectOptions::default() };
    neap::TcpStream::connect_with(stack, remote, options, Some(PATIENCE)).expect("connect")
}

/// A connection that the stack opens, and the kernel's end of it.
fn pair(stack: &Stack, place: Place) -> (neap::TcpStream, std::net::TcpStream) {
    let remote = SocketAddr::new(place.kernel, THEIR_PORT);
    let listener = std::net::TcpListener::bind(remote).expect("bind");
    let ours = stack_connects(stack, place, remote);
    (ours, listener.accept().expect("accept").0)
}

/// A counter of the kernel's TCP in this namespace, as `nstat` names it, without `TcpExt`.
fn kernel_counter(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/net/netstat").expect("counters");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("TcpExt: "));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let mut pairs = names.split(' ').zip(values.split(' '));
    let (_, value) = pairs.find(|(found, _)| *found == name).expect("a counter of this name");
    value.parse().expect("a number")
}

fn bytes_of(segment: &Segment) -> Vec<u8> {
    segment.payload.chunks().concat()
}

// Timestamps that wrap.

/// Milliseconds before the boundary at which a clock begins: those of the kernel's segments, and
/// the range for the stack's, whose clock a seed sets.
const LEAD: u32 = 4000;
const LEADS: core::ops::Range<u32> = 4000..6000;

/// Moves the kernel's timestamps so that they begin shortly before a boundary, and loses a few
/// segments.
struct Clocks {
    boundary: u32,
    /// What is added to the kernel's clock, once its first segment has come.
    shift: Option<u32>,
    /// Segments before and behind the boundary: of the kernel, of the stack.
    passed: [[u64; 2]; 2],
    rng: Rng,
}

impl Clocks {
    fn new(boundary: u32) -> Self {
        Self { boundary, shift: None, passed: [[0; 2]; 2], rng: Rng::new(1) }
    }

    fn count(&mut self, who: usize, value: u32) {
        let is_behind = value.wrapping_sub(self.boundary) as i32 >= 0;
        self.passed[who][usize::from(is_behind)] += 1;
    }

    /// Whether both clocks have passed the boundary, and segments have followed.
    fn is_over(&self) -> bool {
        self.passed.iter().all(|[_, behind]| *behind >= 500)
    }

    fn pass(&mut self, passing: Passing, out: &mut Vec<Passing>) {
        let is_short = passing.segment.flags.intersects(Flags::SYN | Flags::FIN);
        if is_short || !self.rng.chance(Ppm::percent(1)) {
            out.push(passing);
        }
    }
}

impl Gate for Clocks {
    fn arrives(&mut self, mut passing: Passing, out: &mut Vec<Passing>) {
        if let Some(timestamps) = &mut passing.segment.options.timestamps {
            let begin = self.boundary.wrapping_sub(LEAD).wrapping_sub(timestamps.value);
            let shift = *self.shift.get_or_insert(begin);
            timestamps.value = timestamps.value.wrapping_add(shift);
            let value = timestamps.value;
            self.count(0, value);
        }
        self.pass(passing, out);
    }

    fn leaves(&mut self, mut passing: Passing, out: &mut Vec<Passing>) {
        let is_answer = passing.segment.flags.contains(Flags::ACK);
        if let Some(timestamps) = &mut passing.segment.options.timestamps {
            let value = timestamps.value;
            if is_answer {
                let shift = self.shift.expect("the kernel's clock is known");
                timestamps.echo = timestamps.echo.wrapping_sub(shift);
            }
            self.count(1, value);
        }
        self.pass(passing, out);
    }
}

/// A seed with which the timestamps of the stack between two ends are shortly before the boundary.
fn seed_before(boundary: u32, local: SocketAddr, remote: SocketAddr) -> u64 {
    let is_near = |seed: &u64| {
        let time = clock_gettime(ClockId::Monotonic);
        let millis = time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000;
        let value = (millis as u32).wrapping_add(secrets(*seed).ts_offset(local, remote));
        LEADS.contains(&boundary.wrapping_sub(value))
    };
    (0..).find(is_near).expect("a seed")
}

/// A stream each way while the clocks of both ends pass `boundary`.
fn pass_boundary(family: Family, boundary: u32, is_active: bool) {
    let place = Place::first(family);
    let local = SocketAddr::new(place.ours, OUR_PORT);
    let remote = SocketAddr::new(place.kernel, THEIR_PORT);
    let seed = seed_before(boundary, local, remote);
    let (stack, gate) = place.stack(Clocks::new(boundary), |builder| builder.seed(seed));
    let (ours, theirs) = if is_active {
        pair(&stack, place)
    } else {
        let listener = neap::TcpListener::bind(&stack, local).expect("bind");
        let theirs = kernel_connects(place);
        (listener.accept().expect("accept").0, theirs)
    };
    both_ways([&ours, &theirs], 20_000, &|_| gate.lock().is_over());
    let passed = gate.lock().passed;
    let refused = [stack.host().tcp_counter(Counter::PAWSEstab), kernel_counter("PAWSEstab")];
    println!("figures: segments before and behind: kernel {:?}, stack {:?}", passed[0], passed[1]);
    assert!(passed.as_flattened().iter().all(|count| *count > 100), "{passed:?}");
    assert_eq!(refused, [0; 2], "segments that PAWS refused");
}

/// From 2^31 - 1 to 2^31: the sign of a difference changes.
fn timestamps_pass_the_middle(family: Family) {
    pass_boundary(family, 1 << 31, true);
}

/// From 2^32 - 1 to 0.
fn timestamps_wrap(family: Family) {
    pass_boundary(family, 0, false);
}

// Simultaneous open.

/// Holds what arrives until an own SYN has left.
#[derive(Default)]
struct Crossing {
    held: Vec<Passing>,
    /// SYNs, and SYNs with an ACK, that arrived.
    arrived: [u64; 2],
    /// The same of those that left.
    left: [u64; 2],
}

/// What a segment counts as in [`Crossing`].
fn kind_of(segment: &Segment) -> Option<usize> {
    let is_answer = segment.flags.contains(Flags::ACK);
    segment.flags.contains(Flags::SYN).then_some(usize::from(is_answer))
}

impl Gate for Crossing {
    fn arrives(&mut self, passing: Passing, out: &mut Vec<Passing>) {
        if let Some(kind) = kind_of(&passing.segment) {
            self.arrived[kind] += 1;
        }
        self.held.push(passing);
        if self.left[0] > 0 {
            out.append(&mut self.held);
        }
    }

    fn leaves(&mut self, passing: Passing, out: &mut Vec<Passing>) {
        if let Some(kind) = kind_of(&passing.segment) {
            self.left[kind] += 1;
        }
        out.push(passing);
    }
}

impl Crossing {
    /// Both SYNs were sent without knowledge of the other, and the peer answered. The stack answers
    /// with an ACK if SYN and SYN-ACK arrive together.
    fn is_simultaneous(&self) -> bool {
        self.arrived.iter().all(|count| *count > 0) && self.left[0] > 0
    }
}

/// Bytes of each stream of a connection whose beginning is what matters.
const SOME: u64 = 1 << 20;

fn simultaneous_open(family: Family) {
    let place = Place::first(family);
    let (stack, gate) = place.stack(Crossing::default(), |builder| builder);
    let theirs = thread::spawn(move || kernel_connects(place));
    eventually(|| gate.lock().arrived, |arrived| arrived[0] > 0);
    let ours = stack_connects(&stack, place, SocketAddr::new(place.kernel, THEIR_PORT));
    let theirs = theirs.join().expect("connected");
    both_ways([&ours, &theirs], 20_000, &|sent| sent >= SOME);
    let gate = gate.lock();
    assert!(gate.is_simultaneous(), "{:?} {:?}", gate.arrived, gate.left);
}

/// The kernel routes between the two.
fn simultaneous_open_of_two_stacks(family: Family) {
    let switch = if family == Family::V4 { "ipv4/ip_forward" } else { "ipv6/conf/all/forwarding" };
    std::fs::write(format!("/proc/sys/net/{switch}"), "1").expect("a sysctl");
    let places = [Place::first(family), Place::second(family)];
    let [(one, at_one), (other, at_other)] =
        places.map(|place| place.stack(Crossing::default(), |builder| builder));
    let [to_one, to_other] = places.map(|place| SocketAddr::new(place.ours, OUR_PORT));
    thread::scope(|scope| {
        let first = scope.spawn(|| stack_connects(&one, places[0], to_other));
        eventually(|| at_other.lock().arrived, |arrived| arrived[0] > 0);
        let second = stack_connects(&other, places[1], to_one);
        let first = first.join().expect("connected");
        both_ways([&first, &second], 20_000, &|sent| sent >= SOME);
    });
    let (one, other) = (at_one.lock(), at_other.lock());
    assert!(other.is_simultaneous(), "{:?} {:?}", other.arrived, other.left);
    // The second SYN was not held, and was answered at once.
    assert!(one.arrived[0] > 0 && one.left.iter().all(|count| *count > 0), "{:?}", one.left);
}

// Overlapping segments.

/// Bytes of each stream of a connection whose segments matter.
const MANY: u64 = 4 << 20;

/// The end of a stream that has passed.
#[derive(Default)]
struct History {
    /// Behind the last byte of it.
    next: SeqNumber,
    tail: VecDeque<u8>,
}

impl History {
    /// Most bytes that are kept.
    const MOST: usize = 64 << 10;

    fn note(&mut self, seq: SeqNumber, bytes: &[u8]) {
        if self.tail.is_empty() || seq.after(self.next) {
            (self.next, self.tail) = (seq, VecDeque::new());
        }
        let known = self.next.bytes_since(seq) as usize;
        let Some(new) = bytes.get(known..) else { return };
        self.tail.extend(new);
        self.next += new.len() as u32;
        let excess = self.tail.len().saturating_sub(Self::MOST);
        self.tail.drain(..excess);
    }

    /// The first byte that is kept.
    fn first(&self) -> SeqNumber {
        self.next - self.tail.len() as u32
    }

    fn bytes(&self, from: SeqNumber, len: u32) -> Bytes {
        let skip = from.bytes_since(self.first()) as usize;
        self.tail.range(skip..skip + len as usize).copied().collect()
    }
}

/// Cuts the streams anew: each segment becomes several that overlap each other and what passed
/// before, and some of them get lost.
struct Recut {
    rng: Rng,
    /// To the stack, and from it.
    histories: [History; 2],
    /// Segments with bytes that passed before and bytes that did not.
    overlaps: [u64; 2],
}

impl Recut {
    /// Most bytes of a segment.
    const LONGEST: u64 = 1200;

    fn pass(&mut self, way: usize, mut passing: Passing, out: &mut Vec<Passing>) {
        let bytes = bytes_of(&passing.segment);
        if bytes.is_empty() {
            return out.push(passing);
        }
        let (history, rng) = (&mut self.histories[way], &mut self.rng);
        let (seq, flags) = (passing.segment.seq, passing.segment.flags);
        let end = seq + bytes.len() as u32;
        let before = history.next;
        let is_first = history.tail.is_empty();
        history.note(seq, &bytes);
        if history.first().after(seq) {
            // It is too old for the history.
            return out.push(passing);
        }
        let reach = if rng.chance(Ppm::percent(20)) { 3000 } else { 100 };
        let back = (rng.below(reach) as u32).min(seq.bytes_since(history.first()));
        let mut at = seq - back;
        loop {
            let len = (rng.range(1, Self::LONGEST) as u32).min(end.bytes_since(at));
            let (is_last, behind) = (at + len == end, at + len);
            if !is_first && at.before(before) && behind.after(before) {
                self.overlaps[way] += 1;
            }
            passing.segment.seq = at;
            passing.segment.payload = history.bytes(at, len).into();
            passing.segment.flags = if is_last { flags } else { flags - Flags::FIN };
            if !rng.chance(Ppm::percent(2)) {
                out.push(passing.clone());
            }
            if is_last {
                return;
            }
            // The next one begins inside of this one.
            at += rng.range(len.div_ceil(2).into(), len.into()) as u32;
        }
    }
}

impl Gate for Recut {
    fn arrives(&mut self, passing: Passing, out: &mut Vec<Passing>) {
        self.pass(0, passing, out);
    }
    fn leaves(&mut self, passing: Passing, out: &mut Vec<Passing>) {
        self.pass(1, passing, out);
    }
}

fn segments_are_cut_anew(family: Family) {
    let place = Place::first(family);
    let gate = Recut { rng: Rng::new(1), histories: Default::default(), overlaps: [0; 2] };
    let (stack, gate) = place.stack(gate, |builder| builder);
    let (ours, theirs) = pair(&stack, place);
    both_ways([&ours, &theirs], 20_000, &|sent| sent >= MANY);
    let overlaps = gate.lock().overlaps;
    let dsacks = [Counter::DSACKOldSent, Counter::DSACKOfoSent, Counter::DSACKRecv];
    let dsacks = dsacks.map(|counter| stack.host().tcp_counter(counter));
    println!("figures: overlaps {overlaps:?}, DSACKs {dsacks:?}");
    assert!(overlaps.iter().chain(&dsacks).all(|count| *count > 100), "{overlaps:?} {dsacks:?}");
}

/// Loses data, and notes when some of it comes again with other boundaries.
struct Lossy {
    rng: Rng,
    /// Begin and end of the segments of each way, and the end of all of them.
    seen: [BTreeSet<(u32, u32)>; 2],
    ends: [Option<SeqNumber>; 2],
    /// Segments that came again, and those of them with boundaries that none had before.
    again: [u64; 2],
    cut_anew: [u64; 2],
}

impl Lossy {
    fn pass(&mut self, way: usize, passing: Passing, out: &mut Vec<Passing>) {
        let (seq, len) = (passing.segment.seq, passing.segment.payload.len());
        if len == 0 {
            return out.push(passing);
        }
        let end = seq + len;
        if self.ends[way].is_some_and(|highest| seq.before(highest)) {
            self.again[way] += 1;
            let is_known = self.seen[way].contains(&(seq.0, end.0));
            self.cut_anew[way] += u64::from(!is_known);
        }
        self.seen[way].insert((seq.0, end.0));
        self.ends[way] = Some(self.ends[way].map_or(end, |highest| highest.later(end)));
        if !self.rng.chance(Ppm::percent(3)) {
            out.push(passing);
        }
    }
}

impl Gate for Lossy {
    fn arrives(&mut self, passing: Passing, out: &mut Vec<Passing>) {
        self.pass(0, passing, out);
    }
    fn leaves(&mut self, passing: Passing, out: &mut Vec<Passing>) {
        self.pass(1, passing, out);
    }
}

/// The MTU changes while data gets lost: both ends cut what they send again for another size, and
/// join short segments.
fn retransmissions_are_cut_anew(family: Family) {
    const WANTED: u64 = 20;
    let place = Place::first(family);
    let gate = Lossy {
        rng: Rng::new(1),
        seen: Default::default(),
        ends: [None; 2],
        again: [0; 2],
        cut_anew: [0; 2],
    };
    let (stack, gate) = place.stack(gate, |builder| builder);
    let (ours, theirs) = pair(&stack, place);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            // IPv6 ends on an interface with less than 1280.
            let mtus = if family == Family::V4 { [1500, 600, 1000] } else { [1500, 1280, 1400] };
            for mtu in mtus.iter().cycle() {
                if is_over.load(SeqCst) {
                    break;
                }
                run(&format!("ip link set {} mtu {mtu}", place.name));
                thread::sleep(Duration::from_millis(10));
            }
        });
        both_ways([&ours, &theirs], 3000, &|sent| {
            sent >= SOME && gate.lock().cut_anew.iter().all(|count| *count >= WANTED)
        });
        is_over.store(true, SeqCst);
    });
    let gate = gate.lock();
    println!("figures: sent again {:?}, of these cut anew {:?}", gate.again, gate.cut_anew);
}

// Windows that shrink.

/// Looks at the right edge of the kernel's window; if asked to, takes it back again and again.
struct Edge {
    takes_back: bool,
    shift: u8,
    /// The furthest edge that the kernel showed, and the end of what the stack sent.
    edge: Option<SeqNumber>,
    sent: Option<SeqNumber>,
    /// Times at which the edge went back, and those at which it went behind what was sent.
    shrunk: u64,
    below_sent: u64,
    /// End of the episode, and the edge meanwhile.
    episode: Option<(Instant, SeqNumber)>,
    /// ACKs since then that passed as they were.
    untouched: u32,
    rng: Rng,
}

impl Edge {
    /// Length of an episode, and the ACKs from its end to the next one: the answers to probes of a
    /// window that was zero are too few for it.
    const EPISODE: Duration = Duration::from_millis(10);
    const PAUSE: u32 = 30;

    fn new(takes_back: bool) -> Self {
        Self {
            takes_back,
            shift: 0,
            edge: None,
            sent: None,
            shrunk: 0,
            below_sent: 0,
            episode: None,
            untouched: 0,
            rng: Rng::new(1),
        }
    }

    fn take_back(&mut self, ack: &mut Segment) {
        let now = Instant::now();
        if self.episode.is_none_or(|(end, _)| end <= now) {
            self.untouched += 1;
            if self.untouched < Self::PAUSE {
                return;
            }
            self.untouched = 0;
            let edge = ack.ack + self.rng.pick(&[0, 1000, 5000, 20_000]);
            self.episode = Some((now + Self::EPISODE, edge));
        }
        let Some((_, edge)) = self.episode else { return };
        let room = if edge.after(ack.ack) { edge.bytes_since(ack.ack) } else { 0 };
        ack.window = ack.window.min((room >> self.shift) as u16);
    }
}

impl Gate for Edge {
    fn arrives(&mut self, mut passing: Passing, out: &mut Vec<Passing>) {
        let segment = &mut passing.segment;
        if segment.flags.contains(Flags::SYN) {
            self.shift = segment.options.window_scale.unwrap_or_default();
        } else if segment.flags.contains(Flags::ACK) {
            if self.takes_back {
                self.take_back(segment);
            }
            let edge = segment.ack + (u32::from(segment.window) << self.shift);
            let furthest = self.edge.map_or(edge, |furthest| furthest.later(edge));
            if edge.before(furthest) {
                self.shrunk += 1;
                self.below_sent += u64::from(self.sent.is_some_and(|sent| edge.before(sent)));
            }
            // Counted from here when it goes back once more.
            self.edge = Some(edge);
        }
        out.push(passing);
    }

    fn leaves(&mut self, passing: Passing, out: &mut Vec<Passing>) {
        let end = passing.segment.seq + passing.segment.payload.len();
        self.sent = Some(self.sent.map_or(end, |sent| sent.later(end)));
        out.push(passing);
    }
}

/// A stream each way while the window of the kernel goes back behind what the stack has sent.
fn the_window_shrinks(family: Family) {
    const WANTED: u64 = 10;
    let place = Place::first(family);
    let (stack, gate) = place.stack(Edge::new(true), |builder| builder);
    let (ours, theirs) = pair(&stack, place);
    both_ways([&ours, &theirs], 50_000, &|sent| sent >= SOME && gate.lock().below_sent >= WANTED);
    let gate = gate.lock();
    println!("figures: shrunk {}, behind what was sent {}", gate.shrunk, gate.below_sent);
}

/// The kernel does so by itself: `tcp_shrink_window`, a reader that pauses, and a receive buffer
/// that becomes smaller.
fn the_kernel_shrinks_its_window(family: Family) {
    const WANTED: u64 = 3;
    const SYSCTL: &str = "/proc/sys/net/ipv4/tcp_shrink_window";
    if !std::fs::exists(SYSCTL).expect("a look") {
        return crate::common::skip("this kernel has no tcp_shrink_window");
    }
    std::fs::write(SYSCTL, "1").expect("a sysctl");
    let place = Place::first(family);
    let (stack, gate) = place.stack(Edge::new(false), |builder| builder);
    let gate = &gate;
    let (ours, theirs) = pair(&stack, place);
    [&ours as &dyn End, &theirs].iter().for_each(|end| end.prepare().expect("options"));
    let pattern = Pattern(1);
    thread::scope(|scope| {
        // Short segments take more of the buffer than of the window.
        let is_enough = |sent| sent >= SOME && gate.lock().below_sent >= WANTED;
        let ours = &ours;
        let poured = scope.spawn(move || pour(ours, pattern, 400, &is_enough));
        let mut pauses = 0;
        let mut due = 0;
        let drained = drain(&theirs, pattern, |offset| {
            if offset < due {
                return;
            }
            pauses += 1;
            due = offset + (128 << 10);
            let size = if pauses % 2 == 0 { 256 << 10 } else { 32 << 10 };
            sockopt::set_socket_recv_buffer_size(theirs.as_fd(), size).expect("an option");
            // Time in which the buffer fills.
            thread::sleep(Duration::from_millis(10));
        });
        assert_eq!(poured.join().expect("all is written"), drained);
    });
    let gate = gate.lock();
    println!("figures: shrunk {}, behind what was sent {}", gate.shrunk, gate.below_sent);
}
