//! The two applications of a group that sends datagrams.
//!
//! A datagram carries the time at which it was due. That is its number too, since those of a sender
//! are an interval apart: a datagram that the network delivers twice counts once.

use super::{EndLog, Group, Traffic};
use crate::app::{App, Step};
use bytes::Bytes;
use core::net::SocketAddr;
use neap_stack::socket::SocketError;
use neap_stack::socket::readiness::Ready;
use neap_stack::socket::udp::{ReceivedDatagram, UdpHandle};
use neap_stack::stack::{Stack, UdpOptions};
use neap_tcp::time::{Instant, Nanos};
use std::collections::BTreeMap;
use std::task::Waker;

/// Bytes of a datagram that say when it was due.
pub(crate) const STAMP: usize = 8;

/// Blocks of 64 datagrams of a sender that are remembered.
const BLOCKS: usize = 1024;

/// Which of the last datagrams of a sender have come. O(1) per datagram but for a gap, which costs
/// at most the length of the memory.
#[derive(Debug)]
struct Seen {
    /// Bits of the last blocks, each at its number modulo [`BLOCKS`].
    bits: Box<[u64; BLOCKS]>,
    newest: u64,
}

impl Default for Seen {
    fn default() -> Self {
        Self { bits: Box::new([0; BLOCKS]), newest: 0 }
    }
}

impl Seen {
    /// Notes that the datagram of this number has come; whether it has not come before. One that is
    /// older than all that is remembered counts as a copy.
    fn is_first(&mut self, number: u64) -> bool {
        let (block, bit) = (number / 64, 1 << (number % 64));
        let place = |block: u64| block as usize % BLOCKS;
        if block + BLOCKS as u64 <= self.newest {
            return false;
        }
        let passed = block.saturating_sub(self.newest).min(BLOCKS as u64);
        (0..passed).for_each(|back| self.bits[place(block - back)] = 0);
        self.newest = self.newest.max(block);
        let word = &mut self.bits[place(block)];
        let is_first = *word & bit == 0;
        *word |= bit;
        is_first
    }
}

/// Sends one datagram in every interval; one that finds no room is not sent.
struct DatagramSender {
    group: Group,
    index: usize,
    socket: UdpHandle,
    remote: SocketAddr,
    next: Instant,
    end: Instant,
}

/// Counts what comes, and how long it took.
struct DatagramReceiver {
    group: Group,
    socket: UdpHandle,
    waker: Waker,
    /// By the address of their sender, with the place of what it sends in the logs of the servers.
    senders: BTreeMap<SocketAddr, (usize, Seen)>,
}

impl DatagramReceiver {
    fn take(&mut self, datagram: &ReceivedDatagram, now: Instant) {
        let Traffic::Paced { interval, .. } = self.group.config.traffic else { return };
        let mut log = self.group.log.borrow_mut();
        let Some(stamp) = datagram.data.first_chunk::<STAMP>() else { return };
        let is_known = self.senders.contains_key(&datagram.from);
        if !is_known && self.senders.len() == log.clients.len() {
            return;
        }
        let due = u64::from_be_bytes(*stamp);
        let (index, seen) = self.senders.entry(datagram.from).or_insert_with(|| {
            log.servers.push(EndLog { client: Some(datagram.from), ..EndLog::default() });
            (log.servers.len() - 1, Seen::default())
        });
        if seen.is_first(due / interval.0.max(1)) {
            log.servers[*index].read += datagram.data.len() as u64;
            log.latency.record(now.since(Instant::from_nanos(due)));
        }
    }
}

impl Group {
    /// Returns one more sender of datagrams, from `start` to `end`.
    ///
    /// # Errors
    /// Those of [`Stack::bind_udp`].
    pub fn datagram_sender(
        &self,
        stack: &Stack,
        local: SocketAddr,
        remote: SocketAddr,
        start: Instant,
        end: Instant,
    ) -> Result<impl App + use<>, SocketError> {
        let socket = stack.bind_udp(local, UdpOptions::default())?;
        let index = self.add_client();
        Ok(DatagramSender { group: self.clone(), index, socket, remote, next: start, end })
    }

    /// Returns the receiver of all datagrams of the group. What comes from each sender has a log of
    /// its own, like that of the server of a connection.
    ///
    /// # Errors
    /// Those of [`Stack::bind_udp`].
    pub fn datagram_receiver(
        &self,
        stack: &Stack,
        local: SocketAddr,
    ) -> Result<impl App + use<>, SocketError> {
        let socket = stack.bind_udp(local, UdpOptions::default())?;
        let (group, waker) = (self.clone(), Waker::noop().clone());
        Ok(DatagramReceiver { group, socket, waker, senders: BTreeMap::new() })
    }
}

impl App for DatagramSender {
    fn step(&mut self, _: &Stack, now: Instant) -> Step {
        let Traffic::Paced { message, interval } = self.group.config.traffic else {
            return Step::IDLE;
        };
        let mut log = self.group.log.borrow_mut();
        let own = &mut log.clients[self.index];
        let mut did = false;
        while self.next <= now && self.next < self.end {
            let mut data = self.next.as_nanos().to_be_bytes().to_vec();
            data.resize((message as usize).max(STAMP), 0);
            let len = data.len() as u64;
            match self.socket.send_to(now, Bytes::from(data), Some(self.remote)) {
                Ok(()) => own.written += len,
                Err(_) => own.refused += 1,
            }
            self.next += interval.max(Nanos(1));
            did = true;
        }
        let is_over = self.next >= self.end;
        Step { next: if is_over { Instant::FAR_FUTURE } else { self.next }, did }
    }

    fn sleeps(&mut self, _: &Waker) -> bool {
        true
    }
}

impl App for DatagramReceiver {
    fn step(&mut self, _: &Stack, now: Instant) -> Step {
        let mut did = false;
        loop {
            let seen = self.socket.readiness();
            while let Ok(datagram) = self.socket.recv_from() {
                did = true;
                self.take(&datagram, now);
            }
            if self.socket.register(seen, Ready::READABLE, &self.waker) {
                return Step { did, ..Step::IDLE };
            }
        }
    }

    fn sleeps(&mut self, waker: &Waker) -> bool {
        self.waker = waker.clone();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_is_new_once_in_whatever_order_they_come() {
        let mut seen = Seen::default();
        let first = |seen: &mut Seen, numbers: &[u64]| -> Vec<bool> {
            numbers.iter().map(|&number| seen.is_first(number)).collect()
        };
        assert_eq!(first(&mut seen, &[100, 101, 100, 99, 101]), [true, true, false, true, false]);
        let behind = 64 * BLOCKS as u64;
        assert_eq!(first(&mut seen, &[behind + 63, 64, 99]), [true, true, false]);
        assert_eq!(first(&mut seen, &[behind + 64, 64]), [true, false], "too old");
        assert_eq!(
            first(&mut seen, &[9 * behind, 8 * behind, 8 * behind + 64]),
            [true, false, true]
        );
        assert_eq!(first(&mut seen, &[u64::MAX, u64::MAX, 9 * behind]), [true, false, false]);
    }
}
