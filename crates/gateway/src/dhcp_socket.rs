//! The socket of a DHCP server: what arrives is answered or counted.

use crate::counters::Counters;
use neap::{Arrival, Datagram, Stack, UdpSocket};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

/// Messages that are answered before others have their turn.
const BATCH: usize = 16;
/// Memory for messages that wait.
const QUEUE: u32 = 64 << 10;

/// What a server answers to a message, and to whom.
pub(crate) type Answer = (Vec<u8>, SocketAddr);

/// A socket at the port of a server.
pub(crate) struct DhcpSocket {
    socket: UdpSocket,
    /// Address and port that answers come from.
    from: SocketAddr,
    batch: Vec<Datagram>,
    counters: Arc<Counters>,
}

impl DhcpSocket {
    /// Binds the port of `from`, at all addresses: clients speak to groups and to everybody.
    pub(crate) fn open(
        stack: &Stack,
        from: SocketAddr,
        counters: Arc<Counters>,
    ) -> io::Result<Self> {
        let mut any = from;
        any.set_ip(match from {
            SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
        });
        let socket = UdpSocket::bind(stack, any)?;
        socket.set_nonblocking(true)?;
        if from.is_ipv4() {
            socket.set_broadcast(true)?;
        }
        socket.set_buffers(Some(QUEUE), None);
        Ok(Self { socket, from, batch: Vec::new(), counters })
    }

    pub(crate) fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    /// Answers messages that have arrived with what `answer` says, if it says something. Whether
    /// there may be more.
    pub(crate) fn on_messages(
        &mut self,
        mut answer: impl FnMut(&Datagram) -> Option<Answer>,
    ) -> bool {
        let mut batch = std::mem::take(&mut self.batch);
        let received = self.socket.recv_batch(&mut batch, BATCH).unwrap_or(0);
        for message in batch.drain(..) {
            let answer = answer(&message);
            if answer.is_some_and(|answer| self.send(message.arrival, answer)) {
                self.counters.count(|counters| &counters.dhcp_answers);
            } else {
                self.counters.count(|counters| &counters.dhcp_dropped);
            }
        }
        self.batch = batch;
        received == BATCH
    }

    /// Sends an answer by the interface that the message came by. Whether it was taken.
    fn send(&self, arrival: Option<Arrival>, (data, to): Answer) -> bool {
        let mut reply = Datagram::new(data, to);
        reply.interface = arrival.and_then(|arrival| arrival.interface);
        reply.local = Some(self.from);
        self.socket.send_batch(&[reply]).is_ok()
    }
}
