//! The sockets that the tests run on: for now those of the kernel.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

pub(crate) use std::net::{TcpListener, TcpStream};

use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::net::sockopt;

/// The stack that sockets belong to.
#[derive(Debug)]
pub(crate) struct Stack;

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
}

/// Connects a socket that has these options.
pub(crate) fn connect(
    _stack: &Stack,
    to: SocketAddr,
    options: &SocketOptions,
) -> io::Result<TcpStream> {
    let socket = TcpStream::connect(to)?;
    apply(&socket, options)?;
    Ok(socket)
}

/// Listens on a port of all addresses of the stack.
pub(crate) fn bind(
    _stack: &Stack,
    port: u16,
    version: Option<IpVersion>,
) -> io::Result<TcpListener> {
    match version {
        Some(IpVersion::V6) => TcpListener::bind(("::", port)),
        _ => TcpListener::bind(("0.0.0.0", port)),
    }
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
        sockopt::set_tcp_congestion(socket, name)?;
    }
    if let Some(size) = options.buffer_size {
        sockopt::set_socket_send_buffer_size(socket, size)?;
        sockopt::set_socket_recv_buffer_size(socket, size)?;
    }
    Ok(())
}

/// Send and receive buffer of a socket, bytes.
pub(crate) fn buffer_sizes(socket: &TcpStream) -> io::Result<(usize, usize)> {
    Ok((sockopt::socket_send_buffer_size(socket)?, sockopt::socket_recv_buffer_size(socket)?))
}

/// Name of a socket's congestion control.
pub(crate) fn congestion(socket: &TcpStream) -> Option<String> {
    sockopt::tcp_congestion(socket).ok()
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
}

/// Figures of a connection now.
pub(crate) fn info(_socket: &TcpStream) -> Info {
    Info::default()
}

/// Waits for any of several sockets.
pub(crate) struct Poller {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

impl Poller {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            events: Vec::with_capacity(256),
        })
    }

    /// Waits for this socket too, from now on: for data, or for room where `for_room`.
    pub(crate) fn add(&self, socket: &impl AsFd, token: u64, for_room: bool) -> io::Result<()> {
        let flags = if for_room { epoll::EventFlags::OUT } else { epoll::EventFlags::IN };
        Ok(epoll::add(&self.epoll, socket, epoll::EventData::new_u64(token), flags)?)
    }

    /// Waits for this socket no longer.
    pub(crate) fn remove(&self, socket: &impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, socket)?)
    }

    /// Puts the tokens of the sockets that are ready into `ready`; none if the time ends first.
    pub(crate) fn wait(&mut self, ready: &mut Vec<u64>, timeout: Duration) -> io::Result<()> {
        ready.clear();
        self.events.clear();
        let timeout = rustix::time::Timespec::try_from(timeout).map_err(io::Error::other)?;
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        ready.extend(self.events.iter().map(|event| event.data.u64()));
        Ok(())
    }
}
