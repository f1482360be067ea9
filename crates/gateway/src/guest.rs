//! Connections of the guest, as ends of a relay.

use crate::relay::{End, MOST_PIECE, take_front};
use crate::upstream::Far;
use bytes::{Buf, Bytes};
use neap::info::State;
use neap::{ConnectOptions, Events, Poller, SocketOptions, Stack, TcpStream};
use std::collections::VecDeque;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

/// Bytes of the headers of a packet, at the most: IPv6, and TCP with all options.
const HEADERS: usize = 100;
/// Most segments of a frame of the stack.
const MOST_SEGMENTS: usize = 64;

/// A connection of the guest in non-blocking mode.
#[derive(Debug)]
pub struct GuestStream(TcpStream);

impl GuestStream {
    /// A connection of the stack, which is set to non-blocking mode.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self(stream))
    }

    /// Begins a connection to a guest, from an address of somebody else.
    ///
    /// # Errors
    /// As [`TcpStream::connect_nonblocking`].
    pub fn connect(
        stack: &Stack,
        to: SocketAddr,
        from: SocketAddr,
        options: SocketOptions,
    ) -> io::Result<Self> {
        let options = ConnectOptions { local: Some(from), options, transparent: true };
        Self::new(TcpStream::connect_nonblocking(stack, to, options)?)
    }

    /// Begins a connection of the stack itself, from an address and port of its choice.
    ///
    /// # Errors
    /// As [`TcpStream::connect_nonblocking`].
    pub fn connect_from_stack(
        stack: &Stack,
        to: SocketAddr,
        options: SocketOptions,
    ) -> io::Result<Self> {
        let options = ConnectOptions { local: None, options, transparent: false };
        Self::new(TcpStream::connect_nonblocking(stack, to, options)?)
    }

    /// The connection.
    pub fn stream(&self) -> &TcpStream {
        &self.0
    }
}

impl End for GuestStream {
    fn receive(&mut self) -> io::Result<Option<Bytes>> {
        self.0.recv_bytes()
    }

    fn send(&mut self, pieces: &mut VecDeque<Bytes>, most: usize) -> io::Result<usize> {
        let Some(first) = pieces.front_mut() else { return Ok(0) };
        let sent = if first.len() <= most {
            self.0.send_bytes(first)?
        } else {
            let mut part = first.slice(..most);
            let sent = self.0.send_bytes(&mut part)?;
            first.advance(sent);
            sent
        };
        take_front(pieces, 0);
        Ok(sent)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.0.shutdown(Shutdown::Write)
    }

    fn frame(&self) -> Option<usize> {
        let segment = usize::try_from(self.0.info().snd_mss).ok()?;
        // As many segments as a packet with its headers holds.
        let segments = (MOST_PIECE - HEADERS).checked_div(segment)?.clamp(1, MOST_SEGMENTS);
        Some(segment * segments)
    }

    fn take_error(&mut self) -> io::Result<()> {
        self.0.take_error()?.map_or(Ok(()), Err)
    }

    fn reset(&mut self) {
        // The reset is sent when the stream is dropped.
        let _ = self.0.set_linger(Some(Duration::ZERO));
    }
}

impl Far for GuestStream {
    fn is_open(&mut self) -> io::Result<bool> {
        self.take_error()?;
        match self.0.info().state {
            State::SynSent | State::SynReceived => Ok(false),
            State::Closed => Err(io::ErrorKind::ConnectionAborted.into()),
            _ => Ok(true),
        }
    }

    fn enter(&self, poller: &Poller, token: u64, events: Events) -> io::Result<()> {
        poller.add(&self.0, token, events)
    }
}
