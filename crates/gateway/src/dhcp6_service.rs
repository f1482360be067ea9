//! The DHCPv6 server of a gateway at its socket.

use crate::counters::Counters;
use crate::dhcp_socket::DhcpSocket;
use crate::dhcp6::{Dhcp6Config, Dhcp6Server, SERVER_PORT_V6};
use neap::{Stack, UdpSocket};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

pub(crate) struct Dhcp6Service {
    socket: DhcpSocket,
    server: Dhcp6Server,
}

impl Dhcp6Service {
    pub(crate) fn open(
        stack: &Stack,
        config: &Dhcp6Config,
        counters: Arc<Counters>,
    ) -> io::Result<Self> {
        let socket = DhcpSocket::open(stack, (config.server, SERVER_PORT_V6).into(), counters)?;
        Ok(Self { socket, server: Dhcp6Server::new(config) })
    }

    pub(crate) fn socket(&self) -> &UdpSocket {
        self.socket.socket()
    }

    /// Answers messages that have arrived. Clients speak to the group of all servers, from their
    /// link-local addresses. Whether there may be more.
    pub(crate) fn on_messages(&mut self) -> bool {
        let Self { socket, server } = self;
        socket.on_messages(|message| {
            let is_for_group = message.arrival.is_some_and(|arrival| arrival.is_broadcast);
            let is_local = match message.peer.ip() {
                IpAddr::V6(client) => client.is_unicast_link_local(),
                IpAddr::V4(_) => false,
            };
            if !is_for_group || !is_local {
                return None;
            }
            Some((server.answer(&message.data)?, message.peer))
        })
    }
}
