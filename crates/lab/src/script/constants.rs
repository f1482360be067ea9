//! Linux's numbers by name: constants of system calls, errors, and where `TCP_INFO` has its fields.

/// Constants, in the order of their names.
const CONSTANTS: &[(&str, i64)] = &[
    ("AF_INET", 2),
    ("AF_INET6", 10),
    ("EPOLLERR", 8),
    ("EPOLLET", 2147483648),
    ("EPOLLEXCLUSIVE", 268435456),
    ("EPOLLHUP", 16),
    ("EPOLLIN", 1),
    ("EPOLLONESHOT", 1073741824),
    ("EPOLLOUT", 4),
    ("EPOLLPRI", 2),
    ("EPOLLRDBAND", 128),
    ("EPOLLRDHUP", 8192),
    ("EPOLLRDNORM", 64),
    ("EPOLLWRBAND", 512),
    ("EPOLLWRNORM", 256),
    ("EPOLL_CLOEXEC", 524288),
    ("EPOLL_CTL_ADD", 1),
    ("EPOLL_CTL_DEL", 2),
    ("EPOLL_CTL_MOD", 3),
    ("FD_CLOEXEC", 1),
    ("FIONBIO", 21537),
    ("FIONREAD", 21531),
    ("F_DUPFD", 0),
    ("F_GETFD", 1),
    ("F_GETFL", 3),
    ("F_SETFD", 2),
    ("F_SETFL", 4),
    ("INADDR_ANY", 0),
    ("IPPROTO_IP", 0),
    ("IPPROTO_IPV6", 41),
    ("IPPROTO_TCP", 6),
    ("IPPROTO_UDP", 17),
    ("IPV6_MTU", 24),
    ("IPV6_MTU_DISCOVER", 23),
    ("IPV6_RECVERR", 25),
    ("IPV6_TCLASS", 67),
    ("IPV6_UNICAST_HOPS", 16),
    ("IPV6_V6ONLY", 26),
    ("IP_FREEBIND", 15),
    ("IP_MTU", 14),
    ("IP_MTU_DISCOVER", 10),
    ("IP_PMTUDISC_DO", 2),
    ("IP_PMTUDISC_DONT", 0),
    ("IP_PMTUDISC_PROBE", 3),
    ("IP_PMTUDISC_WANT", 1),
    ("IP_RECVERR", 11),
    ("IP_RECVTOS", 13),
    ("IP_TOS", 1),
    ("IP_TTL", 2),
    ("MSG_CTRUNC", 8),
    ("MSG_DONTROUTE", 4),
    ("MSG_DONTWAIT", 64),
    ("MSG_EOR", 128),
    ("MSG_ERRQUEUE", 8192),
    ("MSG_FASTOPEN", 536870912),
    ("MSG_MORE", 32768),
    ("MSG_NOSIGNAL", 16384),
    ("MSG_OOB", 1),
    ("MSG_PEEK", 2),
    ("MSG_TRUNC", 32),
    ("MSG_WAITALL", 256),
    ("MSG_ZEROCOPY", 67108864),
    ("O_NONBLOCK", 2048),
    ("O_RDONLY", 0),
    ("O_RDWR", 2),
    ("O_WRONLY", 1),
    ("PF_INET", 2),
    ("PF_INET6", 10),
    ("POLLERR", 8),
    ("POLLHUP", 16),
    ("POLLIN", 1),
    ("POLLNVAL", 32),
    ("POLLOUT", 4),
    ("POLLPRI", 2),
    ("POLLRDBAND", 128),
    ("POLLRDHUP", 8192),
    ("POLLRDNORM", 64),
    ("POLLWRBAND", 512),
    ("POLLWRNORM", 256),
    ("SHUT_RD", 0),
    ("SHUT_RDWR", 2),
    ("SHUT_WR", 1),
    ("SIOCATMARK", 35077),
    ("SIOCINQ", 21531),
    ("SIOCOUTQ", 21521),
    ("SIOCOUTQNSD", 35147),
    ("SOCK_CLOEXEC", 524288),
    ("SOCK_DGRAM", 2),
    ("SOCK_NONBLOCK", 2048),
    ("SOCK_STREAM", 1),
    ("SOL_IP", 0),
    ("SOL_IPV6", 41),
    ("SOL_SOCKET", 1),
    ("SOL_TCP", 6),
    ("SOL_UDP", 17),
    ("SO_ACCEPTCONN", 30),
    ("SO_BROADCAST", 6),
    ("SO_BUSY_POLL", 46),
    ("SO_COOKIE", 57),
    ("SO_DEBUG", 1),
    ("SO_DOMAIN", 39),
    ("SO_DONTROUTE", 5),
    ("SO_EE_ORIGIN_ICMP", 2),
    ("SO_EE_ORIGIN_ICMP6", 3),
    ("SO_EE_ORIGIN_LOCAL", 1),
    ("SO_EE_ORIGIN_NONE", 0),
    ("SO_ERROR", 4),
    ("SO_INCOMING_CPU", 49),
    ("SO_KEEPALIVE", 9),
    ("SO_LINGER", 13),
    ("SO_MARK", 36),
    ("SO_MAX_PACING_RATE", 47),
    ("SO_OOBINLINE", 10),
    ("SO_PRIORITY", 12),
    ("SO_PROTOCOL", 38),
    ("SO_RCVBUF", 8),
    ("SO_RCVBUFFORCE", 33),
    ("SO_RCVLOWAT", 18),
    ("SO_RCVTIMEO", 20),
    ("SO_REUSEADDR", 2),
    ("SO_REUSEPORT", 15),
    ("SO_SNDBUF", 7),
    ("SO_SNDBUFFORCE", 32),
    ("SO_SNDLOWAT", 19),
    ("SO_SNDTIMEO", 21),
    ("SO_TIMESTAMP", 29),
    ("SO_TIMESTAMPING", 37),
    ("SO_TYPE", 3),
    ("SO_ZEROCOPY", 60),
    ("SPLICE_F_GIFT", 8),
    ("SPLICE_F_MORE", 4),
    ("SPLICE_F_MOVE", 1),
    ("SPLICE_F_NONBLOCK", 2),
    ("TCPI_OPT_ECN", 8),
    ("TCPI_OPT_ECN_SEEN", 16),
    ("TCPI_OPT_SACK", 2),
    ("TCPI_OPT_SYN_DATA", 32),
    ("TCPI_OPT_TIMESTAMPS", 1),
    ("TCPI_OPT_WSCALE", 4),
    ("TCP_CA_CWR", 2),
    ("TCP_CA_Disorder", 1),
    ("TCP_CA_Loss", 4),
    ("TCP_CA_Open", 0),
    ("TCP_CA_Recovery", 3),
    ("TCP_CC_INFO", 26),
    ("TCP_CLOSE", 7),
    ("TCP_CLOSE_WAIT", 8),
    ("TCP_CLOSING", 11),
    ("TCP_CM_INQ", 36),
    ("TCP_CONGESTION", 13),
    ("TCP_CORK", 3),
    ("TCP_DEFER_ACCEPT", 9),
    ("TCP_ESTABLISHED", 1),
    ("TCP_FASTOPEN", 23),
    ("TCP_FASTOPEN_CONNECT", 30),
    ("TCP_FIN_WAIT1", 4),
    ("TCP_FIN_WAIT2", 5),
    ("TCP_INFINITE_SSTHRESH", 2147483647),
    ("TCP_INFO", 11),
    ("TCP_INQ", 36),
    ("TCP_KEEPCNT", 6),
    ("TCP_KEEPIDLE", 4),
    ("TCP_KEEPINTVL", 5),
    ("TCP_LAST_ACK", 9),
    ("TCP_LINGER2", 8),
    ("TCP_LISTEN", 10),
    ("TCP_MAXSEG", 2),
    ("TCP_MD5SIG", 14),
    ("TCP_NEW_SYN_RECV", 12),
    ("TCP_NODELAY", 1),
    ("TCP_NOTSENT_LOWAT", 25),
    ("TCP_QUICKACK", 12),
    ("TCP_REPAIR", 19),
    ("TCP_SAVE_SYN", 27),
    ("TCP_SYNCNT", 7),
    ("TCP_SYN_RECV", 3),
    ("TCP_SYN_SENT", 2),
    ("TCP_TIMESTAMP", 24),
    ("TCP_TIME_WAIT", 6),
    ("TCP_TX_DELAY", 37),
    ("TCP_ULP", 31),
    ("TCP_USER_TIMEOUT", 18),
    ("TCP_WINDOW_CLAMP", 10),
];

/// Errors by number: name and what `strerror` says.
const ERRORS: &[(i32, &str, &str)] = &[
    (1, "EPERM", "Operation not permitted"),
    (2, "ENOENT", "No such file or directory"),
    (4, "EINTR", "Interrupted system call"),
    (5, "EIO", "Input/output error"),
    (9, "EBADF", "Bad file descriptor"),
    (11, "EAGAIN", "Resource temporarily unavailable"),
    (12, "ENOMEM", "Cannot allocate memory"),
    (13, "EACCES", "Permission denied"),
    (14, "EFAULT", "Bad address"),
    (16, "EBUSY", "Device or resource busy"),
    (17, "EEXIST", "File exists"),
    (22, "EINVAL", "Invalid argument"),
    (24, "EMFILE", "Too many open files"),
    (25, "ENOTTY", "Inappropriate ioctl for device"),
    (32, "EPIPE", "Broken pipe"),
    (33, "EDOM", "Numerical argument out of domain"),
    (38, "ENOSYS", "Function not implemented"),
    (40, "ELOOP", "Too many levels of symbolic links"),
    (64, "ENONET", "Machine is not on the network"),
    (71, "EPROTO", "Protocol error"),
    (88, "ENOTSOCK", "Socket operation on non-socket"),
    (89, "EDESTADDRREQ", "Destination address required"),
    (90, "EMSGSIZE", "Message too long"),
    (91, "EPROTOTYPE", "Protocol wrong type for socket"),
    (92, "ENOPROTOOPT", "Protocol not available"),
    (93, "EPROTONOSUPPORT", "Protocol not supported"),
    (94, "ESOCKTNOSUPPORT", "Socket type not supported"),
    (95, "EOPNOTSUPP", "Operation not supported"),
    (97, "EAFNOSUPPORT", "Address family not supported by protocol"),
    (98, "EADDRINUSE", "Address already in use"),
    (99, "EADDRNOTAVAIL", "Cannot assign requested address"),
    (100, "ENETDOWN", "Network is down"),
    (101, "ENETUNREACH", "Network is unreachable"),
    (102, "ENETRESET", "Network dropped connection on reset"),
    (103, "ECONNABORTED", "Software caused connection abort"),
    (104, "ECONNRESET", "Connection reset by peer"),
    (105, "ENOBUFS", "No buffer space available"),
    (106, "EISCONN", "Transport endpoint is already connected"),
    (107, "ENOTCONN", "Transport endpoint is not connected"),
    (108, "ESHUTDOWN", "Cannot send after transport endpoint shutdown"),
    (110, "ETIMEDOUT", "Connection timed out"),
    (111, "ECONNREFUSED", "Connection refused"),
    (112, "EHOSTDOWN", "Host is down"),
    (113, "EHOSTUNREACH", "No route to host"),
    (114, "EALREADY", "Operation already in progress"),
    (115, "EINPROGRESS", "Operation now in progress"),
];

/// Where a field of `struct tcp_info` lies: offset, bytes, shift and bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InfoField {
    offset: usize,
    bytes: usize,
    shift: u32,
    bits: u32,
}

impl InfoField {
    /// Its value in a `struct tcp_info`; `None` if that is too short to have it.
    pub fn read(self, info: &[u8]) -> Option<u64> {
        let bytes = info.get(self.offset..self.offset + self.bytes)?;
        let value = bytes.iter().rev().fold(0, |value, &byte| (value << 8) | u64::from(byte));
        Some(if self.bits == 0 { value } else { (value >> self.shift) & ((1 << self.bits) - 1) })
    }
}

/// Fields of bits: name, offset, shift, bits.
const INFO_BITS: &[(&str, usize, u32, u32)] = &[
    ("tcpi_snd_wscale", 6, 0, 4),
    ("tcpi_rcv_wscale", 6, 4, 4),
    ("tcpi_delivery_rate_app_limited", 7, 0, 1),
    ("tcpi_fastopen_client_fail", 7, 1, 2),
];

/// Fields of whole bytes: name, offset, bytes.
const INFO: &[(&str, usize, usize)] = &[
    ("tcpi_state", 0, 1),
    ("tcpi_ca_state", 1, 1),
    ("tcpi_retransmits", 2, 1),
    ("tcpi_probes", 3, 1),
    ("tcpi_backoff", 4, 1),
    ("tcpi_options", 5, 1),
    ("tcpi_rto", 8, 4),
    ("tcpi_ato", 12, 4),
    ("tcpi_snd_mss", 16, 4),
    ("tcpi_rcv_mss", 20, 4),
    ("tcpi_unacked", 24, 4),
    ("tcpi_sacked", 28, 4),
    ("tcpi_lost", 32, 4),
    ("tcpi_retrans", 36, 4),
    ("tcpi_fackets", 40, 4),
    ("tcpi_last_data_sent", 44, 4),
    ("tcpi_last_ack_sent", 48, 4),
    ("tcpi_last_data_recv", 52, 4),
    ("tcpi_last_ack_recv", 56, 4),
    ("tcpi_pmtu", 60, 4),
    ("tcpi_rcv_ssthresh", 64, 4),
    ("tcpi_rtt", 68, 4),
    ("tcpi_rttvar", 72, 4),
    ("tcpi_snd_ssthresh", 76, 4),
    ("tcpi_snd_cwnd", 80, 4),
    ("tcpi_advmss", 84, 4),
    ("tcpi_reordering", 88, 4),
    ("tcpi_rcv_rtt", 92, 4),
    ("tcpi_rcv_space", 96, 4),
    ("tcpi_total_retrans", 100, 4),
    ("tcpi_pacing_rate", 104, 8),
    ("tcpi_max_pacing_rate", 112, 8),
    ("tcpi_bytes_acked", 120, 8),
    ("tcpi_bytes_received", 128, 8),
    ("tcpi_segs_out", 136, 4),
    ("tcpi_segs_in", 140, 4),
    ("tcpi_notsent_bytes", 144, 4),
    ("tcpi_min_rtt", 148, 4),
    ("tcpi_data_segs_in", 152, 4),
    ("tcpi_data_segs_out", 156, 4),
    ("tcpi_delivery_rate", 160, 8),
    ("tcpi_busy_time", 168, 8),
    ("tcpi_rwnd_limited", 176, 8),
    ("tcpi_sndbuf_limited", 184, 8),
    ("tcpi_delivered", 192, 4),
    ("tcpi_delivered_ce", 196, 4),
    ("tcpi_bytes_sent", 200, 8),
    ("tcpi_bytes_retrans", 208, 8),
    ("tcpi_dsack_dups", 216, 4),
    ("tcpi_reord_seen", 220, 4),
    ("tcpi_rcv_ooopack", 224, 4),
    ("tcpi_snd_wnd", 228, 4),
    ("tcpi_rcv_wnd", 232, 4),
    ("tcpi_rehash", 236, 4),
    ("tcpi_total_rto", 240, 2),
    ("tcpi_total_rto_recoveries", 242, 2),
    ("tcpi_total_rto_time", 244, 4),
];

/// A constant by its name.
pub fn value(name: &str) -> Option<i64> {
    let found = CONSTANTS.binary_search_by_key(&name, |&(name, _)| name).ok()?;
    Some(CONSTANTS[found].1)
}

/// The number of an error.
pub fn errno(name: &str) -> Option<i32> {
    ERRORS.iter().find(|(_, known, _)| *known == name).map(|&(number, ..)| number)
}

/// An error as `strace` shows it.
pub fn show_errno(number: i32) -> String {
    match ERRORS.iter().find(|(known, ..)| *known == number) {
        Some((_, name, text)) => format!("-1 {name} ({text})"),
        None => format!("-1 (error {number})"),
    }
}

/// A field of `TCP_INFO` by its name.
pub fn info_field(name: &str) -> Option<InfoField> {
    let whole = INFO.iter().find(|(known, ..)| *known == name);
    if let Some(&(_, offset, bytes)) = whole {
        return Some(InfoField { offset, bytes, shift: 0, bits: 0 });
    }
    let part = INFO_BITS.iter().find(|(known, ..)| *known == name);
    part.map(|&(_, offset, shift, bits)| InfoField { offset, bytes: 1, shift, bits })
}

/// The names of these bits among those that begin with `prefix`, as a script writes them.
pub fn show_bits(prefix: &str, bits: u32) -> String {
    let named = |&&(name, value): &&(&'static str, i64)| {
        name.starts_with(prefix)
            && !name.starts_with("EPOLL_")
            && u32::try_from(value).is_ok_and(|value| value.is_power_of_two() && bits & value != 0)
    };
    let names: Vec<_> = CONSTANTS.iter().filter(named).map(|&(name, _)| name).collect();
    if names.is_empty() { bits.to_string() } else { names.join("|") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_and_found() {
        assert!(CONSTANTS.is_sorted_by_key(|&(name, _)| name));
        assert_eq!(value("TCP_NODELAY"), Some(1));
        assert_eq!(value("TCP_NOTHING"), None);
        assert_eq!(errno("ECONNREFUSED"), Some(111));
        assert_eq!(show_bits("EPOLL", 0x8000_0005), "EPOLLET|EPOLLIN|EPOLLOUT");
    }

    #[test]
    fn fields_of_tcp_info_are_read() {
        let mut info = [0; 104];
        info[6] = 0x72;
        info[80..84].copy_from_slice(&10u32.to_le_bytes());
        let read = |name| info_field(name).and_then(|field| field.read(&info));
        assert_eq!(read("tcpi_snd_cwnd"), Some(10));
        assert_eq!((read("tcpi_snd_wscale"), read("tcpi_rcv_wscale")), (Some(2), Some(7)));
        assert_eq!(read("tcpi_bytes_acked"), None);
    }
}
