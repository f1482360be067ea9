//! Layer between sockets and devices: links, addresses, routes, neighbours, and the ways out.
//!
//! [`Net`] knows no socket. A failure that concerns sockets is returned: a packet that no neighbour
//! takes in [`Output`](interface::Output), an ICMP error as an [`IcmpError`](icmp::IcmpError).

pub(crate) mod address;
pub(crate) mod bql;
pub(crate) mod egress;
pub mod error;
pub(crate) mod fragment;
pub mod gso;
pub(crate) mod housekeeping;
pub(crate) mod icmp;
pub(crate) mod identification;
pub mod interface;
pub(crate) mod load;
pub mod neighbor;
pub mod port;
pub mod qdisc;
pub(crate) mod rate_limit;
pub mod reassembly;
pub mod route;
pub mod router;
pub(crate) mod sojourn;
pub(crate) mod topology;

use crate::driving::doorbell::Doorbell;
use crate::drop_reason::DropReason;
use crate::flow::FlowKey;
use crate::frame::Frame;
use crate::stats::{IpCounter, PacketCounters};
use crate::sync::{Mutex, lock};
use bytes::Bytes;
use core::net::IpAddr;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use housekeeping::Housekeeping;
use identification::Identifications;
use interface::Undeliverable;
use neap_tcp::time::Instant;
use neap_tcp::transmit::egress::Verdict;
use rate_limit::IcmpLimit;
use reassembly::{Part, Reassembler, Refusal, Whole};
use std::collections::VecDeque;
use std::sync::Arc;
use topology::Topology;

/// Frames on their way from this host to itself.
const LOOPBACK_FRAMES: usize = 1000;

/// Time of a visit, and the shard whose driver makes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visit {
    pub(crate) now: Instant,
    pub(crate) shard: usize,
    /// More frames follow at once, so the device need not be told of this one yet
    /// (`netdev_xmit_more`). Whoever sets this flushes the ports in the end.
    pub(crate) has_more: bool,
}

impl Visit {
    /// A visit whose frames the device hears of one by one.
    pub(crate) fn new(now: Instant, shard: usize) -> Self {
        Self { now, shard, has_more: false }
    }
}

/// Random numbers of a [`Net`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seeds {
    /// Random number that spreads the times of path MTUs.
    pub(crate) topology: u64,
    /// The key of reassembly.
    pub(crate) reassembly: u64,
    /// The key of the limit of ICMP errors.
    pub(crate) icmp_limit: u64,
}

/// Everything of one host below its sockets.
#[derive(Debug)]
pub(crate) struct Net {
    pub(crate) topology: Topology,
    pub(crate) counters: Arc<PacketCounters>,
    pub(crate) housekeeping: Arc<Housekeeping>,
    flow_key: FlowKey,
    reassembler: Mutex<Reassembler>,
    loopback: Mutex<VecDeque<Frame>>,
    pub(crate) icmp_limit: IcmpLimit,
    identifications: Identifications,
    /// `net.ipv4.ip_default_ttl`
    default_ttl: AtomicU8,
    /// `net.ipv4.icmp_echo_ignore_all`
    ignores_echo_v4: AtomicBool,
    /// `net.ipv6.icmp.echo_ignore_all`
    ignores_echo_v6: AtomicBool,
    /// The bell of shard 0, whose driver receives what the host sends to itself.
    bell: Arc<Doorbell>,
}

impl Net {
    /// Nothing is attached. `bell` is that of shard 0.
    pub(crate) fn new(seeds: Seeds, flow_key: FlowKey, bell: Arc<Doorbell>) -> Self {
        Self {
            topology: Topology::new(seeds.topology),
            counters: Arc::default(),
            housekeeping: Arc::new(Housekeeping::new(bell.clone())),
            flow_key,
            reassembler: Mutex::new(Reassembler::new(
                reassembly::Config::default(),
                seeds.reassembly,
            )),
            loopback: Mutex::default(),
            icmp_limit: IcmpLimit::new(seeds.icmp_limit),
            identifications: Identifications::new(flow_key),
            default_ttl: AtomicU8::new(egress::HOP_LIMIT),
            ignores_echo_v4: AtomicBool::default(),
            ignores_echo_v6: AtomicBool::default(),
            bell,
        }
    }

    /// Sets the TTL of IPv4 packets whose socket says no other.
    pub(crate) fn set_default_ttl(&self, ttl: u8) {
        // Settings that were no text are not checked; without a hop a packet goes nowhere.
        self.default_ttl.store(ttl.max(1), Ordering::Relaxed);
    }

    /// Sets whether echo requests stay without an answer, of IPv4 and of IPv6.
    pub(crate) fn set_ignores_echo(&self, v4: bool, v6: bool) {
        self.ignores_echo_v4.store(v4, Ordering::Relaxed);
        self.ignores_echo_v6.store(v6, Ordering::Relaxed);
    }

    /// The hop limit of a packet whose socket asks for `own`, where 0 is the default. A load and
    /// two comparisons.
    pub(crate) fn hop_limit(&self, own: u8, is_v4: bool) -> u8 {
        match own {
            0 if is_v4 => self.default_ttl.load(Ordering::Relaxed),
            0 => egress::HOP_LIMIT,
            own => own,
        }
    }

    /// Queues what this host sends to itself.
    fn loop_back(&self, frame: Frame) -> Verdict {
        let mut queue = lock(&self.loopback);
        if queue.len() >= LOOPBACK_FRAMES {
            drop(queue);
            self.counters.drops.count(DropReason::LoopbackFull);
            return Verdict::Dropped;
        }
        queue.push_back(frame);
        drop(queue);
        self.bell.ring(Instant::ZERO);
        Verdict::Queued
    }

    /// The next frame that this host has sent to itself.
    pub(crate) fn take_looped_back(&self) -> Option<Frame> {
        lock(&self.loopback).pop_front()
    }

    /// Whether frames wait that this host has sent to itself.
    pub(crate) fn has_looped_back(&self) -> bool {
        !lock(&self.loopback).is_empty()
    }

    /// Bytes that this host has sent to itself and not received.
    pub(crate) fn loopback_bytes(&self) -> u64 {
        lock(&self.loopback).iter().map(|frame| frame.len() as u64).sum()
    }

    /// Sets the limits of reassembly, for incomplete datagrams too.
    pub(crate) fn set_reassembly(&self, config: reassembly::Config) {
        let mut reassembler = lock(&self.reassembler);
        reassembler.set_config(config);
        let due = reassembler.deadline();
        drop(reassembler);
        self.housekeeping.schedule(due);
    }

    /// Takes a fragment. The datagram, if that completes it.
    pub(crate) fn reassemble(&self, visit: Visit, part: &Part<'_>) -> Option<Whole> {
        let is_v4 = part.is_v4();
        let count = |counter: IpCounter| self.counters.ip.add(counter.of_family(is_v4), 1);
        count(IpCounter::IpReasmReqds);
        let mut reassembler = lock(&self.reassembler);
        let mut expired = Vec::new();
        reassembler.expire(visit.now, |source, first| expired.push((source, first)));
        let pushed = reassembler.push(visit.now, part);
        let superseded = reassembler.take_superseded();
        let due = reassembler.deadline();
        drop(reassembler);
        self.on_fragment_timeouts(visit, expired);
        self.counters.ip.add(IpCounter::IpReasmFails, superseded);
        self.counters.drops.add(DropReason::Fragment, superseded);
        self.housekeeping.schedule(due);
        match pushed {
            Ok(Some(whole)) => {
                count(IpCounter::IpReasmOKs);
                Some(whole)
            }
            Ok(None) => None,
            Err(refusal) => {
                if refusal != Refusal::Duplicate {
                    count(IpCounter::IpReasmFails);
                }
                self.counters.drops.count(DropReason::Fragment);
                None
            }
        }
    }

    /// Counts the datagrams that did not become whole in time, each with its source, and tells the
    /// senders of those whose first fragment has come.
    fn on_fragment_timeouts(&self, visit: Visit, expired: Vec<(IpAddr, Option<Bytes>)>) {
        for (source, first) in expired {
            self.counters.ip.add(IpCounter::IpReasmFails.of_family(source.is_ipv4()), 1);
            self.counters.drops.count(DropReason::FragmentTimeout);
            if let Some(first) = first {
                self.send_fragment_timeout(visit, &first);
            }
        }
    }

    /// Forgets old fragments, asks neighbours again, and advertises routers. When to come back, and
    /// the packets whose neighbour does not answer.
    pub(crate) fn expire(&self, visit: Visit) -> (Instant, Vec<Undeliverable>) {
        let mut reassembler = lock(&self.reassembler);
        let mut expired = Vec::new();
        reassembler.expire(visit.now, |source, first| expired.push((source, first)));
        let next = reassembler.deadline();
        drop(reassembler);
        self.on_fragment_timeouts(visit, expired);
        let (due, undeliverable) = self.topology.expire(visit);
        (next.min(due), undeliverable)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::wire::{Protocol, ipv4};
    use core::net::Ipv4Addr;
    use neap_tcp::time::Nanos;

    const START: Instant = Instant::from_nanos(1_000_000_000);

    fn net() -> Net {
        let seeds = Seeds { topology: 1, reassembly: 2, icmp_limit: 5 };
        Net::new(seeds, FlowKey::new(5, 6), Arc::default())
    }

    /// The first fragment of a datagram that never becomes whole.
    fn first_fragment(net: &Net, now: Instant, identification: u16) {
        let mut headers = crate::wire::headers::Headers::default();
        ipv4::Header {
            source: Ipv4Addr::new(10, 0, 0, 1),
            destination: Ipv4Addr::new(10, 0, 0, 2),
            protocol: Protocol::UDP,
            ttl: 64,
            dscp: 0,
            ecn: neap_tcp::segment::Ecn::NotEct,
            identification,
            dont_fragment: false,
        }
        .emit(&mut headers, 16);
        let mut packet = headers.as_slice().to_vec();
        // More fragments; the checksum follows.
        packet[6] = 0x20;
        packet[10..12].fill(0);
        let sum = crate::wire::checksum::of(&packet[..20]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet.extend([0; 16]);
        let parsed = ipv4::parse(&packet).expect("a packet");
        let part = Part::v4(&parsed, &packet).expect("a fragment");
        assert!(net.reassemble(Visit::new(now, 0), &part).is_none());
    }

    #[test]
    fn a_fragment_asks_to_be_forgotten_in_time() {
        let net = net();
        first_fragment(&net, START, 1);
        let due = net.housekeeping.deadline();
        assert_eq!(due, START + reassembly::Config::default().time);
        assert!(net.housekeeping.take_due(due));
        let (next, _) = net.expire(Visit::new(due, 0));
        assert_eq!(next, Instant::FAR_FUTURE);
        assert_eq!(net.counters.drops.get(DropReason::FragmentTimeout), 1);
    }

    #[test]
    fn a_datagram_that_the_next_fragment_finds_too_old_is_counted() {
        let net = net();
        first_fragment(&net, START, 1);
        first_fragment(&net, START + Nanos::from_secs(31), 2);
        assert_eq!(net.counters.drops.get(DropReason::FragmentTimeout), 1);
        assert_eq!(net.counters.ip.get(IpCounter::IpReasmFails), 1);
    }
}
