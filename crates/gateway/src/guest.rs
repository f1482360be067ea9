//! Connections of the guest, as ends of a relay.

use crate::relay::{End, MOST_PIECE, SMALL, VISIT, take_front};
use crate::upstream::Far;
use bytes::Bytes;
use neap::device::SendQueue;
use neap::info::State;
use neap::net::Address;
use neap::{ConnectOptions, Events, Poller, SocketOptions, Stack, TcpStream};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::time::Duration;

/// A connection of the guest in non-blocking mode.
#[derive(Debug)]
pub struct GuestStream {
    stream: TcpStream,
    /// Bytes that the next call of [`send`](End::send) is worth.
    at_once: usize,
    /// At most [`SMALL`] are received at once.
    saves_memory: bool,
}

impl GuestStream {
    /// A connection of the stack, which is set to non-blocking mode.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, at_once: 1, saves_memory: false })
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
        let options = ConnectOptions {
            local: Some(from),
            options,
            // Clients that are seen by one address may have one port towards several guests.
            reuse_address: true,
            transparent: true,
        };
        Self::new(TcpStream::connect_nonblocking(stack, to, options)?)
    }

    /// Begins a connection of the stack itself, from an address and port of its choice.
    ///
    /// # Errors
    /// As [`TcpStream::connect_nonblocking`], and `NetworkUnreachable` if the stack has no address
    /// to send from.
    pub fn connect_from_stack(
        stack: &Stack,
        to: SocketAddr,
        options: SocketOptions,
    ) -> io::Result<Self> {
        let options = ConnectOptions { options, ..ConnectOptions::default() };
        match TcpStream::connect_nonblocking(stack, to, options) {
            // The same error says that no port is left.
            Err(error)
                if error.kind() == ErrorKind::AddrNotAvailable
                    && !has_address(stack, to.is_ipv6()) =>
            {
                Err(ErrorKind::NetworkUnreachable.into())
            }
            stream => Self::new(stream?),
        }
    }

    /// The connection.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }
}

/// Whether a stack has an address of this family that reaches beyond its link.
pub(crate) fn has_address(stack: &Stack, is_v6: bool) -> bool {
    let is_it = |address: &Address| match address.ip {
        IpAddr::V4(v4) => !is_v6 && !v4.is_loopback(),
        IpAddr::V6(v6) => is_v6 && !v6.is_loopback() && !v6.is_unicast_link_local(),
    };
    stack.host().interfaces().iter().any(|interface| interface.addresses.iter().any(is_it))
}

/// Bytes of as many whole frames as a piece has room for, and of one at the least.
fn whole_frames(frame: usize) -> usize {
    let frame = frame.max(1);
    (MOST_PIECE / frame).max(1) * frame
}

impl End for GuestStream {
    fn receive(&mut self) -> io::Result<Option<Bytes>> {
        if !self.saves_memory {
            return self.stream.recv_bytes();
        }
        let mut piece = [0; SMALL];
        let count = self.stream.read(&mut piece)?;
        Ok((count > 0).then(|| Bytes::copy_from_slice(&piece[..count])))
    }

    fn send_queue(&self) -> Option<SendQueue> {
        let info = self.stream.info();
        Some(SendQueue::new(info.notsent_bytes.into(), info.unacked_bytes.into()))
    }

    fn lends(&self) -> bool {
        true
    }

    /// Sends piece by piece. As long as the connection takes them all, the next call is worth twice
    /// as many: what leaves at one go wakes the guest once. A slower connection gets what it took,
    /// and more would only wait here.
    fn send(&mut self, pieces: &mut VecDeque<Bytes>, most: usize) -> io::Result<usize> {
        let mut sent = 0;
        while sent < most
            && let Some(first) = pieces.front()
        {
            let mut part = first.slice(..first.len().min(most - sent));
            match self.stream.send_bytes(&mut part) {
                Ok(count) => {
                    sent += count;
                    take_front(pieces, count);
                }
                Err(error) if sent == 0 || error.kind() != ErrorKind::WouldBlock => {
                    self.at_once = 1;
                    return Err(error);
                }
                Err(_) => {
                    self.at_once = sent;
                    return Ok(sent);
                }
            }
        }
        self.at_once = self.at_once.max(sent).saturating_mul(2).min(VISIT);
        Ok(sent)
    }

    fn at_once(&self) -> usize {
        self.at_once
    }

    fn finish(&mut self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)
    }

    fn frame(&self) -> Option<usize> {
        Some(whole_frames(self.stream.info().largest_frame as usize))
    }

    fn save_memory(&mut self, saves: bool) {
        self.saves_memory = saves;
    }

    fn take_error(&mut self) -> io::Result<()> {
        self.stream.take_error()?.map_or(Ok(()), Err)
    }

    fn reset(&mut self) {
        // The reset is sent when the stream is dropped.
        let _ = self.stream.set_linger(Some(Duration::ZERO));
    }
}

impl Far for GuestStream {
    fn is_open(&mut self) -> io::Result<bool> {
        self.take_error()?;
        match self.stream.info().state {
            State::SynSent | State::SynReceived => Ok(false),
            State::Closed => Err(io::ErrorKind::ConnectionAborted.into()),
            _ => Ok(true),
        }
    }

    fn enter(&self, poller: &Poller, token: u64, events: Events) -> io::Result<()> {
        poller.add(&self.stream, token, events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_whole_frames() {
        // Single segments; a tunnel's frames; an MTU of 65520, where a segment fills a packet.
        assert_eq!([1448, 60_192, 65_468].map(whole_frames), [65_160, 60_192, 65_468]);
    }
}
