//! The ports of the host that are those of the namespace.

use super::arguments::{AllPorts, Args};
use super::network::Network;
use super::ports::{Place, Ports};
use crate::gateway::LEAST_FOR_FLOWS;
use neap_gateway::{Publication, Transport};
use rustix::net::sockopt::{set_ip_freebind, set_ipv6_freebind};
use socket2::{Domain, Socket, Type};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

/// A bound socket, and what is to be published with it.
pub(super) type Bound = (OwnedFd, Publication);

/// Binds ports of the host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Binder<'a> {
    pub(super) args: &'a Args,
    pub(super) network: &'a Network,
}

impl Binder<'_> {
    /// How many descriptors all listed ports take, those of the namespace included, of `allowed`.
    ///
    /// # Errors
    /// One line: they leave too few for flows.
    pub(super) fn descriptors(self, ports: &AllPorts, allowed: usize) -> Result<usize, String> {
        let both = self.families().count();
        let all = [&ports.tcp_in, &ports.udp_in, &ports.tcp_out, &ports.udp_out];
        let listed = all.into_iter().filter_map(|ports| match ports {
            Ports::Listed { ports, .. } => Some(ports.keys()),
            Ports::None | Ports::Auto => None,
        });
        let taken = listed.flatten().map(|(place, _)| place.address.map_or(both, |_| 1)).sum();
        if taken + LEAST_FOR_FLOWS as usize > allowed {
            return Err(format!(
                "the ports of -t, -u, -T and -U take {taken} descriptors, and the limit allows \
                 {allowed}: raise it (ulimit -n), or name fewer ports"
            ));
        }
        Ok(taken)
    }

    /// The unspecified addresses of the families that the namespace has.
    fn families(self) -> impl Iterator<Item = IpAddr> {
        let (v4, v6) = (Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into());
        [(&self.network.v4, v4), (&self.network.v6, v6)]
            .into_iter()
            .filter_map(|(family, any): (_, IpAddr)| family.as_ref().map(|_| any))
    }

    /// Binds all ports that the options name. Of all ports those are left out that somebody else
    /// has, in the family that it is in.
    ///
    /// # Errors
    /// One line for the first that the host does not give.
    pub(super) fn bind_listed(self, ports: &AllPorts) -> Result<Vec<Bound>, String> {
        let mut bound = Vec::new();
        for (transport, ports) in [(Transport::Tcp, &ports.tcp_in), (Transport::Udp, &ports.udp_in)]
        {
            let Ports::Listed { ports, may_fail } = ports else { continue };
            let before = bound.len();
            let mut last = None;
            for ((place, port), &target) in ports {
                let each = |address| Place { address: Some(address), ..place.clone() };
                let places = match place.address {
                    None if *may_fail => self.families().map(each).collect(),
                    _ => vec![place.clone()],
                };
                for place in &places {
                    match self.bind(transport, place, *port, target) {
                        Ok(sockets) => bound.extend(sockets),
                        Err(error) if *may_fail => last = Some((*port, error)),
                        Err(error) => return Err(refused(transport, *port, &error)),
                    }
                }
            }
            if let Some((port, error)) = last
                && bound.len() == before
            {
                return Err(refused(transport, port, &error));
            }
        }
        Ok(bound)
    }

    /// Binds one port, for each family that the namespace has.
    ///
    /// # Errors
    /// What the kernel says if it gives the port in no family, or somebody else has it in one.
    pub(super) fn bind(
        self,
        transport: Transport,
        place: &Place,
        port: u16,
        target: u16,
    ) -> io::Result<Vec<Bound>> {
        let is_off = match transport {
            Transport::Tcp => self.args.no_tcp,
            Transport::Udp => self.args.no_udp,
        };
        if is_off {
            return Ok(Vec::new());
        }
        let addresses = match place.address {
            Some(address) => vec![address],
            None => self.families().collect(),
        };
        let (mut bound, mut refused) = (Vec::new(), None);
        for address in addresses {
            let Some(guest) = self.guest(address) else { continue };
            match self.open(transport, SocketAddr::new(address, port), place.interface.as_deref()) {
                Ok(socket) => bound.push((
                    socket,
                    Publication {
                        transport,
                        port: SocketAddr::new(address, port),
                        guest: SocketAddr::new(guest, target),
                        stand_in: self.network.stand_in(guest),
                    },
                )),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => return Err(error),
                Err(error) => refused = Some(error),
            }
        }
        match refused {
            Some(error) if bound.is_empty() => Err(error),
            _ => Ok(bound),
        }
    }

    /// The address of the namespace for clients of an address of the host: of the same family if
    /// there is one.
    fn guest(self, address: IpAddr) -> Option<IpAddr> {
        let of = |is_v6: bool| {
            let family = if is_v6 { &self.network.v6 } else { &self.network.v4 };
            family.as_ref().and_then(|family| family.guest).map(|(guest, _)| guest)
        };
        of(address.is_ipv6()).or_else(|| of(!address.is_ipv6()))
    }

    fn open(
        self,
        transport: Transport,
        port: SocketAddr,
        interface: Option<&str>,
    ) -> io::Result<OwnedFd> {
        let kind = match transport {
            Transport::Tcp => Type::STREAM,
            Transport::Udp => Type::DGRAM,
        };
        let socket = Socket::new(Domain::for_address(port), kind.nonblocking().cloexec(), None)?;
        if port.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        if transport == Transport::Tcp {
            socket.set_reuse_address(true)?;
        }
        if self.args.freebind {
            set_ip_freebind(&socket, true)?;
            if port.is_ipv6() {
                set_ipv6_freebind(&socket, true)?;
            }
        }
        if let Some(interface) = interface {
            socket.bind_device(Some(interface.as_bytes()))?;
        }
        socket.bind(&port.into())?;
        if transport == Transport::Tcp {
            // Another socket with the port is told now, and not when the gateway listens.
            socket.listen(1)?;
        }
        Ok(socket.into())
    }
}

fn refused(transport: Transport, port: u16, error: &io::Error) -> String {
    let option = match transport {
        Transport::Tcp => "--tcp-ports",
        Transport::Udp => "--udp-ports",
    };
    let hint = match error.kind() {
        io::ErrorKind::AddrInUse => "; choose a free one",
        io::ErrorKind::PermissionDenied => {
            "; the administrator allows it by `sysctl net.ipv4.ip_unprivileged_port_start=PORT`"
        }
        io::ErrorKind::AddrNotAvailable => "; --freebind binds addresses that are not there yet",
        _ => "",
    };
    format!("{option}: {}{hint}", not_given("host", transport, port, error))
}

/// One line about a port that `who` does not give.
pub(super) fn not_given(who: &str, transport: Transport, port: u16, error: &io::Error) -> String {
    let name = match transport {
        Transport::Tcp => "TCP",
        Transport::Udp => "UDP",
    };
    format!("the {who} does not give {name} port {port}: {error}")
}
