//! Connections of the guest, as ends of a relay.

use crate::relay::{End, VISIT, take_front};
use crate::upstream::Far;
use bytes::Bytes;
use neap::info::State;
use neap::{ConnectOptions, Events, Poller, SocketOptions, Stack, TcpStream};
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

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
        let mut sent = 0;
        while sent < most
            && let Some(first) = pieces.front_mut()
        {
            let mut part = first.slice(..first.len().min(most - sent));
            match self.0.send_bytes(&mut part) {
                Ok(count) => {
                    sent += count;
                    take_front(pieces, count);
                }
                Err(error) if sent == 0 || error.kind() != ErrorKind::WouldBlock => {
                    return Err(error);
                }
                Err(_) => break,
            }
        }
        Ok(sent)
    }

    /// Pieces that leave one behind the other wake the guest once. Where something waits to be sent
    /// the guest is the slower side, and more would only wait here.
    fn at_once(&self) -> usize {
        if self.0.outq_nsd() == 0 { VISIT } else { 1 }
    }

    fn finish(&mut self) -> io::Result<()> {
        self.0.shutdown(Shutdown::Write)
    }

    fn frame(&self) -> Option<usize> {
        let info = self.0.info();
        // Where a frame is one segment, or nothing was sent yet, it says nothing.
        (info.largest_frame > info.snd_mss).then_some(info.largest_frame as usize)
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
