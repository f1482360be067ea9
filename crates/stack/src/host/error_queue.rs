//! Error queue of a socket (`sk_error_queue`): errors that routers and this host report about sent
//! packets.
//!
//! Each error is one record, which is read beside the data (`MSG_ERRQUEUE` of `recvmsg(2)`, ip(7)).
//! Cost: nothing until the first record; then a deque, bounded by the receive buffer.

use bytes::Bytes;
use core::net::{IpAddr, SocketAddr};
use neap_tcp::connection::ConnectionError;
use std::collections::VecDeque;

/// Memory that a record counts besides its data: a packet's, with the headers in front of what is
/// quoted (Linux's smallest `truesize`).
const OVERHEAD: u32 = 768;

/// Source of a reported error (`SO_EE_ORIGIN_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorOrigin {
    /// This host, before the packet was sent.
    Local,
    /// An ICMP message.
    Icmp,
    /// An ICMPv6 message.
    Icmp6,
}

/// Record of the error queue (`struct sock_extended_err`, and what belongs to it).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ErrorRecord {
    /// Error that a call would return (`ee_errno`).
    pub error: ConnectionError,
    /// Source of the report.
    pub origin: ErrorOrigin,
    /// Type of the ICMP message, or 0.
    pub kind: u8,
    /// Code of the ICMP message, or 0.
    pub code: u8,
    /// MTU in bytes if the packet was too big, pointer of a parameter problem, or 0 (`ee_info`).
    pub info: u32,
    /// Destination of the packet.
    pub destination: SocketAddr,
    /// Own address and port that the packet was sent from, foreign ones included; `None` of a
    /// packet that was not sent.
    pub source: Option<SocketAddr>,
    /// Sender of the ICMP message.
    pub offender: Option<IpAddr>,
    /// Quoted part of the packet: of UDP its payload, of TCP from the header on.
    pub data: Bytes,
}

impl ErrorRecord {
    /// `is_icmp_err_skb`
    fn is_icmp(&self) -> bool {
        self.origin != ErrorOrigin::Local
    }

    pub(crate) fn memory(&self) -> u32 {
        u32::try_from(self.data.len()).unwrap_or(u32::MAX).saturating_add(OVERHEAD)
    }
}

/// An ICMP error about a packet of a socket.
#[derive(Debug)]
pub(crate) struct ErrorReport {
    pub(crate) record: ErrorRecord,
    /// Believed without being asked for (`icmp_err_convert`'s `fatal`).
    pub(crate) is_hard: bool,
    /// The next link takes no more than `record.info` bytes per packet.
    pub(crate) is_too_big: bool,
    /// A message came, which is dropped if nobody believes it.
    pub(crate) is_message: bool,
}

/// Error queue of one socket, oldest record first.
#[derive(Debug, Default)]
pub struct ErrorQueue {
    records: VecDeque<ErrorRecord>,
    memory: u32,
}

impl ErrorQueue {
    /// Returns whether there is no record.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Returns the bytes of memory that the records take of the receive buffer.
    pub fn memory(&self) -> u32 {
        self.memory
    }

    /// Appends a record if all records stay below `room` bytes (`sock_queue_err_skb`). Returns
    /// whether it did.
    pub fn push(&mut self, record: ErrorRecord, room: u32) -> bool {
        let memory = self.memory.saturating_add(record.memory());
        let fits = memory < room;
        if fits {
            self.memory = memory;
            self.records.push_back(record);
        }
        fits
    }

    /// Takes the oldest record (`sock_dequeue_err_skb`).
    ///
    /// `tell` gets the error that the next call fails with from then on, if that changes: it
    /// follows the ICMP records.
    pub fn pop(&mut self, tell: impl FnOnce(Option<ConnectionError>)) -> Option<ErrorRecord> {
        let record = self.records.pop_front()?;
        self.memory = self.memory.saturating_sub(record.memory());
        match self.records.front().filter(|next| next.is_icmp()) {
            Some(next) => tell(Some(next.error)),
            None if record.is_icmp() => tell(None),
            None => {}
        }
        Some(record)
    }

    /// Removes all records (`skb_errqueue_purge`).
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(origin: ErrorOrigin, error: ConnectionError) -> ErrorRecord {
        ErrorRecord {
            error,
            origin,
            kind: 3,
            code: 1,
            info: 0,
            destination: SocketAddr::from(([192, 0, 2, 1], 9)),
            source: None,
            offender: None,
            data: Bytes::from_static(b"12345678"),
        }
    }

    #[test]
    fn the_error_of_the_socket_follows_the_icmp_records() {
        use ConnectionError as E;
        let mut queue = ErrorQueue::default();
        for (origin, error) in [
            (ErrorOrigin::Icmp, E::Refused),
            (ErrorOrigin::Icmp6, E::Protocol),
            (ErrorOrigin::Local, E::MessageTooLong),
            (ErrorOrigin::Local, E::MessageTooLong),
            (ErrorOrigin::Icmp, E::HostDown),
        ] {
            assert!(queue.push(record(origin, error), u32::MAX));
        }
        let mut told = Vec::new();
        while !queue.is_empty() {
            let mut word = None;
            queue.pop(|error| word = Some(error)).expect("one");
            told.push(word);
        }
        // Before a local one the error is forgotten; between two local ones it stays.
        assert_eq!(
            told,
            [Some(Some(E::Protocol)), Some(None), None, Some(Some(E::HostDown)), Some(None)]
        );
        assert_eq!(queue.memory(), 0);
        assert!(queue.pop(|_| unreachable!("nothing is there")).is_none());
    }

    #[test]
    fn records_fill_the_buffer_and_no_more() {
        let mut queue = ErrorQueue::default();
        let one = record(ErrorOrigin::Icmp, ConnectionError::Refused);
        let size = one.memory();
        assert!(!queue.push(one.clone(), size), "less than all, as in Linux");
        let taken = (0..10).filter(|_| queue.push(one.clone(), 4 * size)).count();
        assert_eq!((taken, queue.memory()), (3, 3 * size));
        queue.clear();
        assert_eq!((queue.is_empty(), queue.memory()), (true, 0));
    }
}
