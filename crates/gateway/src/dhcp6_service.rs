//! The DHCPv6 server of a gateway at its socket.

use crate::counters::Counters;
use crate::dhcp6::{Dhcp6Config, Dhcp6Server, SERVER_PORT_V6};
use neap::{Datagram, Stack, UdpSocket};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

/// Messages that are answered before others have their turn.
const BATCH: usize = 16;
/// Memory for messages that wait.
const QUEUE: u32 = 64 << 10;

pub(crate) struct Dhcp6Service {
    socket: UdpSocket,
    server: Dhcp6Server,
    address: Ipv6Addr,
    batch: Vec<Datagram>,
    counters: Arc<Counters>,
}

impl Dhcp6Service {
    pub(crate) fn open(
        stack: &Stack,
        config: &Dhcp6Config,
        counters: Arc<Counters>,
    ) -> io::Result<Self> {
        let socket = UdpSocket::bind(stack, (Ipv6Addr::UNSPECIFIED, SERVER_PORT_V6))?;
        socket.set_nonblocking(true)?;
        socket.set_buffers(Some(QUEUE), None);
        let (server, address) = (Dhcp6Server::new(config), config.server);
        Ok(Self { socket, server, address, batch: Vec::new(), counters })
    }

    pub(crate) fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    /// Answers messages that have arrived. Whether there may be more.
    pub(crate) fn on_messages(&mut self) -> bool {
        let mut batch = std::mem::take(&mut self.batch);
        let received = self.socket.recv_batch(&mut batch, BATCH).unwrap_or(0);
        for message in batch.drain(..) {
            if self.answer(&message) {
                self.counters.count(|counters| &counters.dhcp_answers);
            } else {
                self.counters.count(|counters| &counters.dhcp_dropped);
            }
        }
        self.batch = batch;
        received == BATCH
    }

    /// Whether a message is answered. Clients speak to the group of all servers, from their
    /// link-local addresses.
    fn answer(&mut self, message: &Datagram) -> bool {
        let is_for_group = message.arrival.is_some_and(|arrival| arrival.is_broadcast);
        let is_local = match message.peer.ip() {
            IpAddr::V6(client) => client.is_unicast_link_local(),
            IpAddr::V4(_) => false,
        };
        if !is_for_group || !is_local {
            return false;
        }
        let Some(answer) = self.server.answer(&message.data) else { return false };
        let mut reply = Datagram::new(answer, message.peer);
        reply.interface = message.arrival.and_then(|arrival| arrival.interface);
        reply.local = Some(SocketAddr::from((self.address, SERVER_PORT_V6)));
        self.socket.send_batch(&[reply]).is_ok()
    }
}
