//! `setsockopt` and `getsockopt`: numbers, sizes and errors of Linux at the edge, neap's types
//! behind.

use crate::abi::*;
use crate::cmsg::Asked;
use crate::errno::Errno;
use crate::sockaddr::{self, Domain};
use crate::socket::{Common, Kind, Socket};
use crate::{Fd, Posix, tcp_info};
use core::net::SocketAddr;
use neap_stack::socket::listener::ListenerHandle;
use neap_tcp::config::Config;
use neap_tcp::options::{SocketOption, SocketOptions};
use neap_tcp::state::State;
use neap_tcp::time::{Instant, Nanos, Rate};

/// Options that say how something is and nothing else: they can be read, and set to what they are.
const FIXED: &[(i32, i32, i32)] = &[
    (SOL_SOCKET, SO_DONTROUTE, 0),
    (SOL_SOCKET, SO_OOBINLINE, 0),
    (SOL_SOCKET, SO_REUSEPORT, 0),
    (SOL_SOCKET, SO_TIMESTAMP, 0),
    (SOL_SOCKET, SO_TIMESTAMPNS, 0),
    (SOL_SOCKET, SO_MARK, 0),
    (SOL_SOCKET, SO_BUSY_POLL, 0),
    (SOL_SOCKET, SO_ZEROCOPY, 0),
    (SOL_TCP, TCP_DEFER_ACCEPT, 0),
    (SOL_TCP, TCP_THIN_LINEAR_TIMEOUTS, 0),
    (SOL_TCP, TCP_THIN_DUPACK, 0),
    (SOL_TCP, TCP_REPAIR, 0),
    (SOL_TCP, TCP_FASTOPEN, 0),
    (SOL_TCP, TCP_SAVE_SYN, 0),
    (SOL_TCP, TCP_FASTOPEN_CONNECT, 0),
    (SOL_TCP, TCP_FASTOPEN_NO_COOKIE, 0),
    (SOL_TCP, TCP_INQ, 0),
    (SOL_TCP, TCP_TX_DELAY, 0),
    // Of TCP; datagrams have the choice.
    (SOL_SOCKET, SO_RXQ_OVFL, 0),
    (SOL_IP, IP_TOS, 0),
    (SOL_IP, IP_MTU_DISCOVER, IP_PMTUDISC_WANT),
    (SOL_IPV6, IPV6_MTU_DISCOVER, IP_PMTUDISC_WANT),
    (SOL_IPV6, IPV6_TCLASS, 0),
];

/// Options of IP whose value is at least a byte; of others none at all is 0.
const NEVER_EMPTY: &[i32] = &[IP_TTL, IP_FREEBIND, IP_TRANSPARENT];

fn fixed(level: i32, name: i32) -> Option<i32> {
    let found = FIXED.iter().find(|(one, other, _)| (*one, *other) == (level, name));
    found.map(|(_, _, value)| *value)
}

/// The option for addresses of others of this name, by either family.
fn foreign(common: &mut Common, level: i32, name: i32) -> Option<&mut bool> {
    match (level, name) {
        (SOL_IP, IP_TRANSPARENT) | (SOL_IPV6, IPV6_TRANSPARENT) => Some(&mut common.transparent),
        (SOL_IP, IP_FREEBIND) | (SOL_IPV6, IPV6_FREEBIND) => Some(&mut common.freebind),
        _ => None,
    }
}

/// The `int` at the front of a value.
fn int(value: &[u8]) -> Result<i32, Errno> {
    value.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes)).ok_or(Errno::EINVAL)
}

/// As [`int`] for an option of IP, which may be one byte, or nothing.
fn ip_int(value: &[u8]) -> Result<i32, Errno> {
    if value.len() < size_of::<i32>() {
        return Ok(value.first().map_or(0, |byte| i32::from(*byte)));
    }
    int(value)
}

fn switch(value: &[u8]) -> Result<bool, Errno> {
    Ok(int(value)? != 0)
}

/// A hop limit from 1 to 255; -1 is the default, which is 0 here.
fn hop_limit(asked: i32) -> Result<u8, Errno> {
    match asked {
        -1 => Ok(0),
        hops => u8::try_from(hops).ok().filter(|hops| *hops > 0).ok_or(Errno::EINVAL),
    }
}

/// A traffic class; -1 is the default.
fn traffic_class(asked: i32) -> Result<u8, Errno> {
    if asked == -1 { Ok(0) } else { u8::try_from(asked).map_err(|_| Errno::EINVAL) }
}

/// Whether datagrams leave whole or not at all, by a mode of `IP_MTU_DISCOVER`. What is learnt of a
/// path is believed in every mode, and no router cuts a packet of IPv4.
fn whole_or_not(asked: i32) -> Result<bool, Errno> {
    match asked {
        IP_PMTUDISC_WANT => Ok(false),
        IP_PMTUDISC_DO => Ok(true),
        IP_PMTUDISC_DONT | IP_PMTUDISC_PROBE | IP_PMTUDISC_INTERFACE | IP_PMTUDISC_OMIT => {
            Err(Errno::ENOPROTOOPT)
        }
        _ => Err(Errno::EINVAL),
    }
}

/// An `int` of seconds, from 1.
fn seconds(value: &[u8]) -> Result<Nanos, Errno> {
    let seconds = u64::try_from(int(value)?).map_err(|_| Errno::EINVAL)?;
    Ok(Nanos::from_secs(seconds))
}

/// An `int` that may not be negative.
fn unsigned(value: &[u8]) -> Result<u32, Errno> {
    u32::try_from(int(value)?).map_err(|_| Errno::EINVAL)
}

/// `struct timeval` of a timeout: zero is forever, a negative one is over at once.
fn timeval(value: &[u8]) -> Result<Option<Nanos>, Errno> {
    let whole: &[u8; 16] = value.first_chunk().ok_or(Errno::EINVAL)?;
    let (seconds, micros) = whole.split_at(8);
    let read = |part: &[u8]| part.first_chunk().map_or(0, |part| i64::from_ne_bytes(*part));
    let (seconds, micros) = (read(seconds), read(micros));
    if !(0..1_000_000).contains(&micros) {
        return Err(Errno::EDOM);
    }
    let Ok(seconds) = u64::try_from(seconds) else { return Ok(Some(Nanos::ZERO)) };
    let span = Nanos::from_secs(seconds) + Nanos::from_micros(micros as u64);
    Ok((span > Nanos::ZERO).then_some(span))
}

fn timeval_bytes(timeout: Option<Nanos>) -> [u8; 16] {
    let micros = timeout.unwrap_or(Nanos::ZERO).as_micros();
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&(micros / 1_000_000).to_ne_bytes());
    bytes[8..].copy_from_slice(&(micros % 1_000_000).to_ne_bytes());
    bytes
}

/// Copies the front of a value; the size that the call tells.
fn give(value: &[u8], out: &mut [u8]) -> usize {
    let len = value.len().min(out.len());
    out[..len].copy_from_slice(&value[..len]);
    len
}

fn give_int(value: impl TryInto<i32>, out: &mut [u8]) -> usize {
    give(&value.try_into().unwrap_or(i32::MAX).to_ne_bytes(), out)
}

/// Seconds, rounded up as Linux rounds what is not whole.
fn whole_seconds(span: Nanos) -> u64 {
    span.0.div_ceil(1_000_000_000)
}

fn discovery(dont_fragment: bool) -> i32 {
    if dont_fragment { IP_PMTUDISC_DO } else { IP_PMTUDISC_WANT }
}

impl Posix {
    /// `setsockopt(2)`: sets an option of a socket.
    ///
    /// # Errors
    /// `ENOPROTOOPT` for an option that neap does not have, or one that it cannot set to this
    /// value; `EINVAL` for a short or bad value; `EDOM` for a timeout; `ENOENT` for a congestion
    /// control.
    pub fn setsockopt(
        &self,
        now: Instant,
        fd: Fd,
        level: i32,
        name: i32,
        value: &[u8],
    ) -> Result<(), Errno> {
        let config = self.stack.config();
        let file = self.table.file(fd)?;
        let mut socket = file.socket()?.lock();
        let is_text = (level, name) == (SOL_TCP, TCP_CONGESTION);
        let is_short = value.len() < size_of::<i32>() && !is_text;
        // These two look at the length first, whatever the option.
        let is_strict = level == SOL_SOCKET || level == SOL_TCP && socket.is_stream();
        if is_short && is_strict {
            return Err(Errno::EINVAL);
        }
        let is_served = match level {
            SOL_SOCKET | SOL_IP => true,
            SOL_TCP => socket.is_stream(),
            SOL_IPV6 => socket.domain == Domain::V6,
            _ => false,
        };
        if value.is_empty() && level == SOL_IP && NEVER_EMPTY.contains(&name) {
            return Err(Errno::EINVAL);
        }
        if !socket.is_stream() && is_served && socket.set_of_datagrams(level, name, value)? {
            return Ok(());
        }
        if is_served && socket.set_foreign(level, name, value)? {
            return Ok(());
        }
        if let Some(only) = fixed(level, name).filter(|_| is_served) {
            let asked = if level == SOL_IP { ip_int(value)? } else { int(value)? };
            let is_default = level == SOL_IPV6 && asked == -1;
            return if asked == only || is_default { Ok(()) } else { Err(Errno::ENOPROTOOPT) };
        }
        match level {
            SOL_SOCKET => socket.set_common(now, &config, name, value),
            SOL_TCP if socket.is_stream() => socket.set_tcp(now, &config, name, value),
            SOL_IP if name == IP_RECVERR => {
                socket.set_receive_errors(now, level, ip_int(value)? != 0)
            }
            SOL_IP if name == IP_TTL => {
                let v6 = socket.common.hop_limits.1;
                socket.set_hop_limits(now, (hop_limit(ip_int(value)?)?, v6))
            }
            SOL_IP if name == IP_BIND_ADDRESS_NO_PORT => {
                socket.common.binds_no_port = ip_int(value)? != 0;
                Ok(())
            }
            SOL_IPV6 if socket.domain == Domain::V6 && name == IPV6_UNICAST_HOPS => {
                let v4 = socket.common.hop_limits.0;
                // A packet that must not leave this host.
                let hops = Some(int(value)?).filter(|hops| *hops != 0);
                socket.set_hop_limits(now, (v4, hop_limit(hops.ok_or(Errno::ENOPROTOOPT)?)?))
            }
            SOL_IPV6 if socket.domain == Domain::V6 && name == IPV6_RECVERR => {
                socket.set_receive_errors(now, level, switch(value)?)
            }
            SOL_IPV6 if socket.domain == Domain::V6 && name == IPV6_V6ONLY => {
                let on = switch(value)?;
                if socket.has_port() {
                    return Err(Errno::EINVAL);
                }
                socket.common.v6_only = on;
                Ok(())
            }
            _ => Err(Errno::ENOPROTOOPT),
        }
    }

    /// `getsockopt(2)`: writes the value of an option to `out`, as much as fits, and returns its
    /// size.
    ///
    /// # Errors
    /// `ENOPROTOOPT`; `ENOTCONN` for an option that only a connection has.
    pub fn getsockopt(
        &self,
        now: Instant,
        fd: Fd,
        level: i32,
        name: i32,
        out: &mut [u8],
    ) -> Result<usize, Errno> {
        let config = self.stack.config();
        let file = self.table.file(fd)?;
        let mut socket = file.socket()?.lock();
        let is_served = match level {
            SOL_SOCKET | SOL_IP => true,
            SOL_TCP => socket.is_stream(),
            SOL_IPV6 => socket.domain == Domain::V6,
            _ => false,
        };
        if !is_served {
            let is_foreign = socket.domain == Domain::V4 && !socket.is_own_level(level);
            return Err(if is_foreign { Errno::EOPNOTSUPP } else { Errno::ENOPROTOOPT });
        }
        if let Some(value) = self.number(&mut socket, level, name) {
            // As in Linux, a small value of an IP option fits less than an int.
            let is_byte = level == SOL_IP && (1..4).contains(&out.len());
            return Ok(if is_byte { give(&[value as u8], out) } else { give_int(value, out) });
        }
        match (level, name) {
            (SOL_SOCKET, SO_PEERNAME) => {
                let remote = socket.peer().ok_or(Errno::ENOTCONN)?;
                let address = sockaddr::encode(socket.domain.show(remote));
                if address.len() < out.len() {
                    return Err(Errno::EINVAL);
                }
                Ok(give(&address, out))
            }
            (SOL_SOCKET, SO_ERROR) => {
                let error = socket.take_error(now);
                Ok(give_int(error.map_or(0, |error| error.0), out))
            }
            (SOL_SOCKET, _) => socket.common_option(now, &config, name, out),
            (SOL_TCP, _) => socket.tcp_option(now, &config, name, out),
            (SOL_IP, IP_MTU) | (SOL_IPV6, IPV6_MTU) => match &socket.kind {
                Kind::Stream { handle, .. } => Ok(give_int(handle.info(now).pmtu, out)),
                Kind::Datagram(Some(handle)) => {
                    Ok(give_int(handle.path_mtu(now).ok_or(Errno::ENOTCONN)?, out))
                }
                _ => Err(Errno::ENOTCONN),
            },
            (SOL_IPV6, IPV6_V6ONLY) => Ok(give_int(i32::from(socket.common.v6_only), out)),
            _ => Err(Errno::ENOPROTOOPT),
        }
    }

    /// The value of an option that is a number for any socket; `None` if it is another.
    fn number(&self, socket: &mut Socket, level: i32, name: i32) -> Option<i32> {
        let is_stream = socket.is_stream();
        let common = &mut socket.common;
        Some(match (level, name) {
            (SOL_IP, IP_TOS) => common.tos.0.into(),
            (SOL_IPV6, IPV6_TCLASS) => common.tos.1.into(),
            (SOL_IP, IP_TTL) => self.stack.hop_limit(common.hop_limits.0, true).into(),
            (SOL_IPV6, IPV6_UNICAST_HOPS) => {
                self.stack.hop_limit(common.hop_limits.1, false).into()
            }
            (SOL_IP, IP_BIND_ADDRESS_NO_PORT) => common.binds_no_port.into(),
            (SOL_IP, IP_RECVERR) => common.receive_errors.0.into(),
            (SOL_IPV6, IPV6_RECVERR) => common.receive_errors.1.into(),
            (SOL_IP, IP_MTU_DISCOVER) => discovery(common.dont_fragment.0),
            (SOL_IPV6, IPV6_MTU_DISCOVER) => discovery(common.dont_fragment.1),
            _ => {
                let asked = Asked::by(level, name).filter(|_| !is_stream);
                let is_asked = asked.map(|asked| common.asked.contains(asked).into());
                let is_foreign = foreign(common, level, name).map(|on| (*on).into());
                return is_asked.or(is_foreign).or_else(|| fixed(level, name));
            }
        })
    }
}

impl Socket {
    /// Whether a level is that of its protocol.
    fn is_own_level(&self, level: i32) -> bool {
        level == if self.is_stream() { SOL_TCP } else { SOL_UDP }
    }

    /// The peer that it is or was connected to; `None` for one without a port.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        match &self.kind {
            Kind::Stream { handle, .. } => Some(handle.remote_addr()),
            Kind::Datagram(Some(handle)) => handle.remote_addr().filter(|peer| peer.port() != 0),
            _ => None,
        }
    }

    /// Options as they stand, whoever has them.
    fn options(&self, now: Instant) -> SocketOptions {
        match &self.kind {
            Kind::Stream { handle, .. } => handle.options(now),
            _ => self.options.clone(),
        }
    }

    /// The options of a connection of this family.
    pub(super) fn options_for(&self, is_v4: bool) -> SocketOptions {
        let Common { receive_errors: errors, hop_limits: hops, .. } = self.common;
        let (receive_errors, hop_limit) =
            if is_v4 { (errors.0, hops.0) } else { (errors.1, hops.1) };
        SocketOptions { receive_errors, hop_limit, ..self.options.clone() }
    }

    /// The options that connections of this family inherit from a listener: all but the priority
    /// (`sk_clone`).
    pub(super) fn inherited_options(&self, is_v4: bool) -> SocketOptions {
        SocketOptions { priority: 0, ..self.options_for(is_v4) }
    }

    /// Gives a listener the options that its connections inherit.
    pub(super) fn configure_listener(&self, handle: &ListenerHandle) {
        let is_v6 = handle.local_addr().is_ipv6();
        let v4 = is_v6.then(|| self.inherited_options(true));
        handle.set_options(self.inherited_options(!is_v6), v4);
    }

    /// `IP_TTL` and `IPV6_UNICAST_HOPS` as they were read from `setsockopt`; 0 is the default.
    fn set_hop_limits(&mut self, now: Instant, (v4, v6): (u8, u8)) -> Result<(), Errno> {
        self.common.hop_limits = (v4, v6);
        match &self.kind {
            Kind::Fresh | Kind::Datagram(None) => {}
            Kind::Listening(handle) => self.configure_listener(handle),
            Kind::Stream { handle, .. } => {
                let hops = if handle.remote_addr().is_ipv4() { v4 } else { v6 };
                handle.set_option(now, SocketOption::HopLimit(hops))?;
            }
            Kind::Datagram(Some(handle)) => handle.set_hop_limits(v4, v6),
        }
        Ok(())
    }

    /// Sets an option for addresses of others; false if it is none.
    fn set_foreign(&mut self, level: i32, name: i32, value: &[u8]) -> Result<bool, Errno> {
        let Some(option) = foreign(&mut self.common, level, name) else { return Ok(false) };
        *option = if level == SOL_IP { ip_int(value)? != 0 } else { switch(value)? };
        if let Kind::Datagram(Some(handle)) = &self.kind {
            self.configure(handle);
        }
        Ok(true)
    }

    /// Sets an option of datagrams; false if it is none.
    fn set_of_datagrams(&mut self, level: i32, name: i32, value: &[u8]) -> Result<bool, Errno> {
        let (v4, v6) = self.common.tos;
        match (level, name) {
            // As in Linux, a byte of any number counts.
            (SOL_IP, IP_TOS) => self.common.tos = (ip_int(value)? as u8, v6),
            (SOL_IPV6, IPV6_TCLASS) => self.common.tos = (v4, traffic_class(int(value)?)?),
            (SOL_SOCKET, SO_BROADCAST) => self.common.broadcast = switch(value)?,
            (SOL_IP, IP_MTU_DISCOVER) => {
                self.common.dont_fragment.0 = whole_or_not(ip_int(value)?)?;
            }
            (SOL_IPV6, IPV6_MTU_DISCOVER) => {
                self.common.dont_fragment.1 = whole_or_not(int(value)?)?;
            }
            _ => {
                let Some(asked) = Asked::by(level, name) else { return Ok(false) };
                let on = if level == SOL_IP { ip_int(value)? != 0 } else { switch(value)? };
                self.common.asked.set(asked, on);
            }
        }
        if let Kind::Datagram(Some(handle)) = &self.kind {
            self.configure(handle);
        }
        Ok(true)
    }

    /// Sets an option of TCP on whatever the socket is now.
    fn set(&mut self, now: Instant, config: &Config, option: SocketOption) -> Result<(), Errno> {
        match &self.kind {
            Kind::Stream { handle, .. } => handle.set_option(now, option)?,
            Kind::Listening(handle) => {
                self.options.set(&option, config)?;
                self.configure_listener(handle);
            }
            Kind::Fresh | Kind::Datagram(_) => self.options.set(&option, config)?,
        }
        Ok(())
    }

    fn set_common(
        &mut self,
        now: Instant,
        config: &Config,
        name: i32,
        value: &[u8],
    ) -> Result<(), Errno> {
        let is_stream = self.is_stream();
        let option = match name {
            SO_REUSEADDR => {
                let on = switch(value)?;
                self.common.reuse_address = on;
                match &self.kind {
                    Kind::Datagram(Some(handle)) => handle.set_reuse(on),
                    Kind::Listening(handle) => handle.set_reuse(on),
                    Kind::Stream { handle, .. } => handle.set_reuse(on),
                    Kind::Fresh | Kind::Datagram(None) => {}
                }
                if let Some(port) = &self.port {
                    port.set_reuse(on);
                }
                return Ok(());
            }
            // TCP has the option, and nothing heeds it.
            SO_BROADCAST => {
                self.common.broadcast = switch(value)?;
                return Ok(());
            }
            SO_RCVLOWAT => {
                let lowat = u32::try_from(int(value)?).unwrap_or(i32::MAX as u32);
                SocketOption::ReceiveLowat(lowat)
            }
            SO_RCVTIMEO_OLD | SO_RCVTIMEO_NEW => {
                self.common.receive_timeout = timeval(value)?;
                return Ok(());
            }
            SO_SNDTIMEO_OLD | SO_SNDTIMEO_NEW => {
                self.common.send_timeout = timeval(value)?;
                return Ok(());
            }
            // Negative sizes are large ones, as in Linux.
            SO_SNDBUF => SocketOption::SendBuffer(int(value)? as u32),
            SO_RCVBUF => SocketOption::ReceiveBuffer(int(value)? as u32),
            // As in Linux, datagrams do not heed these two.
            SO_KEEPALIVE => SocketOption::KeepAlive(switch(value)?),
            SO_PRIORITY if !is_stream && int(value)? == 0 => return Ok(()),
            SO_PRIORITY if is_stream => {
                let band = u8::try_from(int(value)?).map_err(|_| Errno::EINVAL)?;
                SocketOption::Priority(band)
            }
            SO_LINGER => SocketOption::Linger(linger(value)?),
            SO_MAX_PACING_RATE => rate(value)?,
            _ => return Err(Errno::ENOPROTOOPT),
        };
        self.set(now, config, option)?;
        if let Kind::Datagram(Some(handle)) = &self.kind {
            self.configure(handle);
        }
        Ok(())
    }

    fn set_tcp(
        &mut self,
        now: Instant,
        config: &Config,
        name: i32,
        value: &[u8],
    ) -> Result<(), Errno> {
        let option = match name {
            TCP_CONGESTION => {
                let name = value.split(|byte| *byte == 0).next().unwrap_or_default();
                if value.is_empty() {
                    return Err(Errno::EINVAL);
                }
                let name = &name[..name.len().min(TCP_CA_NAME_MAX - 1)];
                SocketOption::Congestion(String::from_utf8_lossy(name).into_owned())
            }
            // Of a connection it moves with the buffer, so 0 is not what it is.
            TCP_WINDOW_CLAMP if int(value)? == 0 => {
                let is_open = matches!(self.kind, Kind::Stream { .. });
                return if is_open { Err(Errno::EINVAL) } else { Ok(()) };
            }
            TCP_NODELAY => SocketOption::NoDelay(switch(value)?),
            TCP_CORK => SocketOption::Cork(switch(value)?),
            TCP_QUICKACK => SocketOption::QuickAck(int(value)?),
            TCP_KEEPIDLE => SocketOption::KeepAliveIdle(seconds(value)?),
            TCP_KEEPINTVL => SocketOption::KeepAliveInterval(seconds(value)?),
            TCP_KEEPCNT => SocketOption::KeepAliveCount(unsigned(value)?),
            TCP_USER_TIMEOUT => {
                SocketOption::UserTimeout(Nanos::from_millis(u64::from(unsigned(value)?)))
            }
            TCP_MAXSEG => {
                let mss = u16::try_from(int(value)?).map_err(|_| Errno::EINVAL)?;
                SocketOption::MaxSegment(mss)
            }
            TCP_NOTSENT_LOWAT => SocketOption::NotSentLowat(int(value)? as u32),
            TCP_NEAP_NOTSENT_LOWAT_US => SocketOption::NotSentLowatMicros(unsigned(value)?),
            TCP_SYNCNT | TCP_LINGER2 => {
                let only = tcp_default(name, config);
                return if int(value)? == only { Ok(()) } else { Err(Errno::ENOPROTOOPT) };
            }
            _ => return Err(Errno::ENOPROTOOPT),
        };
        self.set(now, config, option)
    }

    fn common_option(
        &self,
        now: Instant,
        config: &Config,
        name: i32,
        out: &mut [u8],
    ) -> Result<usize, Errno> {
        let is_stream = self.is_stream();
        Ok(match name {
            SO_REUSEADDR => give_int(i32::from(self.common.reuse_address), out),
            SO_BROADCAST => give_int(i32::from(self.common.broadcast), out),
            SO_TYPE => give_int(if is_stream { SOCK_STREAM } else { SOCK_DGRAM }, out),
            SO_PROTOCOL => give_int(if is_stream { IPPROTO_TCP } else { IPPROTO_UDP }, out),
            SO_DOMAIN => give_int(self.domain.number(), out),
            SO_ACCEPTCONN => give_int(i32::from(matches!(self.kind, Kind::Listening(_))), out),
            SO_SNDBUF => give_int(self.buffers(now, config).1, out),
            SO_RCVBUF => give_int(self.buffers(now, config).0, out),
            SO_RCVLOWAT => give_int(self.options(now).receive_lowat, out),
            SO_SNDLOWAT => give_int(1, out),
            SO_RCVTIMEO_OLD | SO_RCVTIMEO_NEW => {
                give(&timeval_bytes(self.common.receive_timeout), out)
            }
            SO_SNDTIMEO_OLD | SO_SNDTIMEO_NEW => {
                give(&timeval_bytes(self.common.send_timeout), out)
            }
            SO_KEEPALIVE => give_int(i32::from(self.options(now).keepalive), out),
            SO_PRIORITY => give_int(self.options(now).priority, out),
            SO_LINGER => {
                let linger = self.options(now).linger;
                let seconds = linger.map_or(0, whole_seconds) as u32;
                let mut value = [0; 8];
                value[..4].copy_from_slice(&u32::from(linger.is_some()).to_ne_bytes());
                value[4..].copy_from_slice(&seconds.to_ne_bytes());
                give(&value, out)
            }
            SO_MAX_PACING_RATE => {
                let Rate(rate) = self.options(now).max_pacing_rate;
                if out.len() >= 8 {
                    give(&rate.to_ne_bytes(), out)
                } else {
                    let rate = u32::try_from(rate).unwrap_or(u32::MAX);
                    give(&rate.to_ne_bytes(), out)
                }
            }
            SO_MEMINFO => give(&self.memory(now, config), out),
            _ => return Err(Errno::ENOPROTOOPT),
        })
    }

    fn tcp_option(
        &self,
        now: Instant,
        config: &Config,
        name: i32,
        out: &mut [u8],
    ) -> Result<usize, Errno> {
        let options = self.options(now);
        Ok(match name {
            TCP_INFO => give(&self.info(now, config), out),
            // Controllers without a model have no figures of their own to tell, in Linux too.
            TCP_CC_INFO => match &self.kind {
                Kind::Stream { handle, .. } => {
                    handle.info(now).model.map_or(0, |model| give(&tcp_info::model(&model), out))
                }
                _ => 0,
            },
            TCP_CONGESTION => {
                let name = self.controller(now, config);
                let mut padded = [0; TCP_CA_NAME_MAX];
                give(name.as_bytes(), &mut padded[..TCP_CA_NAME_MAX - 1]);
                give(&padded, out)
            }
            TCP_WINDOW_CLAMP => match &self.kind {
                Kind::Stream { handle, .. } => give_int(handle.info(now).window_clamp, out),
                _ => give_int(0, out),
            },
            TCP_NODELAY => give_int(i32::from(options.nodelay), out),
            TCP_CORK => give_int(i32::from(options.cork), out),
            TCP_QUICKACK => give_int(i32::from(self.quickack(now, &options)), out),
            TCP_KEEPIDLE => {
                let default = Nanos::from_secs(u64::from(config.tcp_keepalive_time));
                give_int(whole_seconds(options.keepalive_idle.unwrap_or(default)), out)
            }
            TCP_KEEPINTVL => {
                let default = Nanos::from_secs(u64::from(config.tcp_keepalive_intvl));
                give_int(whole_seconds(options.keepalive_interval.unwrap_or(default)), out)
            }
            TCP_KEEPCNT => {
                give_int(options.keepalive_count.unwrap_or(config.tcp_keepalive_probes), out)
            }
            TCP_USER_TIMEOUT => give_int(options.user_timeout.map_or(0, Nanos::as_millis), out),
            TCP_MAXSEG => match (&self.kind, options.max_segment) {
                (Kind::Stream { handle, .. }, _) => give_int(handle.info(now).snd_mss, out),
                (_, asked) => give_int(asked.unwrap_or(536), out),
            },
            TCP_NOTSENT_LOWAT => give(&options.notsent_lowat.to_ne_bytes(), out),
            TCP_NEAP_NOTSENT_LOWAT_US => give_int(options.notsent_lowat_us, out),
            TCP_SYNCNT | TCP_LINGER2 => give_int(tcp_default(name, config), out),
            _ => return Err(Errno::ENOPROTOOPT),
        })
    }

    /// `TCP_QUICKACK`: whether ACKs do not wait for data now.
    fn quickack(&self, now: Instant, options: &SocketOptions) -> bool {
        match &self.kind {
            Kind::Stream { handle, .. } => handle.info(now).quickack,
            _ => options.quickack.unwrap_or(true),
        }
    }

    /// `TCP_CONGESTION`
    fn controller(&self, now: Instant, config: &Config) -> String {
        let name = match &self.kind {
            Kind::Stream { handle, .. } => handle.info(now).congestion,
            _ => self.options.congestion.unwrap_or(&config.tcp_congestion_control),
        };
        name.to_owned()
    }

    /// `SO_ERROR`: the pending error, once.
    fn take_error(&mut self, now: Instant) -> Option<Errno> {
        match &self.kind {
            Kind::Stream { handle, .. } => handle.take_error(now).map(Errno::from),
            Kind::Datagram(Some(handle)) => handle.take_error().map(Errno::from),
            Kind::Listening(handle) => handle.take_error().map(Errno::from),
            Kind::Fresh => self.pending.take().map(Errno::from),
            Kind::Datagram(None) => None,
        }
    }

    /// Receive and send buffer as they are now.
    fn buffers(&self, now: Instant, config: &Config) -> (u32, u32) {
        match &self.kind {
            Kind::Stream { handle, .. } => {
                let info = handle.info(now);
                (info.rcvbuf, info.sndbuf)
            }
            Kind::Datagram(Some(handle)) => handle.buffers(),
            Kind::Datagram(None) => {
                let default = neap_stack::socket::udp::DEFAULT_BUFFER;
                let Self { options, .. } = self;
                (options.receive_buffer.unwrap_or(default), options.send_buffer.unwrap_or(default))
            }
            Kind::Fresh | Kind::Listening(_) => (
                self.options.receive_buffer.unwrap_or(config.tcp_rmem.default),
                self.options.send_buffer.unwrap_or(config.tcp_wmem.default),
            ),
        }
    }

    /// `SK_MEMINFO_*`: nine words.
    fn memory(&self, now: Instant, config: &Config) -> [u8; 36] {
        let (rcvbuf, sndbuf) = self.buffers(now, config);
        let (read, below, queued, drops) = match &self.kind {
            Kind::Stream { handle, .. } => {
                let info = handle.info(now);
                (info.rmem_alloc, info.below_bytes, info.wmem_queued, 0)
            }
            Kind::Datagram(Some(handle)) => {
                let info = handle.info();
                (info.rmem_alloc, info.below_bytes, 0, info.drops)
            }
            _ => (0, 0, 0, 0),
        };
        let word = |figure: u64| u32::try_from(figure).unwrap_or(u32::MAX);
        let words = [read, rcvbuf, word(below), sndbuf, 0, queued, 0, 0, word(drops)];
        let mut bytes = [0; 36];
        for (at, word) in bytes.chunks_exact_mut(4).zip(words) {
            at.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    fn info(&self, now: Instant, config: &Config) -> [u8; tcp_info::SIZE] {
        match &self.kind {
            Kind::Stream { handle, is_connecting: true } if handle.state(now) == State::Closed => {
                tcp_info::fresh(config, self.options.max_pacing_rate)
            }
            Kind::Stream { handle, .. } => tcp_info::connection(&handle.info(now)),
            Kind::Listening(handle) => {
                let (queued, most) = (handle.queued().1, handle.max_queued());
                tcp_info::listener(config, self.options.max_pacing_rate, queued, most)
            }
            Kind::Fresh | Kind::Datagram(_) => {
                tcp_info::fresh(config, self.options.max_pacing_rate)
            }
        }
    }
}

/// Options of TCP that the sysctls decide for all sockets.
fn tcp_default(name: i32, config: &Config) -> i32 {
    let value = if name == TCP_SYNCNT { config.tcp_syn_retries } else { config.tcp_fin_timeout };
    i32::try_from(value).unwrap_or(i32::MAX)
}

/// `struct linger`.
fn linger(value: &[u8]) -> Result<Option<Nanos>, Errno> {
    let whole: &[u8; 8] = value.first_chunk().ok_or(Errno::EINVAL)?;
    let seconds = int(&whole[4..])?;
    // A negative time is a very long one, as in Linux.
    let span = u64::try_from(seconds).map_or(Nanos::MAX, Nanos::from_secs);
    Ok((int(whole)? != 0).then_some(span))
}

/// `SO_MAX_PACING_RATE` in either size.
fn rate(value: &[u8]) -> Result<SocketOption, Errno> {
    Ok(match value.try_into() {
        Ok(bytes) => SocketOption::MaxPacingRate(Rate(u64::from_ne_bytes(bytes))),
        Err(_) => SocketOption::MaxPacingRate32(int(value)? as u32),
    })
}
