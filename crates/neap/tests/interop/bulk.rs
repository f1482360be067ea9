//! Streams of bytes, large and small, each byte verified.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;

use bytes::Bytes;

use crate::common::{
    Family, Pattern, expect_end, expect_nothing_below, expect_nothing_left, in_namespace,
};

const BULK: u64 = 64 << 20;

/// One stream there and back; `theirs` ends it.
fn there_and_back(ours: &mut neap::TcpStream, mut theirs: TcpStream, len: u64) {
    let (there, back) = (Pattern(1), Pattern(2));
    let kernel = thread::spawn(move || {
        there.receive(&mut theirs, len);
        back.send(&mut theirs, len);
        theirs.shutdown(Shutdown::Write).expect("shutdown");
        expect_end(&mut theirs);
    });
    there.send(ours, len);
    back.receive(ours, len);
    expect_end(ours);
    ours.shutdown(Shutdown::Write).expect("shutdown");
    kernel.join().expect("the kernel's end");
}

#[test]
fn bulk_each_way_verified() {
    in_namespace(|| {
        for family in Family::BOTH {
            let stack = family.stack();
            let (mut ours, theirs) = family.pair(&stack);
            there_and_back(&mut ours, theirs, BULK);
            let info = ours.info();
            // The FIN is one.
            assert_eq!((info.bytes_received, info.notsent_bytes), (BULK + 1, 0));
            drop(ours);
            expect_nothing_left(&stack, 0);
        }
    });
}

#[test]
fn bulk_each_way_on_a_connection_that_the_kernel_opened() {
    in_namespace(|| {
        for family in Family::BOTH {
            let stack = family.stack();
            let (listener, address) = family.listener(&stack);
            let theirs = TcpStream::connect(address).expect("connect");
            let (mut ours, from) = listener.accept().expect("accept");
            assert_eq!(from, theirs.local_addr().expect("an address"));
            assert_eq!(from, ours.peer_addr().expect("an address"));
            there_and_back(&mut ours, theirs, BULK);
            drop(ours);
            expect_nothing_left(&stack, 1);
        }
    });
}

#[test]
fn both_directions_at_once() {
    in_namespace(|| {
        for family in Family::BOTH {
            let stack = family.stack();
            let (ours, theirs) = family.pair(&stack);
            let (there, back) = (Pattern(3), Pattern(4));
            thread::scope(|scope| {
                scope.spawn(|| there.send(&mut &ours, BULK));
                scope.spawn(|| back.receive(&mut &ours, BULK));
                scope.spawn(|| there.receive(&mut &theirs, BULK));
                scope.spawn(|| back.send(&mut &theirs, BULK));
            });
            expect_nothing_below(&stack);
        }
    });
}

#[test]
fn many_streams_at_once() {
    const STREAMS: u64 = 20;
    const LEN: u64 = 2 << 20;
    in_namespace(|| {
        let family = Family::V4;
        let stack = family.stack();
        let pairs: Vec<_> = (0..STREAMS).map(|_| family.pair(&stack)).collect();
        thread::scope(|scope| {
            for (seed, (ours, theirs)) in (0..).zip(&pairs) {
                let (there, back) = (Pattern(2 * seed), Pattern(2 * seed + 1));
                scope.spawn(move || {
                    there.send(&mut &*ours, LEN);
                    back.receive(&mut &*ours, LEN);
                });
                scope.spawn(move || {
                    there.receive(&mut &*theirs, LEN);
                    back.send(&mut &*theirs, LEN);
                });
            }
        });
        expect_nothing_below(&stack);
    });
}

#[test]
fn bytes_are_sent_without_a_copy() {
    const LEN: usize = 16 << 20;
    in_namespace(|| {
        let family = Family::V4;
        let stack = family.stack();
        let (ours, mut theirs) = family.pair(&stack);
        let pattern = Pattern(5);
        let kernel = thread::spawn(move || {
            pattern.receive(&mut theirs, LEN as u64);
            expect_end(&mut theirs);
        });
        let mut rest = Bytes::from(pattern.bytes(LEN));
        let mut size = 1;
        while !rest.is_empty() {
            let mut piece = rest.split_to(size.min(rest.len()));
            let len = piece.len();
            assert_eq!(ours.send_bytes(&mut piece).expect("sent"), len);
            assert!(piece.is_empty());
            size = size * 2 + 1;
        }
        ours.shutdown(Shutdown::Write).expect("shutdown");
        kernel.join().expect("the kernel's end");
    });
}

#[test]
fn one_half_is_closed_and_the_other_goes_on() {
    const LEN: u64 = 3 << 20;
    in_namespace(|| {
        for family in Family::BOTH {
            let stack = family.stack();
            let (mut ours, mut theirs) = family.pair(&stack);
            let (first, second) = (Pattern(6), Pattern(7));
            let kernel = thread::spawn(move || {
                first.receive(&mut theirs, LEN);
                expect_end(&mut theirs);
                second.send(&mut theirs, LEN);
            });
            first.send(&mut ours, LEN);
            ours.shutdown(Shutdown::Write).expect("shutdown");
            let refused = ours.write(b"too late").expect_err("closed for writing");
            assert_eq!(refused.kind(), std::io::ErrorKind::BrokenPipe);
            second.receive(&mut ours, LEN);
            expect_end(&mut ours);
            kernel.join().expect("the kernel's end");

            let (mut ours, mut theirs) = family.pair(&stack);
            let kernel = thread::spawn(move || {
                first.send(&mut theirs, LEN);
                theirs.shutdown(Shutdown::Write).expect("shutdown");
                second.receive(&mut theirs, LEN);
                expect_end(&mut theirs);
            });
            first.receive(&mut ours, LEN);
            expect_end(&mut ours);
            second.send(&mut ours, LEN);
            ours.shutdown(Shutdown::Write).expect("shutdown");
            kernel.join().expect("the kernel's end");
        }
    });
}

#[test]
fn requests_and_replies_of_one_byte() {
    const ROUNDS: u32 = 2000;
    in_namespace(|| {
        for family in Family::BOTH {
            let stack = family.stack();
            let (mut ours, mut theirs) = family.pair(&stack);
            theirs.set_nodelay(true).expect("an option");
            ours.set_nodelay(true).expect("an option");
            assert!(ours.nodelay().expect("an option"));
            let kernel = thread::spawn(move || {
                let mut byte = [0];
                for _ in 0..ROUNDS {
                    theirs.read_exact(&mut byte).expect("a request");
                    theirs.write_all(&[byte[0].wrapping_add(1)]).expect("a reply");
                }
            });
            for round in 0..ROUNDS {
                let request = round as u8;
                ours.write_all(&[request]).expect("a request");
                let mut reply = [0];
                ours.read_exact(&mut reply).expect("a reply");
                assert_eq!(reply[0], request.wrapping_add(1));
            }
            kernel.join().expect("the kernel's end");
            let info = ours.info();
            assert_eq!(info.bytes_acked, u64::from(ROUNDS) + 1, "the SYN counts");
        }
    });
}

/// Packets that found the queue towards the device full.
fn lost_in_the_ring(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/net/dev").expect("the devices");
    let line =
        text.lines().find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(':'));
    // Eight figures of what was received; then bytes, packets, errors and drops.
    let field = line.expect("the device").split_whitespace().nth(11).expect("a figure");
    field.parse().expect("a number")
}

#[test]
fn a_hundred_flows_that_the_kernel_sends_lose_nothing_in_the_ring() {
    const FLOWS: u64 = 100;
    const LEN: u64 = 8 << 20;
    in_namespace(|| {
        let stack = Family::V4.stack();
        let pairs: Vec<_> = (0..FLOWS).map(|_| Family::V4.pair(&stack)).collect();
        let poller = neap::Poller::new().expect("a poller");
        for (number, (ours, _)) in pairs.iter().enumerate() {
            ours.set_nonblocking(true).expect("an option");
            poller.add(ours, number as u64, neap::Events::IN).expect("a new socket");
        }
        thread::scope(|scope| {
            // All send at once, from few threads.
            for share in pairs.chunks(25) {
                scope.spawn(move || {
                    let data = vec![0; 1 << 20];
                    for _ in 0..LEN >> 20 {
                        for (_, theirs) in share {
                            (&*theirs).write_all(&data).expect("write");
                        }
                    }
                });
            }
            let (mut left, mut events) = (FLOWS * LEN, Vec::new());
            let mut buf = vec![0; 256 << 10];
            while left > 0 {
                poller.wait(&mut events, None).expect("wait");
                for event in &events {
                    match (&pairs[event.token as usize].0).read(&mut buf) {
                        Ok(read) => left -= read as u64,
                        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
                    }
                }
            }
        });
        assert_eq!(lost_in_the_ring("t0"), 0);
    });
}
