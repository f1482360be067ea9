//! The DHCP server of a gateway at its socket.

use crate::counters::Counters;
use crate::dhcp::{DhcpConfig, DhcpServer, SERVER_PORT};
use neap::{Datagram, Stack, UdpSocket};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

/// Messages that are answered before others have their turn.
const BATCH: usize = 16;
/// Memory for messages that wait.
const QUEUE: u32 = 64 << 10;

pub(crate) struct DhcpService {
    socket: UdpSocket,
    server: DhcpServer,
    address: Ipv4Addr,
    batch: Vec<Datagram>,
    counters: Arc<Counters>,
}

impl DhcpService {
    pub(crate) fn open(
        stack: &Stack,
        config: DhcpConfig,
        counters: Arc<Counters>,
    ) -> io::Result<Self> {
        let socket = UdpSocket::bind(stack, (Ipv4Addr::UNSPECIFIED, SERVER_PORT))?;
        socket.set_nonblocking(true)?;
        socket.set_broadcast(true)?;
        socket.set_buffers(Some(QUEUE), None);
        let address = config.server;
        Ok(Self { socket, server: DhcpServer::new(config), address, batch: Vec::new(), counters })
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

    /// Whether a message is answered.
    fn answer(&mut self, message: &Datagram) -> bool {
        let is_broadcast = message.arrival.is_some_and(|arrival| arrival.is_broadcast);
        let is_for_us = message.local.is_some_and(|local| local.ip() == IpAddr::V4(self.address));
        if !is_broadcast && !is_for_us {
            return false;
        }
        let Ok(answer) = self.server.answer(&message.data, Instant::now()) else { return false };
        let mut reply = Datagram::new(answer.data, SocketAddr::V4(answer.to));
        reply.interface = message.arrival.and_then(|arrival| arrival.interface);
        reply.local = Some(SocketAddr::from((self.address, SERVER_PORT)));
        self.socket.send_batch(&[reply]).is_ok()
    }
}
