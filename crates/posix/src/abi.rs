//! Numbers of Linux's socket interface, as its UAPI headers have them for x86-64 and the other
//! architectures that share `asm-generic`.
//!
//! The names are C's, and the manual pages say what they mean. [`NAMES`] lists them by name.
#![allow(missing_docs, non_upper_case_globals)]

macro_rules! named {
    ($($(#[$attribute:meta])* pub const $name:ident: $kind:ty = $value:expr;)+) => {
        $($(#[$attribute])* pub const $name: $kind = $value;)+

        /// All constants of this module that C has, by name, in the order of their headers.
        pub const NAMES: &[(&str, i64)] = &[$((stringify!($name), $name as i64)),+];
    };
}

named! {
// Domains, kinds and protocols of `socket(2)`.
pub const AF_UNSPEC: i32 = 0;
pub const AF_INET: i32 = 2;
pub const AF_INET6: i32 = 10;
/// The least number that is no domain.
pub const AF_MAX: i32 = 46;
pub const PF_INET: i32 = AF_INET;
pub const PF_INET6: i32 = AF_INET6;
pub const INADDR_ANY: u32 = 0;
pub const SOCK_STREAM: i32 = 1;
pub const SOCK_DGRAM: i32 = 2;
pub const SOCK_RAW: i32 = 3;
pub const SOCK_MAX: i32 = 11;
pub const SOCK_TYPE_MASK: i32 = 0xf;
pub const SOCK_NONBLOCK: i32 = O_NONBLOCK;
pub const SOCK_CLOEXEC: i32 = O_CLOEXEC;
pub const IPPROTO_IP: i32 = 0;
pub const IPPROTO_TCP: i32 = 6;
pub const IPPROTO_UDP: i32 = 17;
pub const IPPROTO_IPV6: i32 = 41;
/// Numbers of protocols are below.
pub const IPPROTO_MAX: i32 = 263;

// `fcntl(2)`.
pub const F_DUPFD: i32 = 0;
pub const F_GETFD: i32 = 1;
pub const F_SETFD: i32 = 2;
pub const F_GETFL: i32 = 3;
pub const F_SETFL: i32 = 4;
pub const F_DUPFD_CLOEXEC: i32 = 1030;
pub const FD_CLOEXEC: i32 = 1;
pub const O_RDONLY: i32 = 0;
pub const O_WRONLY: i32 = 1;
pub const O_RDWR: i32 = 2;
pub const O_APPEND: i32 = 0x400;
pub const O_NONBLOCK: i32 = 0x800;
pub const O_ASYNC: i32 = 0x2000;
pub const O_DIRECT: i32 = 0x4000;
pub const O_NOATIME: i32 = 0x4_0000;
pub const O_CLOEXEC: i32 = 0x8_0000;

// `ioctl(2)`.
pub const FIONREAD: u64 = 0x541b;
pub const SIOCINQ: u64 = FIONREAD;
pub const SIOCOUTQ: u64 = 0x5411;
pub const SIOCOUTQNSD: u64 = 0x894b;
pub const SIOCATMARK: u64 = 0x8905;
pub const FIONBIO: u64 = 0x5421;

// `shutdown(2)`.
pub const SHUT_RD: i32 = 0;
pub const SHUT_WR: i32 = 1;
pub const SHUT_RDWR: i32 = 2;

// `send(2)`, `recv(2)`.
pub const MSG_OOB: i32 = 0x1;
pub const MSG_PEEK: i32 = 0x2;
pub const MSG_DONTROUTE: i32 = 0x4;
pub const MSG_CTRUNC: i32 = 0x8;
pub const MSG_TRUNC: i32 = 0x20;
pub const MSG_DONTWAIT: i32 = 0x40;
pub const MSG_WAITFORONE: i32 = 0x1_0000;
pub const MSG_EOR: i32 = 0x80;
pub const MSG_WAITALL: i32 = 0x100;
pub const MSG_ERRQUEUE: i32 = 0x2000;
pub const MSG_NOSIGNAL: i32 = 0x4000;
pub const MSG_MORE: i32 = 0x8000;
pub const MSG_ZEROCOPY: i32 = 0x400_0000;
pub const MSG_FASTOPEN: i32 = 0x2000_0000;
pub const MSG_CMSG_CLOEXEC: i32 = 0x4000_0000;

// `poll(2)`; epoll's are the same.
pub const POLLIN: u32 = 0x1;
pub const POLLPRI: u32 = 0x2;
pub const POLLOUT: u32 = 0x4;
pub const POLLERR: u32 = 0x8;
pub const POLLHUP: u32 = 0x10;
pub const POLLNVAL: u32 = 0x20;
pub const POLLRDNORM: u32 = 0x40;
pub const POLLRDBAND: u32 = 0x80;
pub const POLLWRNORM: u32 = 0x100;
pub const POLLWRBAND: u32 = 0x200;
pub const POLLRDHUP: u32 = 0x2000;

// `epoll_ctl(2)`.
pub const EPOLL_CTL_ADD: i32 = 1;
pub const EPOLL_CTL_DEL: i32 = 2;
pub const EPOLL_CTL_MOD: i32 = 3;
pub const EPOLLIN: u32 = POLLIN;
pub const EPOLLPRI: u32 = POLLPRI;
pub const EPOLLOUT: u32 = POLLOUT;
pub const EPOLLERR: u32 = POLLERR;
pub const EPOLLHUP: u32 = POLLHUP;
pub const EPOLLRDNORM: u32 = POLLRDNORM;
pub const EPOLLRDBAND: u32 = POLLRDBAND;
pub const EPOLLWRNORM: u32 = POLLWRNORM;
pub const EPOLLWRBAND: u32 = POLLWRBAND;
pub const EPOLLRDHUP: u32 = POLLRDHUP;
pub const EPOLLEXCLUSIVE: u32 = 1 << 28;
pub const EPOLLWAKEUP: u32 = 1 << 29;
pub const EPOLLONESHOT: u32 = 1 << 30;
pub const EPOLLET: u32 = 1 << 31;
pub const EPOLL_CLOEXEC: i32 = O_CLOEXEC;

// `splice(2)`.
pub const SPLICE_F_MOVE: u32 = 1;
pub const SPLICE_F_NONBLOCK: u32 = 2;
pub const SPLICE_F_MORE: u32 = 4;
pub const SPLICE_F_GIFT: u32 = 8;

// Levels of options.
pub const SOL_IP: i32 = IPPROTO_IP;
pub const SOL_SOCKET: i32 = 1;
pub const SOL_TCP: i32 = IPPROTO_TCP;
pub const SOL_UDP: i32 = IPPROTO_UDP;
pub const SOL_IPV6: i32 = IPPROTO_IPV6;

// SOL_SOCKET.
pub const SO_DEBUG: i32 = 1;
pub const SO_REUSEADDR: i32 = 2;
pub const SO_TYPE: i32 = 3;
pub const SO_ERROR: i32 = 4;
pub const SO_DONTROUTE: i32 = 5;
pub const SO_BROADCAST: i32 = 6;
pub const SO_SNDBUF: i32 = 7;
pub const SO_RCVBUF: i32 = 8;
pub const SO_KEEPALIVE: i32 = 9;
pub const SO_OOBINLINE: i32 = 10;
pub const SO_PRIORITY: i32 = 12;
pub const SO_LINGER: i32 = 13;
pub const SO_REUSEPORT: i32 = 15;
pub const SO_RCVLOWAT: i32 = 18;
pub const SO_SNDLOWAT: i32 = 19;
pub const SO_RCVTIMEO_OLD: i32 = 20;
pub const SO_SNDTIMEO_OLD: i32 = 21;
pub const SO_RCVTIMEO: i32 = SO_RCVTIMEO_OLD;
pub const SO_SNDTIMEO: i32 = SO_SNDTIMEO_OLD;
pub const SO_PEERNAME: i32 = 28;
pub const SO_TIMESTAMP: i32 = 29;
pub const SO_ACCEPTCONN: i32 = 30;
pub const SO_SNDBUFFORCE: i32 = 32;
pub const SO_RCVBUFFORCE: i32 = 33;
pub const SO_TIMESTAMPNS: i32 = 35;
pub const SO_MARK: i32 = 36;
pub const SO_TIMESTAMPING: i32 = 37;
pub const SO_PROTOCOL: i32 = 38;
pub const SO_DOMAIN: i32 = 39;
pub const SO_RXQ_OVFL: i32 = 40;
pub const SO_BUSY_POLL: i32 = 46;
pub const SO_MAX_PACING_RATE: i32 = 47;
pub const SO_INCOMING_CPU: i32 = 49;
pub const SO_MEMINFO: i32 = 55;
pub const SO_COOKIE: i32 = 57;
pub const SO_ZEROCOPY: i32 = 60;
pub const SO_RCVTIMEO_NEW: i32 = 66;
pub const SO_SNDTIMEO_NEW: i32 = 67;

// SOL_TCP.
pub const TCP_NODELAY: i32 = 1;
pub const TCP_MAXSEG: i32 = 2;
pub const TCP_CORK: i32 = 3;
pub const TCP_KEEPIDLE: i32 = 4;
pub const TCP_KEEPINTVL: i32 = 5;
pub const TCP_KEEPCNT: i32 = 6;
pub const TCP_SYNCNT: i32 = 7;
pub const TCP_LINGER2: i32 = 8;
pub const TCP_DEFER_ACCEPT: i32 = 9;
pub const TCP_WINDOW_CLAMP: i32 = 10;
pub const TCP_INFO: i32 = 11;
pub const TCP_QUICKACK: i32 = 12;
pub const TCP_CONGESTION: i32 = 13;
pub const TCP_MD5SIG: i32 = 14;
pub const TCP_THIN_LINEAR_TIMEOUTS: i32 = 16;
pub const TCP_THIN_DUPACK: i32 = 17;
pub const TCP_USER_TIMEOUT: i32 = 18;
pub const TCP_REPAIR: i32 = 19;
pub const TCP_FASTOPEN: i32 = 23;
pub const TCP_TIMESTAMP: i32 = 24;
pub const TCP_NOTSENT_LOWAT: i32 = 25;
pub const TCP_CC_INFO: i32 = 26;
pub const TCP_SAVE_SYN: i32 = 27;
pub const TCP_FASTOPEN_CONNECT: i32 = 30;
pub const TCP_ULP: i32 = 31;
pub const TCP_FASTOPEN_NO_COOKIE: i32 = 34;
pub const TCP_INQ: i32 = 36;
pub const TCP_CM_INQ: i32 = TCP_INQ;
pub const TCP_TX_DELAY: i32 = 37;
/// `TCP_NEAP_NOTSENT_LOWAT_US`, an option of neap: the low-water mark as microseconds of the pacing
/// rate.
pub const TCP_NEAP_NOTSENT_LOWAT_US: i32 = 0x4e01;
/// `TCP_CA_NAME_MAX`.
pub const TCP_CA_NAME_MAX: usize = 16;

// SOL_IP, SOL_IPV6.
pub const IP_TOS: i32 = 1;
pub const IP_TTL: i32 = 2;
pub const IP_PKTINFO: i32 = 8;
pub const IP_MTU_DISCOVER: i32 = 10;
pub const IP_RECVERR: i32 = 11;
pub const IP_RECVTTL: i32 = 12;
pub const IP_RECVTOS: i32 = 13;
pub const IP_MTU: i32 = 14;
pub const IP_RECVERR_RFC4884: i32 = 26;
pub const IP_FREEBIND: i32 = 15;
pub const IP_TRANSPARENT: i32 = 19;
pub const IP_ORIGDSTADDR: i32 = 20;
pub const IP_BIND_ADDRESS_NO_PORT: i32 = 24;
pub const IP_RECVORIGDSTADDR: i32 = IP_ORIGDSTADDR;
pub const IPV6_UNICAST_HOPS: i32 = 16;
pub const IPV6_MTU_DISCOVER: i32 = 23;
pub const IPV6_MTU: i32 = 24;
pub const IPV6_RECVERR: i32 = 25;
pub const IPV6_V6ONLY: i32 = 26;
pub const IPV6_RECVPKTINFO: i32 = 49;
pub const IPV6_PKTINFO: i32 = 50;
pub const IPV6_RECVHOPLIMIT: i32 = 51;
pub const IPV6_HOPLIMIT: i32 = 52;
pub const IPV6_RECVTCLASS: i32 = 66;
pub const IPV6_TCLASS: i32 = 67;
pub const IPV6_ORIGDSTADDR: i32 = 74;
pub const IPV6_TRANSPARENT: i32 = 75;
pub const IPV6_FREEBIND: i32 = 78;
pub const IPV6_RECVORIGDSTADDR: i32 = IPV6_ORIGDSTADDR;
/// `SO_EE_ORIGIN_*` of `linux/errqueue.h`.
pub const SO_EE_ORIGIN_NONE: u8 = 0;
pub const SO_EE_ORIGIN_LOCAL: u8 = 1;
pub const SO_EE_ORIGIN_ICMP: u8 = 2;
pub const SO_EE_ORIGIN_ICMP6: u8 = 3;
pub const IP_PMTUDISC_DONT: i32 = 0;
pub const IP_PMTUDISC_WANT: i32 = 1;
pub const IP_PMTUDISC_DO: i32 = 2;
pub const IP_PMTUDISC_PROBE: i32 = 3;
pub const IP_PMTUDISC_INTERFACE: i32 = 4;
pub const IP_PMTUDISC_OMIT: i32 = 5;

// `enum` of `tcp_states.h`.
pub const TCP_ESTABLISHED: u8 = 1;
pub const TCP_SYN_SENT: u8 = 2;
pub const TCP_SYN_RECV: u8 = 3;
pub const TCP_FIN_WAIT1: u8 = 4;
pub const TCP_FIN_WAIT2: u8 = 5;
pub const TCP_TIME_WAIT: u8 = 6;
pub const TCP_CLOSE: u8 = 7;
pub const TCP_CLOSE_WAIT: u8 = 8;
pub const TCP_LAST_ACK: u8 = 9;
pub const TCP_LISTEN: u8 = 10;
pub const TCP_CLOSING: u8 = 11;
pub const TCP_NEW_SYN_RECV: u8 = 12;

// `tcpi_options`.
pub const TCPI_OPT_TIMESTAMPS: u8 = 1;
pub const TCPI_OPT_SACK: u8 = 2;
pub const TCPI_OPT_WSCALE: u8 = 4;
pub const TCPI_OPT_ECN: u8 = 8;
pub const TCPI_OPT_ECN_SEEN: u8 = 16;
pub const TCPI_OPT_SYN_DATA: u8 = 32;

// `tcpi_ca_state`, and a `tcpi_snd_ssthresh` that is none.
pub const TCP_CA_Open: u8 = 0;
pub const TCP_CA_Disorder: u8 = 1;
pub const TCP_CA_CWR: u8 = 2;
pub const TCP_CA_Recovery: u8 = 3;
pub const TCP_CA_Loss: u8 = 4;
pub const TCP_INFINITE_SSTHRESH: u32 = 0x7fff_ffff;
}

/// `sizeof(struct cmsghdr)`.
pub const CMSG_HEADER_LEN: usize = 16;
/// `sizeof(struct in_pktinfo)`.
pub const PKTINFO_LEN_V4: usize = 12;
/// `sizeof(struct in6_pktinfo)`.
pub const PKTINFO_LEN_V6: usize = 20;
/// `sizeof(struct sock_extended_err)`.
pub const SOCK_EXTENDED_ERR_LEN: usize = 16;

/// Returns the constant of this name. Cost: a search through all names.
pub fn number(name: &str) -> Option<i64> {
    NAMES.iter().find(|(known, _)| *known == name).map(|&(_, value)| value)
}
