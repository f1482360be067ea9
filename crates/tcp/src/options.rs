//! Socket options of a connection, by their Linux names.

use crate::config::Config;
use crate::congestion::UnknownController;
use crate::time::{Nanos, Rate};
use core::ops::RangeInclusive;
use thiserror::Error;

/// `SOCK_MIN_SNDBUF`.
const MIN_SNDBUF: u32 = 4608;
/// `TCP_MIN_RCVBUF`: the least receive buffer that `SO_RCVBUF` gives.
const MIN_RCVBUF: u32 = 2304;

/// Options that an application has set on its socket. Accepted sockets inherit their listener's.
/// With a value out of its range nothing is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketOptions {
    /// `TCP_NODELAY`: small segments are not held back (Nagle is off).
    pub nodelay: bool,
    /// `TCP_CORK`: segments that are not full are held back.
    pub cork: bool,
    /// `TCP_QUICKACK` as it was last set; `None` leaves delayed ACKs to the stack.
    pub quickack: Option<bool>,
    /// `SO_KEEPALIVE`: an idle peer is probed.
    pub keepalive: bool,
    /// `TCP_KEEPIDLE`, 1 s to 32767 s: silence before the first probe; `None` is
    /// `tcp_keepalive_time`.
    pub keepalive_idle: Option<Nanos>,
    /// `TCP_KEEPINTVL`, 1 s to 32767 s: time between probes; `None` is `tcp_keepalive_intvl`.
    pub keepalive_interval: Option<Nanos>,
    /// `TCP_KEEPCNT`, 1 to 127: unanswered probes before the connection is given up; `None` is
    /// `tcp_keepalive_probes`.
    pub keepalive_count: Option<u32>,
    /// `TCP_USER_TIMEOUT`: time without progress after which the connection is given up; `None`
    /// leaves it to `tcp_retries2`.
    pub user_timeout: Option<Nanos>,
    /// `SO_LINGER`: zero resets at close; `None` is off.
    pub linger: Option<Nanos>,
    /// `SO_SNDBUF` in bytes of memory, doubled as in Linux; `None` is autotuned.
    pub send_buffer: Option<u32>,
    /// `SO_RCVBUF` in bytes of memory, doubled as in Linux; `None` is autotuned.
    pub receive_buffer: Option<u32>,
    /// `SO_RCVLOWAT`: unread bytes at which a reader is woken; at least 1.
    pub receive_lowat: u32,
    /// `TCP_MAXSEG`, 88 to 32767: upper bound of the MSS, in bytes.
    pub max_segment: Option<u16>,
    /// `SO_MAX_PACING_RATE`: upper bound of the pacing rate.
    pub max_pacing_rate: Rate,
    /// `TCP_NOTSENT_LOWAT` in bytes; 0 is `tcp_notsent_lowat`.
    pub notsent_lowat: u32,
    /// `TCP_NEAP_NOTSENT_LOWAT_US`: the low-water mark as microseconds of the pacing rate; 0 is
    /// `neap.tcp_notsent_lowat_us`. The lower of the two marks holds.
    pub notsent_lowat_us: u32,
    /// `SO_PRIORITY`, 0 to 15: the band in `pfifo_fast` and `fq`.
    pub priority: u8,
    /// `IP_RECVERR`, `IPV6_RECVERR`: an open connection reports errors from routers at once.
    pub receive_errors: bool,
    /// `IP_TTL`, `IPV6_UNICAST_HOPS`: hops that a packet may take; 0 is the default of the host.
    pub hop_limit: u8,
    /// `TCP_CONGESTION`: name of the congestion controller; `None` is `tcp_congestion_control`.
    pub congestion: Option<&'static str>,
}

/// `TCP_KEEPIDLE`, `TCP_KEEPINTVL`
const KEEPALIVE_TIMES: RangeInclusive<Nanos> = Nanos::from_secs(1)..=Nanos::from_secs(32767);
/// `TCP_KEEPCNT`
const KEEPALIVE_COUNTS: RangeInclusive<u32> = 1..=127;
/// `TCP_MAXSEG`
const MAX_SEGMENTS: RangeInclusive<u16> = 88..=32767;
/// `SO_PRIORITY`
const PRIORITIES: RangeInclusive<u8> = 0..=15;

/// `value`, if it is in its range or not set.
fn within<T: PartialOrd>(
    value: Option<T>,
    range: &RangeInclusive<T>,
    name: &'static str,
) -> Result<Option<T>, OptionError> {
    match value {
        Some(value) if !range.contains(&value) => Err(OptionError::Range(name)),
        value => Ok(value),
    }
}

impl SocketOptions {
    /// Checks that each option has a value that [`set`](Self::set) would take.
    ///
    /// # Errors
    /// [`OptionError::Range`].
    pub fn check(&self) -> Result<(), OptionError> {
        within(self.keepalive_idle, &KEEPALIVE_TIMES, "TCP_KEEPIDLE")?;
        within(self.keepalive_interval, &KEEPALIVE_TIMES, "TCP_KEEPINTVL")?;
        within(self.keepalive_count, &KEEPALIVE_COUNTS, "TCP_KEEPCNT")?;
        within(self.max_segment, &MAX_SEGMENTS, "TCP_MAXSEG")?;
        within(Some(self.priority), &PRIORITIES, "SO_PRIORITY")?;
        Ok(())
    }

    /// Sets one option of a socket, which may have no connection yet.
    ///
    /// If it fails, nothing has changed.
    ///
    /// # Errors
    /// [`OptionError`].
    pub fn set(&mut self, option: &SocketOption, config: &Config) -> Result<(), OptionError> {
        match *option {
            SocketOption::NoDelay(on) => self.nodelay = on,
            SocketOption::Cork(on) => self.cork = on,
            SocketOption::QuickAck(value) => self.quickack = Some(value != 0),
            SocketOption::KeepAlive(on) => self.keepalive = on,
            SocketOption::KeepAliveIdle(idle) => {
                self.keepalive_idle = within(Some(idle), &KEEPALIVE_TIMES, "TCP_KEEPIDLE")?;
            }
            SocketOption::KeepAliveInterval(interval) => {
                self.keepalive_interval =
                    within(Some(interval), &KEEPALIVE_TIMES, "TCP_KEEPINTVL")?;
            }
            SocketOption::KeepAliveCount(count) => {
                self.keepalive_count = within(Some(count), &KEEPALIVE_COUNTS, "TCP_KEEPCNT")?;
            }
            SocketOption::UserTimeout(time) => {
                self.user_timeout = (time > Nanos::ZERO).then_some(time);
            }
            SocketOption::Linger(time) => self.linger = time,
            SocketOption::SendBuffer(bytes) => {
                let bytes = bytes.min(config.wmem_max).saturating_mul(2).max(MIN_SNDBUF);
                self.send_buffer = Some(bytes);
            }
            SocketOption::ReceiveBuffer(bytes) => {
                let bytes = bytes.min(config.rmem_max).saturating_mul(2).max(MIN_RCVBUF);
                self.receive_buffer = Some(bytes);
            }
            SocketOption::ReceiveLowat(bytes) => {
                let buffer = self.receive_buffer.unwrap_or(config.tcp_rmem.max);
                self.receive_lowat = bytes.min(buffer / 2).max(1);
            }
            SocketOption::MaxSegment(0) => self.max_segment = None,
            SocketOption::MaxSegment(mss) => {
                self.max_segment = within(Some(mss), &MAX_SEGMENTS, "TCP_MAXSEG")?;
            }
            SocketOption::MaxPacingRate(rate) => self.max_pacing_rate = rate,
            SocketOption::MaxPacingRate32(rate) => self.max_pacing_rate = rate.into(),
            SocketOption::NotSentLowat(bytes) => self.notsent_lowat = bytes,
            SocketOption::NotSentLowatMicros(micros) => self.notsent_lowat_us = micros,
            SocketOption::Congestion(ref name) => {
                self.congestion = Some(config.controllers.find(name)?);
            }
            SocketOption::Priority(band) => {
                within(Some(band), &PRIORITIES, "SO_PRIORITY")?;
                self.priority = band;
            }
            SocketOption::ReceiveErrors(on) => self.receive_errors = on,
            SocketOption::HopLimit(hops) => self.hop_limit = hops,
        }
        Ok(())
    }
}

impl Default for SocketOptions {
    fn default() -> Self {
        Self {
            nodelay: false,
            cork: false,
            quickack: None,
            keepalive: false,
            keepalive_idle: None,
            keepalive_interval: None,
            keepalive_count: None,
            user_timeout: None,
            linger: None,
            send_buffer: None,
            receive_buffer: None,
            receive_lowat: 1,
            max_segment: None,
            max_pacing_rate: Rate::UNLIMITED,
            notsent_lowat: 0,
            notsent_lowat_us: 0,
            priority: 0,
            receive_errors: false,
            hop_limit: 0,
            congestion: None,
        }
    }
}

/// Socket option and its new value.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SocketOption {
    /// `TCP_NODELAY`: small segments are not held back (Nagle is off).
    NoDelay(bool),
    /// `TCP_CORK`: segments that are not full are held back.
    Cork(bool),
    /// `TCP_QUICKACK`: 0 lets ACKs wait for data. Odd values send ACKs at once. Even values
    /// acknowledge what was read and let later ACKs wait.
    QuickAck(i32),
    /// `SO_KEEPALIVE`: an idle peer is probed.
    KeepAlive(bool),
    /// `TCP_KEEPIDLE`, 1 s to 32767 s: silence before the first probe.
    KeepAliveIdle(Nanos),
    /// `TCP_KEEPINTVL`, 1 s to 32767 s: time between probes.
    KeepAliveInterval(Nanos),
    /// `TCP_KEEPCNT`, 1 to 127: unanswered probes before the connection is given up.
    KeepAliveCount(u32),
    /// `TCP_USER_TIMEOUT`: time without progress after which the connection is given up; zero is
    /// off.
    UserTimeout(Nanos),
    /// `SO_LINGER`: zero resets the connection at close; `None` is off.
    Linger(Option<Nanos>),
    /// `SO_SNDBUF`: send buffer in bytes. As in Linux, twice as much memory is used.
    SendBuffer(u32),
    /// `SO_RCVBUF`: receive buffer in bytes. As in Linux, twice as much memory is used.
    ReceiveBuffer(u32),
    /// `SO_RCVLOWAT`: unread bytes at which a reader is woken, at most half of the receive buffer;
    /// 0 means 1.
    ReceiveLowat(u32),
    /// `TCP_MAXSEG`, 88 to 32767 bytes: upper bound of the MSS; 0 removes the bound. It acts in the
    /// handshake: on an open connection it changes nothing.
    MaxSegment(u16),
    /// `SO_MAX_PACING_RATE` with a value of eight bytes, in bytes per second; unlimited when all
    /// bits are set.
    MaxPacingRate(Rate),
    /// `SO_MAX_PACING_RATE` with a value of four bytes, in bytes per second; unlimited when all
    /// bits are set.
    MaxPacingRate32(u32),
    /// `TCP_NOTSENT_LOWAT`: unsent bytes at which a writer has to wait; 0 is `tcp_notsent_lowat`.
    NotSentLowat(u32),
    /// `TCP_NEAP_NOTSENT_LOWAT_US`: the low-water mark as microseconds of the pacing rate.
    NotSentLowatMicros(u32),
    /// `TCP_CONGESTION`: name of the congestion controller.
    ///
    /// Above 2 % of random loss the rate of `bbr3` collapses, as its draft wants; `bbr` keeps it.
    Congestion(String),
    /// `SO_PRIORITY`, 0 to 15: the band in `pfifo_fast` and `fq`.
    Priority(u8),
    /// `IP_RECVERR`, `IPV6_RECVERR`: an open connection reports errors from routers at once.
    ReceiveErrors(bool),
    /// `IP_TTL`, `IPV6_UNICAST_HOPS`: hops that a packet may take; 0 is the default of the host,
    /// `net.ipv4.ip_default_ttl` for IPv4 and 64 for IPv6.
    HopLimit(u8),
}

/// Reason why an option was refused.
#[derive(Clone, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum OptionError {
    /// The value is out of range (EINVAL). The text names the range.
    #[error("{0} is out of range")]
    Range(&'static str),
    /// No such congestion control (ENOENT).
    #[error(transparent)]
    UnknownCongestion(#[from] UnknownController),
}

crate::debug_as_display!(OptionError);
