//! The two applications of a group that sends datagrams.

use super::{EndLog, Group, Traffic};
use crate::app::{App, Step};
use bytes::Bytes;
use core::net::SocketAddr;
use neap_stack::socket::SocketError;
use neap_stack::socket::readiness::Ready;
use neap_stack::socket::udp::UdpHandle;
use neap_stack::stack::{Stack, UdpOptions};
use neap_tcp::time::{Instant, Nanos};
use std::task::Waker;

/// Bytes of a datagram that say when it was due.
const STAMP: usize = 8;

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

    /// Returns the receiver of all datagrams of the group.
    ///
    /// # Errors
    /// Those of [`Stack::bind_udp`].
    pub fn datagram_receiver(
        &self,
        stack: &Stack,
        local: SocketAddr,
    ) -> Result<impl App + use<>, SocketError> {
        let socket = stack.bind_udp(local, UdpOptions::default())?;
        self.log.borrow_mut().servers.push(EndLog::default());
        Ok(DatagramReceiver { group: self.clone(), socket, waker: Waker::noop().clone() })
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
                let mut log = self.group.log.borrow_mut();
                log.servers[0].read += datagram.data.len() as u64;
                if let Some(stamp) = datagram.data.first_chunk::<STAMP>() {
                    let due = Instant::from_nanos(u64::from_be_bytes(*stamp));
                    log.latency.record(now.since(due));
                }
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
