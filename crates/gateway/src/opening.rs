//! Connections of the host's kernel that are being opened, with the hops that a guest's SYN had.
//!
//! Cost: a connection whose SYN has fewer hops than usual takes four system calls more.

use crate::host::HostStream;
use crate::host_errors::{self, Undelivered};
use crate::outbound::Outbound;
use crate::relay::End;
use bytes::Bytes;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{Ipv4RecvErr, Ipv4Ttl, Ipv6RecvErr, Ipv6Ttl};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

/// Hops that a host gives its packets if nobody says otherwise (RFC 1340, `net.ipv4.ip_default_ttl`
/// of Linux). No destination is that far, so a SYN that has as many goes out with those of the
/// host.
const USUAL_HOPS: u8 = 64;
/// Value of `IP_TTL` and `IPV6_UNICAST_HOPS` that stands for the host's own one.
const HOPS_OF_HOST: i32 = -1;

/// A connection of the host's kernel that was begun.
#[derive(Debug)]
pub(crate) struct Opening {
    stream: HostStream,
    is_v6: bool,
    is_open: bool,
    /// Its packets have the hops of the guest's SYN, and what ICMP says of them is kept.
    has_hops_of_syn: bool,
}

impl Opening {
    /// Begins a connection. Its SYN has a hop less than that of the guest had, if that is known;
    /// once the connection is open, its packets have the hops of the host, as the guest's later
    /// ones are not known.
    pub(crate) fn begin(
        to: SocketAddr,
        outbound: &Outbound,
        hop_limit: Option<u8>,
    ) -> io::Result<Self> {
        let (is_v6, is_open) = (to.is_ipv6(), false);
        let Some(hop_limit) = hop_limit.filter(|&hops| hops < USUAL_HOPS) else {
            let stream = HostStream::connect(to, outbound)?;
            return Ok(Self { stream, is_v6, is_open, has_hops_of_syn: false });
        };
        let hops = hop_limit.saturating_sub(1).max(1);
        let stream = HostStream::connect_prepared(to, outbound, |socket| {
            set_hops(socket, is_v6, hops.into())?;
            host_errors::ask(socket, is_v6)
        })?;
        Ok(Self { stream, is_v6, is_open, has_hops_of_syn: true })
    }

    /// A connection that was begun by a socket of the host's kernel.
    pub(crate) fn of(stream: HostStream, to: SocketAddr) -> Self {
        Self { stream, is_v6: to.is_ipv6(), is_open: false, has_hops_of_syn: false }
    }

    /// Whether the handshake is over.
    pub(crate) fn is_open(&mut self) -> io::Result<bool> {
        if !self.is_open {
            self.is_open = self.stream.is_connected()?;
            if self.is_open && self.has_hops_of_syn {
                self.leave_hops_of_syn()?;
            }
        }
        Ok(self.is_open)
    }

    /// What ICMP says of a SYN that had the hops of a guest's.
    pub(crate) fn undelivered(&self) -> Option<Undelivered> {
        // What a record quotes is the SYN of the host, which the guest does not know.
        if self.has_hops_of_syn { host_errors::take(&self.stream, &mut []) } else { None }
    }

    /// From now on ICMP errors end nothing, as for any connection.
    fn leave_hops_of_syn(&mut self) -> io::Result<()> {
        set_hops(&self.stream, self.is_v6, HOPS_OF_HOST)?;
        if self.is_v6 {
            setsockopt(&self.stream, Ipv6RecvErr, &false)?;
        } else {
            setsockopt(&self.stream, Ipv4RecvErr, &false)?;
        }
        self.has_hops_of_syn = false;
        Ok(())
    }
}

fn set_hops(socket: &impl AsFd, is_v6: bool, hops: i32) -> io::Result<()> {
    if is_v6 {
        setsockopt(socket, Ipv6Ttl, &hops)?;
    } else {
        setsockopt(socket, Ipv4Ttl, &hops)?;
    }
    Ok(())
}

impl AsFd for Opening {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl End for Opening {
    fn beneath(&self) -> Option<&dyn End> {
        Some(&self.stream)
    }
    fn beneath_mut(&mut self) -> Option<&mut dyn End> {
        Some(&mut self.stream)
    }

    fn receive(&mut self) -> io::Result<Option<Bytes>> {
        self.stream.receive()
    }
    fn send(&mut self, pieces: &mut VecDeque<Bytes>, most: usize) -> io::Result<usize> {
        self.stream.send(pieces, most)
    }
    fn finish(&mut self) -> io::Result<()> {
        self.stream.finish()
    }
    fn reset(&mut self) {
        self.stream.reset();
    }
}
