//! Addresses and ports of flows, and their keyed hash.

use core::hash::Hasher;
use siphasher::sip::SipHasher13;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Addresses and ports of a connection, seen from this host. It takes 44 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FourTuple {
    /// Address of this host.
    pub local: IpAddr,
    /// The peer's address.
    pub remote: IpAddr,
    /// Port of this host.
    pub local_port: u16,
    /// The peer's port.
    pub remote_port: u16,
    /// Number of the interface whose link the peer is on, if its address is a link-local one of
    /// IPv6 (`sin6_scope_id`); else 0. Two links may have one such address each, so what differs in
    /// this alone is between other hosts.
    pub scope: u32,
}

impl FourTuple {
    /// Makes a tuple of two socket addresses. Flow label and scope are left out.
    pub fn new(local: SocketAddr, remote: SocketAddr) -> Self {
        Self {
            local: local.ip(),
            remote: remote.ip(),
            local_port: local.port(),
            remote_port: remote.port(),
            scope: 0,
        }
    }

    /// The tuple of what has no ports.
    pub(crate) fn without_ports(local: IpAddr, remote: IpAddr) -> Self {
        Self { local, remote, local_port: 0, remote_port: 0, scope: 0 }
    }

    /// Returns address and port of this host.
    pub fn local_addr(&self) -> SocketAddr {
        SocketAddr::new(self.local, self.local_port)
    }

    /// Address and port of this host as its socket shows them: a link-local address is on the link
    /// of the peer's.
    pub(crate) fn local_name(&self) -> SocketAddr {
        let scope = if is_link_local(self.local) { self.scope } else { 0 };
        with_scope(self.local_addr(), scope)
    }

    /// Returns the peer's address and port, with the scope of a link-local address.
    pub fn remote_addr(&self) -> SocketAddr {
        with_scope(SocketAddr::new(self.remote, self.remote_port), self.scope)
    }
}

/// Whether it is a link-local address of IPv6, which every link may have once (RFC 4007).
pub(crate) fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// Whether an address says nothing without the link that it is on: a link-local one, or a group of
/// a link (`__ipv6_addr_needs_scope_id`).
fn needs_scope(address: Ipv6Addr) -> bool {
    let [first, second, ..] = address.octets();
    address.is_unicast_link_local() || (first == 0xff && matches!(second & 0xf, 1 | 2))
}

/// An address with this scope.
pub(crate) fn with_scope(mut address: SocketAddr, scope: u32) -> SocketAddr {
    if let SocketAddr::V6(v6) = &mut address {
        v6.set_scope_id(scope);
    }
    address
}

/// The scope of an address; 0 if it has none, or if the address is not one of a link, of which the
/// scope says nothing.
pub(crate) fn named_scope(address: SocketAddr) -> u32 {
    match address {
        SocketAddr::V6(v6) if needs_scope(*v6.ip()) => v6.scope_id(),
        _ => 0,
    }
}

/// What counts as one source where sources are bounded: an IPv4 address, or the first 64 bits of an
/// IPv6 address, since a host has as many addresses in its network as it likes.
pub(crate) fn source_of(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
    }
}

/// The key of the hash over addresses and ports: SipHash-1-3 under a secret of the host, so that no
/// peer can choose addresses that collide. About 15 ns for IPv4.
#[derive(Clone, Copy)]
pub(crate) struct FlowKey(u64, u64);

impl core::fmt::Debug for FlowKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("FlowKey(secret)")
    }
}

impl FlowKey {
    pub(crate) fn new(a: u64, b: u64) -> Self {
        Self(a, b)
    }

    /// The hash of a flow. With `local_port` 0 it is also where the search for an ephemeral port
    /// begins. The scope is left out: few flows differ in it alone.
    pub(crate) fn hash(self, tuple: &FourTuple) -> u64 {
        let mut bytes = [0; 36];
        let ports = u32::from(tuple.local_port) << 16 | u32::from(tuple.remote_port);
        bytes[..4].copy_from_slice(&ports.to_be_bytes());
        let len = match (tuple.local, tuple.remote) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => {
                bytes[4..8].copy_from_slice(&local.octets());
                bytes[8..12].copy_from_slice(&remote.octets());
                12
            }
            (local, remote) => {
                bytes[4..20].copy_from_slice(&octets16(local));
                bytes[20..36].copy_from_slice(&octets16(remote));
                36
            }
        };
        self.hash_bytes(&bytes[..len])
    }

    /// A number that nobody can tell from those of other `number`s.
    pub(crate) fn hash_number(self, number: u64) -> u64 {
        self.hash_bytes(&number.to_be_bytes())
    }

    fn hash_bytes(self, bytes: &[u8]) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(self.0, self.1);
        hasher.write(bytes);
        hasher.finish()
    }
}

fn octets16(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// Where packets to `remote` go from a socket that is bound to `own`. The unspecified address means
/// this host: for IPv4 the own address if there is one, else the loopback address
/// (`ip_route_output_key_hash_rcu`, `udpv6_sendmsg`).
pub(crate) fn destination(remote: IpAddr, own: Option<IpAddr>) -> IpAddr {
    match (remote, own) {
        (IpAddr::V4(Ipv4Addr::UNSPECIFIED), Some(IpAddr::V4(own))) => own.into(),
        (IpAddr::V4(Ipv4Addr::UNSPECIFIED), _) => Ipv4Addr::LOCALHOST.into(),
        (IpAddr::V6(Ipv6Addr::UNSPECIFIED), _) => Ipv6Addr::LOCALHOST.into(),
        (remote, _) => remote,
    }
}

/// Returns whether two bound addresses receive packets of each other. `0.0.0.0` and `[::]` stand
/// for all addresses of their own family, as with `IPV6_V6ONLY`.
pub fn overlap(a: SocketAddr, b: SocketAddr) -> bool {
    let is_wild = |one: SocketAddr| one.ip().is_unspecified();
    a.port() == b.port()
        && a.is_ipv4() == b.is_ipv4()
        && (a.ip() == b.ip() || is_wild(a) || is_wild(b))
}
