//! What the stack itself costs: two hosts in this process, in virtual time, over a link that is a
//! queue in memory. `benches/instructions/run` counts the instructions.
//!
//! ```text
//! cost count ROW N   N steady-state operations; those of ROW run inside `measured_section`
//! cost where ROW     back traces of the first allocations inside of ROW's section
//! cost idle N        bytes of N connections that do nothing
//! ```
//! Rows: `send` `send-zero-copy` `complete` `receive` `ack` `client` `server`.

use bytes::Bytes;
use neap_stack::device::{
    Capabilities, Completed, Completion, Device, Medium, QueuePair, Received, RxChecksum, RxQueue,
    TxQueue,
};
use neap_stack::frame::Frame;
use neap_stack::interface::Address;
use neap_stack::socket::listener::ListenerHandle;
use neap_stack::socket::tcp::TcpHandle;
use neap_stack::stack::Why;
use neap_stack::stack::{ConnectOptions, ListenOptions, Stack, StackConfig};
use neap_tcp::options::SocketOptions;
use neap_tcp::time::{Instant, Nanos};
use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::collections::VecDeque;
use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const PORT: u16 = 7;
/// 45 segments of 1448 bytes: the largest super-frame.
const SUPER_FRAME: usize = 65_160;
/// One way through the link.
const DELAY: Nanos = Nanos::from_micros(20);
/// Rounds in which the congestion window grows and lists reach their size.
const WARM_UP: usize = 400;
/// Connections opened at a time, fewer than `tcp_max_syn_backlog`.
const BATCH: usize = 100;
/// Back traces that `where` prints.
const TRACES: u64 = 3;

// --- counting allocations ------------------------------------------------------------------------

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static LIVE: AtomicI64 = AtomicI64::new(0);
static IS_TRACED: AtomicBool = AtomicBool::new(false);

struct Counting;

fn count(grown: i64) {
    ALLOCATIONS.fetch_add(1, Relaxed);
    LIVE.fetch_add(grown, Relaxed);
    if IS_TRACED.swap(false, Relaxed) {
        let trace = Backtrace::force_capture().to_string();
        let ours = trace.lines().filter(|line| line.contains("neap") || line.contains("bytes::"));
        eprintln!("allocation:\n{}", ours.collect::<Vec<_>>().join("\n"));
        IS_TRACED.store(true, Relaxed);
    }
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as i64, Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as i64 - layout.size() as i64);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// --- the link ------------------------------------------------------------------------------------

/// One end: what the host has sent, what has left and waits to be reaped, what has arrived.
#[derive(Default)]
struct End {
    sent: VecDeque<Frame>,
    left: VecDeque<Frame>,
    arrived: VecDeque<Received>,
}

type SharedEnd = Arc<Mutex<End>>;

fn lock(end: &SharedEnd) -> std::sync::MutexGuard<'_, End> {
    end.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Tx(SharedEnd);
struct Rx(SharedEnd);

impl TxQueue for Tx {
    fn submit(&mut self, frame: Frame, _now: Instant) -> Result<(), Frame> {
        lock(&self.0).sent.push_back(frame);
        Ok(())
    }

    fn flush(&mut self, _now: Instant) {}

    fn reap(&mut self, _now: Instant) -> Completed {
        let mut completed = Completed::default();
        while let Some(frame) = { lock(&self.0).left.pop_front() } {
            completed.frames += 1;
            completed.bytes += frame.len() as u64;
        }
        completed
    }

    fn next_event(&self) -> Instant {
        Instant::FAR_FUTURE
    }
}

impl RxQueue for Rx {
    fn receive(&mut self, _now: Instant) -> Option<Received> {
        lock(&self.0).arrived.pop_front()
    }
}

fn device(end: &SharedEnd) -> Device {
    Device {
        name: "memory".to_owned(),
        capabilities: Capabilities {
            medium: Medium::Ip,
            mtu: 1500,
            gso_max_size: u32::from(u16::MAX),
            gso_max_segs: u32::from(u16::MAX),
            gso_udp: false,
            checksum_tx: true,
            checksum_rx: true,
            completion: Completion::OnWire,
            pacing_shift: 10,
        },
        queues: vec![QueuePair {
            tx: Box::new(Tx(end.clone())),
            rx: Box::new(Rx(end.clone())),
            bulk: None,
            #[cfg(unix)]
            descriptor: None,
        }],
        steering: None,
        monitor: None,
    }
}

/// Moves what one end has sent to the other; how many packets. Their bytes are copied here, so
/// this costs neither host anything.
fn carry(from: &SharedEnd, to: &SharedEnd) -> u64 {
    let mut packets = 0;
    while let Some(frame) = { lock(from).sent.pop_front() } {
        let received = Received {
            data: Bytes::from_owner(frame.to_bytes()),
            gso_size: frame.gso.map_or(0, |gso| gso.size),
            checksum: frame.checksum.map_or(RxChecksum::Good, RxChecksum::Partial),
        };
        lock(to).arrived.push_back(received);
        lock(from).left.push_back(frame);
        packets += 1;
    }
    packets
}

// --- the hosts -----------------------------------------------------------------------------------

struct Host {
    stack: Stack,
    end: SharedEnd,
}

impl Host {
    fn new(address: Ipv4Addr, seed: u64) -> Result<Self, Box<dyn Error>> {
        let stack = Stack::new(StackConfig { seed, ..StackConfig::default() })?;
        let end = SharedEnd::default();
        stack.add_interface(Instant::ZERO, device(&end), &[Address::new(address.into(), 24)?])?;
        Ok(Self { stack, end })
    }

    fn poll(&self, now: Instant) {
        while self.stack.poll(0, now).1 == Why::MoreWork {}
    }
}

struct World {
    now: Instant,
    client: Host,
    server: Host,
    listener: ListenerHandle,
}

impl World {
    fn new() -> Result<Self, Box<dyn Error>> {
        let (client, server) = (Host::new(CLIENT, 1)?, Host::new(SERVER, 2)?);
        let options = ListenOptions { options: no_delay(), ..ListenOptions::default() };
        let listener = server.stack.listen(SocketAddr::new(SERVER.into(), PORT), options)?;
        Ok(Self { now: Instant::from_nanos(1_000_000_000), client, server, listener })
    }

    fn tick(&mut self) {
        self.now += DELAY;
    }

    /// Both hosts, and the link between them, for as long as there is something to do at once.
    fn settle(&mut self) {
        loop {
            self.tick();
            self.client.poll(self.now);
            self.server.poll(self.now);
            let there = carry(&self.client.end, &self.server.end);
            let back = carry(&self.server.end, &self.client.end);
            if there + back == 0 {
                return;
            }
        }
    }

    /// `count` connections, their ends at the client and at the server.
    fn connect(&mut self, count: usize) -> Result<[Vec<TcpHandle>; 2], Box<dyn Error>> {
        let options = || ConnectOptions { options: no_delay(), ..ConnectOptions::default() };
        let remote = SocketAddr::new(IpAddr::V4(SERVER), PORT);
        let (mut near, mut far) = (Vec::new(), Vec::new());
        while near.len() < count {
            for _ in 0..BATCH.min(count - near.len()) {
                near.push(self.client.stack.connect(self.now, remote, options())?);
            }
            self.settle();
            while far.len() < near.len() {
                far.push(self.listener.accept()?.0);
            }
        }
        Ok([near, far])
    }
}

fn no_delay() -> SocketOptions {
    SocketOptions { nodelay: true, ..SocketOptions::default() }
}

// --- what is counted -----------------------------------------------------------------------------

#[derive(Clone, Copy, PartialEq, Eq)]
enum Row {
    Send,
    SendZeroCopy,
    Complete,
    Receive,
    Ack,
    Client,
    Server,
}

impl Row {
    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "send" => Self::Send,
            "send-zero-copy" => Self::SendZeroCopy,
            "complete" => Self::Complete,
            "receive" => Self::Receive,
            "ack" => Self::Ack,
            "client" => Self::Client,
            "server" => Self::Server,
            _ => return None,
        })
    }
}

/// Counts one row; the sections of the others just run.
struct Meter {
    row: Row,
    is_on: bool,
    is_traced: bool,
    operations: u64,
    allocations: u64,
}

impl Meter {
    fn new(row: Row, is_traced: bool) -> Self {
        Self { row, is_on: false, is_traced, operations: 0, allocations: 0 }
    }

    /// Runs `work`, as `operations` operations if it belongs to `row`.
    fn section(&mut self, row: Row, operations: u64, mut work: impl FnMut()) {
        if row != self.row || !self.is_on {
            return work();
        }
        let before = ALLOCATIONS.load(Relaxed);
        IS_TRACED.store(self.is_traced && self.allocations < TRACES, Relaxed);
        measured_section(&mut work);
        IS_TRACED.store(false, Relaxed);
        self.allocations += ALLOCATIONS.load(Relaxed) - before;
        self.operations += operations;
    }
}

/// The instruction counter collects while this runs.
#[inline(never)]
fn measured_section(work: &mut dyn FnMut()) {
    work();
    std::hint::black_box(());
}

/// One super-frame there, its completion, its receipt, its ACK.
fn bulk(
    world: &mut World,
    [near, far]: &[TcpHandle; 2],
    data: &Bytes,
    buffer: &mut [u8],
    meter: &mut Meter,
) {
    let is_zero_copy = meter.row == Row::SendZeroCopy;
    let row = if is_zero_copy { Row::SendZeroCopy } else { Row::Send };
    world.tick();
    let now = world.now;
    meter.section(row, 1, || {
        let written = if is_zero_copy {
            near.write_bytes(now, &mut data.clone())
        } else {
            near.write(now, data)
        };
        assert_eq!(written, Ok(SUPER_FRAME), "the send buffer has room");
    });
    let frames = carry(&world.client.end, &world.server.end);
    assert!(!meter.is_on || frames == 1, "{frames} frames instead of one");
    meter.section(Row::Complete, frames, || world.client.poll(now));
    world.tick();
    let now = world.now;
    meter.section(Row::Receive, frames, || {
        world.server.poll(now);
        while far.read(now, buffer).is_ok_and(|read| read > 0) {}
    });
    let acks = carry(&world.server.end, &world.client.end);
    world.tick();
    let now = world.now;
    meter.section(Row::Ack, acks, || world.client.poll(now));
    world.server.poll(now);
    // What the window had kept back.
    if !meter.is_on {
        world.settle();
        while far.read(world.now, buffer).is_ok_and(|read| read > 0) {}
        world.settle();
    }
}

/// One byte there and one back.
fn transaction(world: &mut World, [near, far]: &[TcpHandle; 2], meter: &mut Meter) {
    world.tick();
    let now = world.now;
    meter.section(Row::Client, 0, || {
        assert_eq!(near.write(now, b"x"), Ok(1));
    });
    carry(&world.client.end, &world.server.end);
    world.tick();
    let now = world.now;
    meter.section(Row::Server, 1, || {
        world.server.poll(now);
        assert_eq!(far.read(now, &mut [0]), Ok(1));
        assert_eq!(far.write(now, b"x"), Ok(1));
    });
    carry(&world.server.end, &world.client.end);
    world.tick();
    let now = world.now;
    meter.section(Row::Client, 1, || {
        world.client.poll(now);
        assert_eq!(near.read(now, &mut [0]), Ok(1));
    });
}

fn count_row(row: Row, operations: usize, is_traced: bool) -> Result<Meter, Box<dyn Error>> {
    let mut world = World::new()?;
    let [near, far] = world.connect(1)?;
    let ends = [near[0].clone(), far[0].clone()];
    let mut meter = Meter::new(row, is_traced);
    let data = Bytes::from_owner(vec![b'x'; SUPER_FRAME]);
    let mut buffer = vec![0; 256 << 10];
    for round in 0..WARM_UP + operations {
        meter.is_on = round >= WARM_UP;
        match row {
            Row::Client | Row::Server => transaction(&mut world, &ends, &mut meter),
            _ => bulk(&mut world, &ends, &data, &mut buffer, &mut meter),
        }
    }
    Ok(meter)
}

/// Opens `count` connections, exchanges a byte each way on each, closes them and waits until
/// TIME_WAIT is over. Live bytes when they were open, after the exchange, and at the end.
fn life_of(world: &mut World, count: usize) -> Result<[i64; 3], Box<dyn Error>> {
    let [near, far] = world.connect(count)?;
    let handles = (near.capacity() + far.capacity()) * size_of::<TcpHandle>();
    let live = || LIVE.load(Relaxed) - handles as i64;
    let open = live();
    let mut meter = Meter::new(Row::Client, false);
    for (near, far) in near.iter().zip(&far) {
        transaction(world, &[near.clone(), far.clone()], &mut meter);
    }
    world.now += Nanos::from_secs(1);
    world.settle();
    let used = live();
    drop((near, far));
    for _ in 0..100 {
        world.now += Nanos::from_secs(1);
        world.settle();
    }
    Ok([open, used, LIVE.load(Relaxed)])
}

/// Bytes of connections that do nothing, tables included; and what a third generation leaves behind
/// when it has closed. The tables grow with the first, and with what it left in TIME_WAIT.
fn idle(count: usize) -> Result<(), Box<dyn Error>> {
    let mut world = World::new()?;
    // What all have in common.
    life_of(&mut world, 1)?;
    let empty = LIVE.load(Relaxed);
    let [open, used, _] = life_of(&mut world, count)?;
    let [_, _, tables] = life_of(&mut world, count)?;
    let [_, _, left] = life_of(&mut world, count)?;
    let each = |bytes: i64| bytes as f64 / count as f64 / 2.0;
    println!(
        "{{\"connections\":{count},\"open\":{:.0},\"used\":{:.0},\"tables\":{:.0},\"leaked\":{:.1}}}",
        each(open - empty),
        each(used - empty),
        each(tables - empty),
        each(left - tables)
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().collect();
    let args: Vec<&str> = args.iter().skip(1).map(String::as_str).collect();
    let row = |name| Row::parse(name).ok_or_else(|| format!("there is no row {name}"));
    match args.as_slice() {
        ["count", name, operations] => {
            let meter = count_row(row(name)?, operations.parse()?, false)?;
            let Meter { operations, allocations, .. } = meter;
            println!("{{\"operations\":{operations},\"allocations\":{allocations}}}");
        }
        ["where", name] => {
            count_row(row(name)?, WARM_UP, true)?;
        }
        ["idle", count] => idle(count.parse()?)?,
        _ => return Err("cost count ROW N | cost where ROW | cost idle N".into()),
    }
    Ok(())
}
