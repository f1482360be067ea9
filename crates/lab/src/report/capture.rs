//! Captured packets of links, each with the state of its flow.

use crate::app::group::SharedGroupLog;
use crate::link::{Captured, ENDS, FourTuple, four_tuple};
use crate::world::{LinkId, World};
use neap_stack::socket::tcp::{TcpHandle, WeakTcpHandle};
use neap_tcp::time::Instant;
use neap_tcp::transmit::TxBlocked;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Packet that left one end of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed<'a> {
    /// Name of the link.
    pub link: &'a str,
    /// End of the link that the packet left.
    pub end: usize,
    /// Time at which its last bit left.
    pub at: Instant,
    /// Headers of the packet, from that of IP on.
    pub headers: &'a [u8],
    /// Bytes of the whole IP packet.
    pub len: u32,
    /// State of the packet's flow at the end of the host's turn in which it was handed to the NIC;
    /// for a packet of a router's port, at the end of the turn of a host that followed. It is
    /// empty if the packet is of no application's connection.
    pub comment: &'a str,
}

/// Packets that a NIC has and that have not left it, earliest first: when, link, end, how many came
/// before.
type WaitingPackets = BinaryHeap<Reverse<(Instant, usize, usize, u64, WaitingPacket)>>;

/// Compares equal to all others: the order is that of times and numbers.
struct WaitingPacket {
    headers: Box<[u8]>,
    len: u32,
    comment: String,
}

impl PartialEq for WaitingPacket {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for WaitingPacket {}

impl PartialOrd for WaitingPacket {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for WaitingPacket {
    fn cmp(&self, _: &Self) -> core::cmp::Ordering {
        core::cmp::Ordering::Equal
    }
}

/// Listens to all links. Cost per packet: O(log n) of those in NICs, and one look at its
/// connection; O(n) of all connections for a packet of a flow that is not known.
pub(crate) struct Capture<'a> {
    links: &'a [(String, LinkId)],
    groups: &'a [(String, SharedGroupLog)],
    /// Connections by the packets that they send.
    flows: BTreeMap<FourTuple, WeakTcpHandle>,
    waiting: WaitingPackets,
    count: u64,
    listener: &'a mut dyn FnMut(&Observed<'_>),
}

impl<'a> Capture<'a> {
    pub(crate) fn begin(
        world: &World,
        links: &'a [(String, LinkId)],
        groups: &'a [(String, SharedGroupLog)],
        listener: &'a mut dyn FnMut(&Observed<'_>),
    ) -> Self {
        for (_, link) in links {
            (0..ENDS).for_each(|end| drop(world.link(*link).capture(end)));
        }
        Self {
            links,
            groups,
            flows: BTreeMap::new(),
            waiting: WaitingPackets::new(),
            count: 0,
            listener,
        }
    }

    /// Takes what has come, and tells what has left.
    pub(crate) fn look(&mut self, world: &World) {
        for (index, (_, id)) in self.links.iter().enumerate() {
            for end in 0..ENDS {
                for packet in world.link(*id).capture(end) {
                    let comment = self.comment(&packet, world.now());
                    let Captured { at, headers, len, .. } = packet;
                    let packet = WaitingPacket { headers, len, comment };
                    self.waiting.push(Reverse((at, index, end, self.count, packet)));
                    self.count += 1;
                }
            }
        }
        self.tell(world.now());
    }

    /// Tells the rest.
    pub(crate) fn finish(mut self, world: &World) {
        self.look(world);
        self.tell(Instant::FAR_FUTURE);
    }

    fn tell(&mut self, until: Instant) {
        while self.waiting.peek().is_some_and(|first| first.0.0 <= until) {
            let Some(Reverse((at, index, end, _, packet))) = self.waiting.pop() else { break };
            let WaitingPacket { headers, len, comment } = &packet;
            let link = &self.links[index].0;
            (self.listener)(&Observed { link, end, at, headers, len: *len, comment });
        }
    }

    /// Adds all connections that are open. They begin in any order.
    fn learn(&mut self) {
        for (_, log) in self.groups {
            let log = log.borrow();
            let ends = log.clients.iter().chain(&log.servers);
            for handle in ends.filter_map(|end| end.handle.as_ref()) {
                let flow = (handle.local_addr(), handle.remote_addr());
                self.flows.insert(flow, handle.downgrade());
            }
        }
    }

    fn comment(&mut self, packet: &Captured, now: Instant) -> String {
        let Some(flow) = four_tuple(&packet.headers) else { return String::new() };
        // The ports of a connection that is over may be those of a new one.
        if self.flows.get(&flow).is_none_or(|handle| handle.upgrade().is_none()) {
            self.learn();
        }
        let handle = self.flows.get(&flow).and_then(WeakTcpHandle::upgrade);
        handle.map_or_else(String::new, |handle| describe(&handle, now))
    }
}

/// What the flow of a packet looks like.
fn describe(handle: &TcpHandle, now: Instant) -> String {
    let info = handle.info(now);
    let qdisc = info.below_bytes.saturating_sub(info.device_bytes);
    let blocked = match info.blocked {
        TxBlocked::Pacing(at) => format!("Pacing for {:.3} ms", at.since(now).0 as f64 / 1e6),
        other => format!("{other:?}"),
    };
    format!(
        "cwnd {} segments, in flight {}; account {} bytes: qdisc {qdisc}, device {}; unsent {} bytes; \
         srtt {:.3} ms; blocked by {blocked}",
        info.snd_cwnd,
        info.unacked,
        info.below_bytes,
        info.device_bytes,
        info.notsent_bytes,
        info.rtt.0 as f64 / 1e6,
    )
}
