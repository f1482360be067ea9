//! `IP_RECVERR` and `MSG_ERRQUEUE`: the error queue as control messages (`ip_recv_error`,
//! `ipv6_recv_error`; recvmsg(2), ip(7), cmsg(3)).

use crate::Received;
use crate::abi::*;
use crate::cmsg::Control;
use crate::errno::Errno;
use crate::sockaddr::{self, Domain};
use crate::socket::{Kind, SharedSocket, Socket};
use core::net::SocketAddr;
use neap_stack::socket::errors::{ErrorOrigin, ErrorRecord};
use neap_tcp::options::SocketOption;
use neap_tcp::time::Instant;

/// Most bytes behind the header of a control message here.
const MOST: usize = SOCK_EXTENDED_ERR_LEN + sockaddr::SIZE_V6;

/// `struct sock_extended_err` and the offender's address, as a socket of `domain` gets them; how
/// many bytes that are.
fn extended_error(domain: Domain, record: &ErrorRecord) -> ([u8; MOST], usize) {
    let mut bytes = [0; MOST];
    let origin = match record.origin {
        ErrorOrigin::Icmp => SO_EE_ORIGIN_ICMP,
        ErrorOrigin::Icmp6 => SO_EE_ORIGIN_ICMP6,
        _ => SO_EE_ORIGIN_LOCAL,
    };
    bytes[..4].copy_from_slice(&Errno::from(record.error).0.to_ne_bytes());
    bytes[4..7].copy_from_slice(&[origin, record.kind, record.code]);
    bytes[8..12].copy_from_slice(&record.info.to_ne_bytes());
    let (_, address) = bytes.split_at_mut(SOCK_EXTENDED_ERR_LEN);
    // Without an offender all of the address is zero, its family too.
    if let Some(offender) = record.offender {
        sockaddr::encode(domain.show(SocketAddr::new(offender, 0))).copy_to(address);
    }
    let address_len = if domain == Domain::V4 { sockaddr::SIZE_V4 } else { sockaddr::SIZE_V6 };
    (bytes, SOCK_EXTENDED_ERR_LEN + address_len)
}

impl SharedSocket {
    /// `recvmsg(2)` with `MSG_ERRQUEUE`; it never waits.
    pub(super) fn read_error(
        &self,
        now: Instant,
        buf: &mut [u8],
        control: &mut [u8],
    ) -> Result<Received, Errno> {
        let mut socket = self.lock();
        let record = socket.next_error(now).ok_or(Errno::EAGAIN)?;
        let (domain, asked) = (socket.domain, socket.common.asked);
        // A connection tells its watchers itself.
        if socket.has_errors() {
            self.changed();
        }
        drop(socket);
        let len = record.data.len().min(buf.len());
        buf[..len].copy_from_slice(&record.data[..len]);
        let (level, kind) = match domain {
            Domain::V4 => (SOL_IP, IP_RECVERR),
            Domain::V6 => (SOL_IPV6, IPV6_RECVERR),
        };
        let (error, error_len) = extended_error(domain, &record);
        let mut messages = Control::new(control);
        if let Some(source) = record.source {
            messages.put_source(domain, asked, source);
        }
        messages.put(level, kind, &error[..error_len]);
        let (control, cut) = messages.finish();
        let mut flags = MSG_ERRQUEUE | cut;
        flags |= if len < record.data.len() { MSG_TRUNC } else { 0 };
        Ok(Received { len, flags, from: Some(domain.show(record.destination)), control })
    }
}

impl Socket {
    fn next_error(&mut self, now: Instant) -> Option<ErrorRecord> {
        match &self.kind {
            Kind::Stream { handle, .. } => handle.next_error(now),
            Kind::Datagram(handle) => handle.as_ref()?.next_error(),
            Kind::Fresh | Kind::Listening(_) => {
                let pending = &mut self.pending;
                self.errors.as_mut()?.pop(|error| *pending = error)
            }
        }
    }

    /// `IP_RECVERR` or `IPV6_RECVERR` as it was read from `setsockopt`.
    pub(super) fn set_receive_errors(
        &mut self,
        now: Instant,
        level: i32,
        on: bool,
    ) -> Result<(), Errno> {
        let (mut v4, mut v6) = self.common.receive_errors;
        *(if level == SOL_IP { &mut v4 } else { &mut v6 }) = on;
        self.common.receive_errors = (v4, v6);
        match &self.kind {
            Kind::Fresh | Kind::Datagram(None) => {}
            Kind::Listening(handle) => self.configure_listener(handle),
            Kind::Stream { handle, .. } => {
                let on = if handle.remote_addr().is_ipv4() { v4 } else { v6 };
                handle.set_option(now, SocketOption::ReceiveErrors(on))?;
            }
            Kind::Datagram(Some(handle)) => handle.set_receive_errors(v4, v6),
        }
        if !on {
            self.forget_errors(now);
        }
        Ok(())
    }

    /// Whoever turns either option off wants no records (`skb_errqueue_purge`).
    fn forget_errors(&mut self, now: Instant) {
        match &self.kind {
            Kind::Stream { handle, .. } => drop(handle.swap_errors(now, None)),
            Kind::Datagram(Some(handle)) => handle.clear_errors(),
            Kind::Fresh | Kind::Listening(_) | Kind::Datagram(None) => self.errors = None,
        }
    }
}
