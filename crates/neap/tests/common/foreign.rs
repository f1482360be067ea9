//! A stack that takes packets for networks of others, on a TUN or a TAP, and the kernel's sockets
//! that send to them.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use bytes::Bytes;
use neap::device::{LinkConfig, Tun, TunConfig, configure_link};
use neap::net::Prefix;
use neap::{InterfaceConfig, Stack};
use neap_lab::hostile::packet;
use neap_tcp::segment::{Flags, Options, Segment};
use neap_tcp::seq::SeqNumber;
use rustix::io::Errno;
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, socket_with, sockopt};

use super::{Family, run};

/// For what must come: nothing is lost here.
pub(crate) const LONG: Option<Duration> = Some(Duration::from_secs(60));

/// Kind of the device between stack and kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    Tun,
    /// An Ethernet, whose stations ask for each address of the networks.
    Tap,
}

/// Both families on each kind of link.
pub(crate) const EACH: [(Family, Link); 4] = [
    (Family::V4, Link::Tun),
    (Family::V4, Link::Tap),
    (Family::V6, Link::Tun),
    (Family::V6, Link::Tap),
];

/// Networks that the kernel reaches by `t0`.
pub(crate) fn networks(family: Family) -> &'static [&'static str] {
    match family {
        Family::V4 => &["192.0.2.0/24", "198.51.100.0/24"],
        Family::V6 => &["2001:db8::/32"],
    }
}

/// Addresses of these networks.
pub(crate) fn addresses(family: Family) -> [IpAddr; 3] {
    [
        family.text("192.0.2.7", "2001:db8::7"),
        family.text("192.0.2.200", "2001:db8:1::8"),
        family.text("198.51.100.1", "2001:db8:2::9"),
    ]
}

/// The way to a stack on `t0` that takes what the kernel sends to the networks.
pub(crate) fn interface(family: Family, link: Link) -> InterfaceConfig {
    let name = Some("t0".into());
    let config = TunConfig { name, tap: link == Link::Tap, ..TunConfig::default() };
    let device = Tun::open(&config).expect("a TUN");
    if link == Link::Tap && family == Family::V6 {
        // The link-local address need not be asked for: nobody has it.
        std::fs::write("/proc/sys/net/ipv6/conf/t0/accept_dad", "0").expect("a setting");
    }
    let len = if family == Family::V4 { 24 } else { 64 };
    let addresses = vec![(family.kernel(), len)];
    configure_link("t0", &LinkConfig { addresses, ..LinkConfig::default() }).expect("an address");
    let own = family.cidr(family.ours()).parse().expect("an address");
    let mut interface = InterfaceConfig::new(device.into_device()).address(own);
    for network in networks(family) {
        run(&format!("ip route add {network} dev t0"));
        if link == Link::Tap {
            let prefix: Prefix = network.parse().expect("a network");
            interface = interface.proxy(prefix);
        }
    }
    interface.any_destination(true)
}

/// A stack on `t0` that takes what the kernel sends to the networks.
pub(crate) fn stack(family: Family, link: Link) -> Stack {
    let stack = Stack::builder().interface(interface(family, link)).build();
    family.await_kernel();
    stack.expect("a stack on a TUN")
}

fn set_ttl_and_tos(socket: impl AsFd, family: Family, ttl: u8, tos: u8) {
    match family {
        Family::V4 => {
            sockopt::set_ip_ttl(&socket, ttl.into()).expect("set");
            sockopt::set_ip_tos(&socket, tos).expect("set");
        }
        Family::V6 => {
            sockopt::set_ipv6_unicast_hops(&socket, Some(ttl)).expect("set");
            sockopt::set_ipv6_tclass(&socket, tos.into()).expect("set");
        }
    }
}

/// A UDP socket of the kernel that hears `peer` alone, with this TTL and TOS byte.
pub(crate) fn udp_client(family: Family, peer: SocketAddr, ttl: u8, tos: u8) -> UdpSocket {
    let client = UdpSocket::bind((family.kernel(), 0)).expect("bind");
    set_ttl_and_tos(&client, family, ttl, tos);
    client.connect(peer).expect("a route");
    client.set_read_timeout(LONG).expect("a timeout");
    client
}

fn address_family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

/// A connection of the kernel that is being opened, from `own` or any address, with this TTL and
/// TOS byte.
pub(crate) struct Opening(OwnedFd);

impl Opening {
    pub(crate) fn new(peer: SocketAddr) -> Self {
        Self::with(peer, 64, 0)
    }

    pub(crate) fn with(peer: SocketAddr, ttl: u8, tos: u8) -> Self {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let kind = SocketType::STREAM;
        let socket = socket_with(address_family(peer.ip()), kind, flags, None).expect("a socket");
        let family = if peer.is_ipv4() { Family::V4 } else { Family::V6 };
        set_ttl_and_tos(&socket, family, ttl, tos);
        let begun = rustix::net::connect(&socket, &peer);
        assert_eq!(begun, Err(Errno::INPROGRESS));
        Self(socket)
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        let name = rustix::net::getsockname(&self.0).expect("a socket");
        name.try_into().expect("an address of IP")
    }

    /// Waits until the connection is open or refused.
    pub(crate) fn wait(self) -> io::Result<TcpStream> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let long = Timespec { tv_sec: 60, tv_nsec: 0 };
        let mut fds = [PollFd::new(&self.0, PollFlags::OUT)];
        assert_eq!(poll(&mut fds, Some(&long)), Ok(1), "nobody answers");
        sockopt::socket_error(&self.0)?.map_err(io::Error::from)?;
        let stream = TcpStream::from(self.0);
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(LONG)?;
        Ok(stream)
    }

    /// Waits until the connection is refused; by which error.
    pub(crate) fn refused(self) -> ErrorKind {
        self.wait().expect_err("a refusal").kind()
    }
}

/// All packets of the namespace, from the IP header on.
pub(crate) fn sniffer() -> UdpSocket {
    const ETH_P_ALL: u32 = 3;
    let protocol = Protocol::from_raw((ETH_P_ALL << 8).try_into().expect("not zero"));
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::PACKET, SocketType::DGRAM, flags, Some(protocol));
    let socket: OwnedFd = socket.expect("root of the namespace");
    let socket = UdpSocket::from(socket);
    socket.set_read_timeout(LONG).expect("a timeout");
    socket
}

/// TTL and TOS byte of the first packet from an address.
pub(crate) fn seen(sniffer: &UdpSocket, from: IpAddr) -> (u8, u8) {
    let mut packet = [0; 2000];
    loop {
        let len = sniffer.recv(&mut packet).expect("a packet");
        match (from, &packet[..len]) {
            (IpAddr::V4(ip), packet)
                if packet[0] >> 4 == 4 && packet[12..16] == ip.octets()[..] =>
            {
                return (packet[8], packet[1]);
            }
            (IpAddr::V6(ip), packet) if packet[0] >> 4 == 6 && packet[8..24] == ip.octets()[..] => {
                return (packet[7], packet[0] << 4 | packet[1] >> 4);
            }
            _ => {}
        }
    }
}

/// Sends packets of any source by the routes of the kernel.
pub(crate) struct Forger(UdpSocket);

impl Forger {
    pub(crate) fn new(family: Family) -> Self {
        const IPPROTO_RAW: u32 = 255;
        let protocol = Protocol::from_raw(IPPROTO_RAW.try_into().expect("not zero"));
        let flags = SocketFlags::CLOEXEC;
        let of = address_family(family.kernel());
        let socket = socket_with(of, SocketType::RAW, flags, Some(protocol));
        Self(UdpSocket::from(socket.expect("root of the namespace")))
    }

    fn send(&self, from: SocketAddr, to: SocketAddr, seq: u32, flags: Flags) {
        let options = Options { mss: Some(1400), ..Options::default() };
        let options = if flags == Flags::SYN { options } else { Options::default() };
        let seq = SeqNumber(seq);
        let segment = Segment { seq, flags, window: 1000, options, ..Segment::default() };
        let packet: Bytes = packet::emit(from, to, segment).expect("one family").to_bytes();
        self.0.send_to(&packet, SocketAddr::new(to.ip(), 0)).expect("a route");
    }

    pub(crate) fn syn(&self, from: SocketAddr, to: SocketAddr, seq: u32) {
        self.send(from, to, seq, Flags::SYN);
    }

    /// Takes a SYN with the number before `seq` back.
    pub(crate) fn reset(&self, from: SocketAddr, to: SocketAddr, seq: u32) {
        self.send(from, to, seq, Flags::RST);
    }
}
