//! Many flows that always have something to send share a device: each gets about the same.
//!
//! What is counted is what the stack has acknowledged of each flow, from when all have sent to when
//! all together have sent some more, so that a busy machine only makes the test longer.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use neap::device::{Packet, PacketConfig, Tun, TunConfig};
use neap::{Events, Poller, Stack};

use crate::common::{in_namespace, run};
use crate::links::{Elsewhere, add_address, veth};

/// What all flows together send before their shares are counted, and meanwhile.
const WARM_UP: u64 = 256 << 20;
/// Each has sent this part of its share of the warm-up by then: the peer's threads all read.
const STARTED: u64 = 4;
const COUNTED: u64 = 1 << 30;

/// What a flow is given at once: more than it takes, so that the application does not deal out
/// shares.
const WRITE: usize = 16 << 20;

/// Bytes that the peer has acknowledged, by flow.
fn acknowledged(streams: &[neap::TcpStream]) -> Vec<u64> {
    streams.iter().map(|stream| stream.info().bytes_acked).collect()
}

/// (sum x)^2 / (n * sum x^2): 1 if all are equal.
fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|x| x * x).sum();
    sum * sum / (shares.len() as f64 * squares)
}

/// Accepts `flows` connections, and reads until all have ended. Few threads read, as each read
/// takes what is there.
fn sink(listener: &TcpListener, flows: usize) {
    let accept = || listener.accept().expect("accept").0;
    let streams: Vec<TcpStream> = (0..flows).map(|_| accept()).collect();
    thread::scope(|scope| {
        for mut stream in streams {
            scope.spawn(move || {
                let mut buf = vec![0; 256 << 10];
                // It ends with the end of the stream, or with the reset of an aborted one.
                while stream.read(&mut buf).is_ok_and(|read| read > 0) {}
            });
        }
    });
}

/// Writes to all flows as much as they take, until `until` bytes were acknowledged, and `least` of
/// each. Returns how many there were of each.
fn send(poller: &Poller, streams: &[neap::TcpStream], until: u64, least: u64) -> Vec<u64> {
    let data = vec![0; WRITE];
    let mut events = Vec::new();
    loop {
        let got = acknowledged(streams);
        if got.iter().sum::<u64>() >= until && got.iter().all(|bytes| *bytes >= least) {
            return got;
        }
        poller.wait(&mut events, None).expect("wait");
        for event in &events {
            // What it does not take is of no use to it.
            let written = (&streams[event.token as usize]).write(&data);
            if let Err(error) = written {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
            }
        }
    }
}

/// The shares of so many flows to `listener` have at least this index of Jain's.
fn expect_equal_shares(stack: &Stack, listener: TcpListener, flows: usize, least: f64) {
    let address: SocketAddr = listener.local_addr().expect("an address");
    let sink = thread::spawn(move || sink(&listener, flows));
    let connect = |_| neap::TcpStream::connect(stack, address).expect("connect");
    let streams: Vec<_> = (0..flows).map(connect).collect();
    let poller = Poller::new().expect("a poller");
    for (token, stream) in streams.iter().enumerate() {
        stream.set_nonblocking(true).expect("an option");
        poller.add(stream, token as u64, Events::OUT).expect("a new socket");
    }
    let before = send(&poller, &streams, WARM_UP, WARM_UP / flows as u64 / STARTED);
    let counted = before.iter().sum::<u64>() + COUNTED;
    let after = send(&poller, &streams, counted, 0);
    let shares = after.iter().zip(&before).map(|(after, before)| (after - before) as f64);
    let shares: Vec<f64> = shares.collect();
    let (index, waited) = (jain(&shares), stack.host().usage().longest_wait);
    println!("{flows} flows: Jain's index {index:.4}, {waited} rounds");
    assert!(index >= least, "{flows} flows: Jain's index {index:.4} of {shares:?}");
    assert!(waited <= 2, "{flows} flows: one waited for {waited} rounds");
    drop(streams);
    sink.join().expect("the kernel's end");
}

fn over_tun(gso_max_size: u32, flows: usize, least: f64) {
    let config = TunConfig { name: Some("t0".into()), gso_max_size, ..TunConfig::default() };
    let device = Tun::open(&config).expect("a TUN").into_device();
    run("ip link set t0 up");
    add_address("t0", "10.9.0.1/24");
    let stack = Stack::builder().device(device).address("10.9.0.2/24").build().expect("a stack");
    let listener = TcpListener::bind("10.9.0.1:0").expect("bind");
    expect_equal_shares(&stack, listener, flows, least);
}

fn over_veth(gso_max_size: u32, flows: usize, least: f64) {
    let there = Elsewhere::new();
    veth(&there);
    let listener = there.run(|| {
        add_address("v1", "10.9.0.1/24");
        TcpListener::bind("10.9.0.1:0").expect("bind")
    });
    let config = PacketConfig { gso_max_size, ..PacketConfig::new("v0") };
    let device = Packet::open(&config).expect("a device").into_device();
    let stack = Stack::builder().device(device).address("10.9.0.2/24").build().expect("a stack");
    expect_equal_shares(&stack, listener, flows, least);
}

/// Least of Jain's index. Flows of a hundred have few bytes each, so they differ more where the
/// machine is busy and stops one end for a while.
const TEN: f64 = 0.8;
const HUNDRED: f64 = 0.7;

const SUPER_FRAMES: u32 = 65_535;
const SEGMENTS: u32 = 1500;

#[test]
fn ten_flows_over_a_tun() {
    in_namespace(|| over_tun(SUPER_FRAMES, 10, TEN));
}

#[test]
fn hundred_flows_over_a_tun() {
    in_namespace(|| over_tun(SUPER_FRAMES, 100, HUNDRED));
}

#[test]
fn ten_flows_over_a_tun_without_super_frames() {
    in_namespace(|| over_tun(SEGMENTS, 10, TEN));
}

#[test]
fn ten_flows_over_ethernet() {
    in_namespace(|| over_veth(SUPER_FRAMES, 10, TEN));
}

#[test]
fn hundred_flows_over_ethernet() {
    in_namespace(|| over_veth(SUPER_FRAMES, 100, HUNDRED));
}

#[test]
fn ten_flows_over_ethernet_without_super_frames() {
    in_namespace(|| over_veth(SEGMENTS, 10, TEN));
}
