//! The DHCP server of a gateway at its socket.

use crate::counters::Counters;
use crate::dhcp::{DhcpConfig, DhcpServer, SERVER_PORT};
use crate::dhcp_socket::DhcpSocket;
use neap::{Stack, UdpSocket};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

pub(crate) struct DhcpService {
    socket: DhcpSocket,
    server: DhcpServer,
    address: Ipv4Addr,
}

impl DhcpService {
    pub(crate) fn open(
        stack: &Stack,
        config: DhcpConfig,
        counters: Arc<Counters>,
    ) -> io::Result<Self> {
        let address = config.server;
        let socket = DhcpSocket::open(stack, (address, SERVER_PORT).into(), counters)?;
        Ok(Self { socket, server: DhcpServer::new(config), address })
    }

    pub(crate) fn socket(&self) -> &UdpSocket {
        self.socket.socket()
    }

    /// Answers messages that have arrived, to everybody or to this server. Whether there may be
    /// more.
    pub(crate) fn on_messages(&mut self) -> bool {
        let Self { socket, server, address } = self;
        socket.on_messages(|message| {
            let is_broadcast = message.arrival.is_some_and(|arrival| arrival.is_broadcast);
            let is_for_us = message.local.is_some_and(|local| local.ip() == IpAddr::V4(*address));
            if !is_broadcast && !is_for_us {
                return None;
            }
            let answer = server.answer(&message.data, Instant::now()).ok()?;
            Some((answer.data, SocketAddr::V4(answer.to)))
        })
    }
}
