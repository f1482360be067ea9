//! The sockets that the tests run on, with the options that a test asks for.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use neap::ConnectOptions;
use neap::time::Rate;
use neap::{SocketOption, SocketOptions as TcpOptions};
pub(crate) use neap::{Stack, TcpListener, TcpStream};

/// What a test asks of its sockets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SocketOptions {
    pub nodelay: bool,
    /// Name of the congestion control; the stack's default if `None`.
    pub congestion: Option<String>,
    /// MSS, bytes.
    pub max_segment: Option<u32>,
    /// Both socket buffers, bytes; tuned by the stack if `None`.
    pub buffer_size: Option<usize>,
    /// bit/s that the socket sends at the most, paced (`SO_MAX_PACING_RATE`).
    pub fq_rate: Option<u64>,
    /// `TCP_NOTSENT_LOWAT` of what this end sends, bytes. The protocol has no word for it.
    pub notsent_lowat: Option<u32>,
}

/// Connects a socket with those of the options that have to be there from the start. The others are
/// [applied](apply) afterwards.
pub(crate) fn connect(
    stack: &Stack,
    to: SocketAddr,
    options: &SocketOptions,
) -> io::Result<TcpStream> {
    let mut early = TcpOptions::default();
    if let Some(mss) = options.max_segment {
        early.max_segment = u16::try_from(mss).ok();
    }
    if let Some(size) = options.buffer_size {
        let bytes = u32::try_from(size).unwrap_or(u32::MAX / 2).saturating_mul(2);
        early.receive_buffer = Some(bytes.min(stack.host().config().rmem_max * 2));
    }
    let early = ConnectOptions { options: early, ..ConnectOptions::default() };
    TcpStream::connect_with(stack, to, early, None)
}

/// Listens on a port of all addresses of the stack.
pub(crate) fn bind(
    stack: &Stack,
    port: u16,
    version: Option<IpVersion>,
) -> io::Result<TcpListener> {
    let any = match version {
        Some(IpVersion::V6) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        _ => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    };
    TcpListener::bind(stack, SocketAddr::new(any, port))
}

/// A version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IpVersion {
    V4,
    V6,
}

impl IpVersion {
    pub(crate) fn of(addr: &SocketAddr) -> Self {
        if addr.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

/// Sets the options of a connected socket.
pub(crate) fn apply(socket: &TcpStream, options: &SocketOptions) -> io::Result<()> {
    if options.nodelay {
        socket.set_nodelay(true)?;
    }
    if let Some(name) = &options.congestion {
        socket.set_option(SocketOption::Congestion(name.clone()))?;
    }
    if let Some(bytes) = options.notsent_lowat {
        socket.set_option(SocketOption::NotSentLowat(bytes))?;
    }
    if let Some(bits) = options.fq_rate {
        socket.set_option(SocketOption::MaxPacingRate(Rate::from_bits(bits)))?;
    }
    if let Some(size) = options.buffer_size {
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        socket.set_option(SocketOption::SendBuffer(size))?;
        socket.set_option(SocketOption::ReceiveBuffer(size))?;
    }
    Ok(())
}

/// Send and receive buffer of a socket, bytes.
pub(crate) fn buffer_sizes(socket: &TcpStream) -> io::Result<(usize, usize)> {
    let info = socket.info();
    Ok((info.sndbuf as usize, info.rcvbuf as usize))
}

/// Name of a socket's congestion control.
pub(crate) fn congestion(socket: &TcpStream) -> Option<String> {
    Some(socket.info().congestion.to_owned())
}

/// What a sender's report shows of its connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Info {
    /// Segments sent again since the connection was opened.
    pub retransmits: u64,
    /// Bytes.
    pub snd_cwnd: u64,
    /// Bytes.
    pub snd_wnd: u64,
    /// Microseconds.
    pub rtt: u32,
    /// Microseconds.
    pub rttvar: u32,
    /// Bytes.
    pub pmtu: u32,
    /// Bytes.
    pub snd_mss: u32,
    pub bytes: Whereabouts,
    pub spent: Spent,
}

/// Where the bytes of a flow are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Whereabouts {
    /// Written and not sent.
    pub unsent: u64,
    /// Memory in the qdisc, of bytes that are in flight too.
    pub qdisc: u64,
    /// Memory in the device, of bytes that are in flight too.
    pub device: u64,
    /// Sent and not acknowledged, those in qdisc and device included.
    pub in_flight: u64,
}

/// What the time of a flow was spent on, in nanoseconds: parts that are cut to microseconds before
/// a difference is taken may be more than the whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    /// With data to send or in flight.
    pub busy: u64,
    /// Time of it that waited for the application: the send buffer or the low-water mark was
    /// refused before.
    pub send_buffer: u64,
    /// ... for the peer's window.
    pub receive_window: u64,
    /// ... for the congestion window.
    pub congestion_window: u64,
    /// ... for completions.
    pub small_queue: u64,
    /// ... for a departure.
    pub pacing: u64,
}

impl Spent {
    /// From an earlier reading to this one.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let part = |now: u64, then: u64| now.saturating_sub(then);
        Self {
            busy: part(self.busy, before.busy),
            send_buffer: part(self.send_buffer, before.send_buffer),
            receive_window: part(self.receive_window, before.receive_window),
            congestion_window: part(self.congestion_window, before.congestion_window),
            small_queue: part(self.small_queue, before.small_queue),
            pacing: part(self.pacing, before.pacing),
        }
    }

    /// What blocked the flow, the longest first, and for how long.
    pub(crate) fn blocks(&self) -> Vec<(&'static str, u64)> {
        let mut blocks = vec![
            ("cwnd", self.congestion_window),
            ("rwnd", self.receive_window),
            ("small queue", self.small_queue),
            ("pacing", self.pacing),
            ("sndbuf", self.send_buffer),
        ];
        blocks.retain(|&(_, nanos)| nanos > 0);
        blocks.sort_by_key(|&(_, nanos)| std::cmp::Reverse(nanos));
        blocks
    }
}

/// Figures of a connection now.
pub(crate) fn info(socket: &TcpStream) -> Info {
    let info = socket.info();
    let micros = |span: neap::time::Nanos| u32::try_from(span.as_micros()).unwrap_or(u32::MAX);
    Info {
        retransmits: u64::from(info.total_retrans),
        snd_cwnd: u64::from(info.snd_cwnd) * u64::from(info.snd_mss),
        snd_wnd: u64::from(info.snd_wnd),
        rtt: micros(info.rtt),
        rttvar: micros(info.rttvar),
        pmtu: info.pmtu,
        snd_mss: info.snd_mss,
        bytes: Whereabouts {
            unsent: info.notsent_bytes.into(),
            qdisc: info.below_bytes.saturating_sub(info.device_bytes),
            device: info.device_bytes,
            in_flight: info.unacked_bytes.into(),
        },
        spent: Spent {
            busy: info.busy_time.0,
            send_buffer: info.sndbuf_limited.0,
            receive_window: info.rwnd_limited.0,
            congestion_window: info.cwnd_limited.0,
            small_queue: info.small_queue_limited.0,
            pacing: info.pacing_limited.0,
        },
    }
}

/// Waits for any of several sockets.
#[derive(Debug)]
pub(crate) struct Poller {
    poller: neap::Poller,
    events: Vec<neap::Event>,
}

impl Poller {
    /// # Errors
    /// As [`neap::Poller::new`].
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { poller: neap::Poller::new()?, events: Vec::new() })
    }

    /// Waits for this socket too, from now on: for data, or for room where `for_room`.
    ///
    /// # Errors
    /// As [`neap::Poller::add`].
    pub(crate) fn add(
        &mut self,
        socket: &impl neap::Pollable,
        token: u64,
        for_room: bool,
    ) -> io::Result<()> {
        let events = if for_room { neap::Events::OUT } else { neap::Events::IN };
        self.poller.add(socket, token, events)
    }

    /// Waits for this socket no longer.
    pub(crate) fn remove(&mut self, socket: &impl neap::Pollable) {
        // One that was removed before is what is wanted.
        let _ = self.poller.remove(socket);
    }

    /// Puts the tokens of the sockets that are ready into `ready`; none if the time ends first.
    /// Without a timeout it waits for as long as it takes.
    pub(crate) fn wait(
        &mut self,
        ready: &mut Vec<u64>,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        ready.clear();
        self.poller.wait(&mut self.events, timeout)?;
        ready.extend(self.events.iter().map(|event| event.token));
        Ok(())
    }
}
