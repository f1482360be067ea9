//! Reasons for which the stack drops packets, with one counter each (Linux's `skb_drop_reason`).

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! drop_reasons {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)+) => {
        /// Reason why a packet was dropped.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(usize)]
        #[non_exhaustive]
        pub enum DropReason { $($(#[$doc])* $variant,)+ }

        impl DropReason {
            /// All reasons, in the order in which they are printed.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// Returns the name of the reason in listings.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }
        }

        impl core::fmt::Display for DropReason {
            /// Prints the name.
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

drop_reasons! {
    /// The link header is cut off or addressed to another station.
    LinkHeader = "link_header",
    /// The EtherType or IP version is not supported.
    UnhandledProtocol = "unhandled_proto",
    /// The IP header is cut off, contradicts itself, has a bad checksum or a source route.
    IpHeader = "ip_inhdr",
    /// The source address is impossible: multicast, broadcast, unspecified, IPv4-mapped, or from
    /// outside loopback or an own one. Or the destination is impossible from outside: loopback,
    /// IPv4-mapped, or the source.
    IpMartian = "ip_invalid_source",
    /// The packet is for another host, and the stack does not forward.
    IpOtherHost = "otherhost",
    /// The packet was for an address of others, and it may take no further hop.
    HopLimit = "ip_hop_limit",
    /// The packet was for all hosts of a network, and only UDP has anything to say to all. Or it
    /// was of TCP and for several stations of a link.
    Broadcast = "ip_broadcast",
    /// The IP protocol is not supported.
    IpProtocol = "ip_noproto",
    /// An IPv6 extension header demands that the packet is dropped, or a first fragment has not all
    /// headers of its datagram.
    Ipv6Extension = "ipv6_bad_exthdr",
    /// A fragment does not fit, overlaps or exceeds the limits of reassembly.
    Fragment = "dup_frag",
    /// A fragment waited too long for the others of its datagram.
    FragmentTimeout = "frag_reasm_timeout",
    /// There is no route to the destination of a packet to send.
    NoRoute = "ip_outnoroutes",
    /// The neighbour did not answer, or too many packets wait for it.
    Neighbor = "neigh_failed",
    /// The ARP packet is malformed.
    Arp = "arp_invalid",
    /// The ICMP message is malformed or unauthentic, or nobody here has a use for it.
    Icmp = "icmp_invalid",
    /// The ICMP checksum is wrong.
    IcmpChecksum = "icmp_csum",
    /// The TCP checksum is wrong.
    TcpChecksum = "tcp_csum",
    /// The TCP header is cut off or contradicts itself.
    TcpHeader = "tcp_invalid_header",
    /// No connection and no listener has these addresses and ports.
    NoSocket = "no_socket",
    /// The packet was for an address of others, at an interface that takes any destination, and no
    /// socket takes it there.
    NoSocketForeign = "no_socket_foreign",
    /// The backlog of a socket that another thread used is full.
    SocketBacklog = "socket_backlog",
    /// The listener had no room, or refused the request.
    ListenerFull = "tcp_overflow",
    /// The segment belongs to no open handshake.
    ListenerState = "tcp_listen_state",
    /// A forwarder has as many pending connections as it may: a SYN that was not taken, or a
    /// pending connection that lost its place to a later one.
    PendingFull = "tcp_pending_full",
    /// The source of a SYN has as many pending connections as it may.
    PendingSource = "tcp_pending_source",
    /// A SYN whose pending connection an application ignored.
    PendingIgnored = "tcp_pending_ignored",
    /// A SYN that no application has decided about in time.
    PendingExpired = "tcp_pending_expired",
    /// The UDP checksum is wrong.
    UdpChecksum = "udp_csum",
    /// The UDP header is cut off or contradicts itself.
    UdpHeader = "udp_invalid_header",
    /// The receive buffer of a UDP socket is full.
    SocketReceiveBuffer = "socket_rcvbuff",
    /// The bounds of the memory of all UDP sockets left none for the datagram (`udp_mem`).
    ProtocolMemory = "proto_mem",
    /// The error queue of a socket is full (`IP_RECVERR`), or its host has no memory for it.
    ErrorQueue = "socket_errqueue",
    /// The qdisc refused the frame.
    QdiscDrop = "qdisc_drop",
    /// The loopback queue is full.
    LoopbackFull = "loopback_full",
    /// The link was down when the packet was to leave, the interface was disabled when it came, or
    /// the device was taken away while it waited.
    LinkDown = "dev_ready",
    /// An echo request was not answered, as the host is told to answer none
    /// (`net.ipv4.icmp_echo_ignore_all`, `net.ipv6.icmp.echo_ignore_all`).
    IgnoredEcho = "ignored_echo",
    /// A rate limit of ICMP errors withheld one.
    RateLimited = "rate_limited",
    /// As many routers of the link are remembered as there is room for.
    RouterTable = "router_table_full",
    /// The stack was shut down.
    ShutDown = "shut_down",
}

/// Counts of dropped packets by reason. Adding is one relaxed atomic operation.
#[derive(Debug)]
pub struct Drops([AtomicU64; DropReason::ALL.len()]);

impl Default for Drops {
    fn default() -> Self {
        Self(core::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Drops {
    /// Counts one packet.
    pub(crate) fn count(&self, reason: DropReason) {
        self.0[reason as usize].fetch_add(1, Relaxed);
    }

    /// Counts `n` packets.
    pub(crate) fn add(&self, reason: DropReason, n: u64) {
        self.0[reason as usize].fetch_add(n, Relaxed);
    }

    /// Returns how many packets were dropped for this reason.
    pub fn get(&self, reason: DropReason) -> u64 {
        self.0[reason as usize].load(Relaxed)
    }

    /// Returns every reason with its count.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL.iter().map(|&reason| (reason, self.get(reason)))
    }
}
