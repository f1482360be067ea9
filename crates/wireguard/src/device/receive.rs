//! Datagrams to packets: one call for up to 64 KB of them, opened into memory that the stack keeps.

use crate::device::merge::Merger;
use crate::device::shared::Shared;
use crate::device::socket::{Arrived, HostSocket, MOST_SEGMENTS};
use crate::device::toll::TollMeter;
use crate::engine::Outer;
use crate::protocol::sanstun::Sanstun;
use crate::protocol::{Open, PeerId, Protocol};
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

/// The thread is behind if it has not seen the socket empty for so long.
const BEHIND: Nanos = Nanos::from_millis(10);

type Opening = <Sanstun as Protocol>::Open;
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
    /// When the socket was last seen empty.
    emptied: Instant,
    toll: TollMeter,
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
            emptied: Instant::ZERO,
            toll: TollMeter::default(),
        }
    }

    /// Takes the datagrams of one call. Returns what handshakes among them are estimated to take.
    fn take(&mut self, arrived: Arrived, now: Instant) -> Nanos {
        let shared = &self.shared;
        let Arrived { ends, len, segment, ecn, lost } = arrived;
        if lost > 0 {
            shared.counters.lost_in_socket.add(lost.into());
        }
        let datagrams = &self.buffer[..len];
        self.opening.clear();
        let opening = &mut self.opening;
        let is_behind = now.since(self.emptied) > BEHIND;
        let toll = self.toll.take();
        let (estimated, unsent) = shared.engine_unsent(|engine| {
            engine.begin_visit(is_behind, toll);
            for (index, datagram) in datagrams.chunks(segment).enumerate() {
                if let Some((peer, open)) = engine.receive(ends, datagram, now) {
                    opening.push((index * segment, peer, open));
                }
            }
            engine.estimated()
        });
        self.unsent = unsent;
        if self.opening.is_empty() {
            return estimated;
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
        estimated
    }

    /// Sends the answers to datagrams that were taken. Those to one address leave together: under a
    /// flood of handshakes a call for each would take longer than reading them.
    fn answer(&mut self) {
        if core::mem::take(&mut self.unsent) > 0 {
            let begin = self.toll.begin();
            self.shared.send_outgoing();
            self.toll.add_answers(begin);
        }
    }

    /// The next packet, of as many calls as it takes.
    fn next(&mut self, now: Instant) -> Option<Received> {
        for _ in 0..VAIN_MAX {
            if let Some(packet) = self.ready.pop_front() {
                return Some(packet);
            }
            let begin = self.toll.begin();
            match self.shared.socket.receive(&mut self.buffer, &mut self.control) {
                Ok(arrived) => {
                    self.shared.counters.receives.one();
                    let estimated = self.take(arrived, now);
                    self.toll.end(begin, estimated);
                    if self.unsent >= MOST_SEGMENTS {
                        self.answer();
                    }
                }
                Err(Errno::EAGAIN) => {
                    self.emptied = now;
                    return None;
                }
                // An error of a datagram that was sent: the monitor looks at the queue of errors.
                Err(_) => self.shared.ring(),
            }
        }
        // The socket is not empty. Its event was taken, so the bell brings the driver back.
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
        if self.shared.is_revived() { Instant::ZERO } else { self.shared.deadline() }
    }

    fn arrival(&self, now: Instant) -> Instant {
        clock::arrival(now)
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
