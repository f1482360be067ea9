//! Socket options of a connection, by their Linux names.

use crate::config::Config;
use crate::congestion::UnknownController;
use crate::time::{Nanos, Rate};
use thiserror::Error;

/// `SOCK_MIN_SNDBUF`.
const MIN_SNDBUF: u32 = 4608;
/// `TCP_MIN_RCVBUF`: the least receive buffer that `SO_RCVBUF` gives.
const MIN_RCVBUF: u32 = 2304;

/// What an application set on its socket; children inherit a listener's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketOptions {
    /// `TCP_NODELAY`.
    pub nodelay: bool,
    /// `TCP_CORK`.
    pub cork: bool,
    /// `TCP_QUICKACK` as last set; `None` leaves it to the stack.
    pub quickack: Option<bool>,
    /// `SO_KEEPALIVE`.
    pub keepalive: bool,
    /// `TCP_KEEPIDLE`; `None` is `tcp_keepalive_time`.
    pub keepalive_idle: Option<Nanos>,
    /// `TCP_KEEPINTVL`; `None` is `tcp_keepalive_intvl`.
    pub keepalive_interval: Option<Nanos>,
    /// `TCP_KEEPCNT`; `None` is `tcp_keepalive_probes`.
    pub keepalive_count: Option<u32>,
    /// `TCP_USER_TIMEOUT`; `None` leaves it to `tcp_retries2`.
    pub user_timeout: Option<Nanos>,
    /// `SO_LINGER`: zero resets at close; `None` is off.
    pub linger: Option<Nanos>,
    /// `SO_SNDBUF` doubled as Linux does; `None` is autotuned.
    pub send_buffer: Option<u32>,
    /// `SO_RCVBUF` doubled as Linux does; `None` is autotuned.
    pub receive_buffer: Option<u32>,
    /// `SO_RCVLOWAT`: unread bytes from which on a reader is woken, at least 1.
    pub receive_lowat: u32,
    /// `TCP_MAXSEG`: upper bound of the MSS.
    pub max_segment: Option<u16>,
    /// `SO_MAX_PACING_RATE`.
    pub max_pacing_rate: Rate,
    /// `TCP_NOTSENT_LOWAT` in bytes; 0 is `tcp_notsent_lowat`.
    pub notsent_lowat: u32,
    /// `TCP_NEAP_NOTSENT_LOWAT_US`: the mark as microseconds of the pacing rate; 0 is
    /// `neap.tcp_notsent_lowat_us`. The lower of the two marks holds.
    pub notsent_lowat_us: u32,
    /// `SO_PRIORITY`, 0 to 15: the band of `pfifo_fast` and `fq`.
    pub priority: u8,
    /// `IP_RECVERR`, `IPV6_RECVERR`: an open connection tells at once what routers say of it.
    pub receive_errors: bool,
    /// `TCP_CONGESTION`; `None` is `tcp_congestion_control`.
    pub congestion: Option<&'static str>,
}

fn seconds(span: Nanos, name: &'static str) -> Result<Nanos, OptionError> {
    let range = Nanos::from_secs(1)..=Nanos::from_secs(32767);
    if range.contains(&span) { Ok(span) } else { Err(OptionError::Range(name)) }
}

impl SocketOptions {
    /// Sets one option of a socket that may have no connection yet. Nothing has changed where it
    /// fails.
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
                self.keepalive_idle = Some(seconds(idle, "TCP_KEEPIDLE")?);
            }
            SocketOption::KeepAliveInterval(interval) => {
                self.keepalive_interval = Some(seconds(interval, "TCP_KEEPINTVL")?);
            }
            SocketOption::KeepAliveCount(count @ 1..=127) => self.keepalive_count = Some(count),
            SocketOption::KeepAliveCount(_) => return Err(OptionError::Range("TCP_KEEPCNT")),
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
            SocketOption::MaxSegment(mss @ 88..=32767) => self.max_segment = Some(mss),
            SocketOption::MaxSegment(_) => return Err(OptionError::Range("TCP_MAXSEG")),
            SocketOption::MaxPacingRate(rate) => self.max_pacing_rate = rate,
            SocketOption::MaxPacingRate32(rate) => self.max_pacing_rate = rate.into(),
            SocketOption::NotSentLowat(bytes) => self.notsent_lowat = bytes,
            SocketOption::NotSentLowatMicros(micros) => self.notsent_lowat_us = micros,
            SocketOption::Congestion(ref name) => {
                self.congestion = Some(config.controllers.find(name)?);
            }
            SocketOption::Priority(band @ 0..=15) => self.priority = band,
            SocketOption::Priority(_) => return Err(OptionError::Range("SO_PRIORITY")),
            SocketOption::ReceiveErrors(on) => self.receive_errors = on,
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
            congestion: None,
        }
    }
}

/// One option with its new value, as the application gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SocketOption {
    /// `TCP_NODELAY`.
    NoDelay(bool),
    /// `TCP_CORK`.
    Cork(bool),
    /// `TCP_QUICKACK`: 0 lets ACKs wait for data, odd values do not, even ones acknowledge what was
    /// read and let the next ones wait.
    QuickAck(i32),
    /// `SO_KEEPALIVE`.
    KeepAlive(bool),
    /// `TCP_KEEPIDLE`, 1 s to 32767 s.
    KeepAliveIdle(Nanos),
    /// `TCP_KEEPINTVL`, 1 s to 32767 s.
    KeepAliveInterval(Nanos),
    /// `TCP_KEEPCNT`, 1 to 127.
    KeepAliveCount(u32),
    /// `TCP_USER_TIMEOUT`; zero is off.
    UserTimeout(Nanos),
    /// `SO_LINGER`.
    Linger(Option<Nanos>),
    /// `SO_SNDBUF`, bytes as asked (doubled inside).
    SendBuffer(u32),
    /// `SO_RCVBUF`, bytes as asked (doubled inside).
    ReceiveBuffer(u32),
    /// `SO_RCVLOWAT`, bytes; at most half the receive buffer, 0 is 1.
    ReceiveLowat(u32),
    /// `TCP_MAXSEG`, 88 to 32767; 0 ends the bound.
    MaxSegment(u16),
    /// `SO_MAX_PACING_RATE` of eight bytes: bytes per second, unlimited when all ones.
    MaxPacingRate(Rate),
    /// `SO_MAX_PACING_RATE` of four bytes, unlimited when all ones.
    MaxPacingRate32(u32),
    /// `TCP_NOTSENT_LOWAT`.
    NotSentLowat(u32),
    /// `TCP_NEAP_NOTSENT_LOWAT_US`, microseconds.
    NotSentLowatMicros(u32),
    /// `TCP_CONGESTION`.
    Congestion(String),
    /// `SO_PRIORITY`, 0 to 15.
    Priority(u8),
    /// `IP_RECVERR`, `IPV6_RECVERR`.
    ReceiveErrors(bool),
}

/// Why an option was refused.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum OptionError {
    /// The value is out of range (EINVAL).
    #[error("{0} is out of range")]
    Range(&'static str),
    /// No such congestion control (ENOENT).
    #[error(transparent)]
    UnknownCongestion(#[from] UnknownController),
}
