//! Queueing disciplines of a running stack: departures are kept in real time, and a change under
//! load loses nothing.

use std::net::{SocketAddr, UdpSocket};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use neap::Stack;
use neap::device::TunConfig;
use neap::net::InterfaceId;
use neap::qdisc::FqStats;
use neap::qdisc::Xstats;

use crate::common::{Family, Pattern, expect_nothing_below, in_namespace};

/// The interface of the only device.
fn first(stack: &Stack) -> InterfaceId {
    stack.host().interfaces()[0].id
}

fn fq(stack: &Stack) -> FqStats {
    match stack.host().qdiscs(first(stack))[0].xstats {
        Xstats::Fq(figures) => figures,
        other => panic!("{other:?}"),
    }
}

#[test]
fn paced_flows_wait_in_fq() {
    const LEN: u64 = 2 << 20;
    const RATE: u64 = 8 << 20;
    in_namespace(|| {
        let stack = Family::V4.stack();
        stack.set_qdisc(first(&stack), "fq").expect("well formed");
        let (mut ours, mut theirs) = Family::V4.pair(&stack);
        ours.set_max_pacing_rate(Some(RATE)).expect("a rate");
        let start = Instant::now();
        thread::scope(|scope| {
            scope.spawn(|| Pattern(1).receive(&mut theirs, LEN));
            Pattern(1).send(&mut ours, LEN);
        });
        // Sleeping is never exact: only too early would be wrong.
        let least = Duration::from_secs_f64(LEN as f64 / RATE as f64 * 0.95);
        assert!(start.elapsed() >= least, "{:?}", start.elapsed());
        // Of frames of at most 64 KiB, all but the first ten segments wait.
        assert!(fq(&stack).throttled > LEN / 65_536 / 2, "{:?}", fq(&stack));
        drop(ours);
        expect_nothing_below(&stack);
    });
}

#[test]
fn datagrams_wait_in_fq_and_push_back() {
    const COUNT: u32 = 400;
    const RATE: u64 = 1 << 20;
    in_namespace(|| {
        let stack = Family::V4.stack();
        stack.set_qdisc(first(&stack), "fq flow_limit 20").expect("well formed");
        let theirs = UdpSocket::bind((Family::V4.kernel(), 0)).expect("bind");
        theirs.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        let address = theirs.local_addr().expect("an address");
        let ours = neap::UdpSocket::bind(&stack, SocketAddr::new(Family::V4.ours(), 0));
        let ours = ours.expect("bind");
        ours.connect(address).expect("connect");
        ours.set_max_pacing_rate(Some(RATE)).expect("a rate");
        let start = Instant::now();
        let receiver = thread::spawn(move || {
            let mut buf = [0; 2000];
            for n in 0..COUNT {
                let len = theirs.recv(&mut buf).expect("a datagram");
                assert_eq!((len, &buf[..4]), (1000, &n.to_be_bytes()[..]), "in order, none lost");
            }
        });
        for n in 0..COUNT {
            let mut data = [0; 1000];
            data[..4].copy_from_slice(&n.to_be_bytes());
            assert_eq!(ours.send(&data).expect("waits rather than fails"), 1000);
        }
        receiver.join().expect("the kernel's end");
        // The first turn is free.
        let bytes = f64::from(COUNT) * 1028.0 - 15_140.0;
        let least = Duration::from_secs_f64(bytes / RATE as f64 * 0.95);
        assert!(start.elapsed() >= least, "{:?}", start.elapsed());
        let figures = fq(&stack);
        assert!(figures.throttled > 20 && figures.flows_plimit > 0, "{figures:?}");
    });
}

#[test]
fn qdiscs_change_under_load() {
    const LEN: u64 = 16 << 20;
    in_namespace(|| {
        let stack = Family::V4.stack();
        assert!(stack.set_qdisc(first(&stack), "fq speed 1").is_err());
        assert_eq!(stack.host().qdiscs(first(&stack))[0].config.kind(), "pfifo_fast");
        let pairs: Vec<_> = (0..3).map(|_| Family::V4.pair(&stack)).collect();
        thread::scope(|scope| {
            let mut senders = Vec::new();
            for (seed, (mut ours, mut theirs)) in (1..).zip(pairs) {
                if seed == 1 {
                    ours.set_max_pacing_rate(Some(32 << 20)).expect("a rate");
                }
                scope.spawn(move || Pattern(seed).receive(&mut theirs, LEN));
                senders.push(scope.spawn(move || Pattern(seed).send(&mut ours, LEN)));
            }
            let kinds = ["fq", "codel", "fq_codel", "tbf rate 4gbit burst 90kb limit 1mb", "mq fq"];
            for kind in kinds.iter().cycle() {
                stack.set_qdisc(first(&stack), kind).expect("well formed");
                if senders.iter().all(ScopedJoinHandle::is_finished) {
                    break;
                }
                thread::yield_now();
            }
        });
        expect_nothing_below(&stack);
    });
}

#[test]
fn each_queue_has_a_qdisc_of_its_own() {
    in_namespace(|| {
        let config = TunConfig { name: Some("t0".into()), queues: 2, ..TunConfig::default() };
        let (kernel, ours) = (Family::V4.kernel(), Family::V4.ours());
        let stack = Stack::builder()
            .tun_with(config)
            .host_address(Family::V4.cidr(kernel))
            .address(&Family::V4.cidr(ours))
            .qdisc("mq fq flow_limit 50")
            .build()
            .expect("a stack on a TUN");
        let pairs: Vec<_> = (0..4).map(|_| Family::V4.pair(&stack)).collect();
        thread::scope(|scope| {
            for (seed, (mut ours, mut theirs)) in (1..).zip(pairs) {
                scope.spawn(move || Pattern(seed).receive(&mut theirs, 100_000));
                scope.spawn(move || Pattern(seed).send(&mut ours, 100_000));
            }
        });
        let qdiscs = stack.host().qdiscs(first(&stack));
        assert_eq!(qdiscs.len(), 2);
        for qdisc in qdiscs {
            assert!(qdisc.config.to_string().starts_with("fq limit 10000p flow_limit 50p"));
            assert!(qdisc.stats.packets > 2, "{qdisc}");
        }
    });
}
