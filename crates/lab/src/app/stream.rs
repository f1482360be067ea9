//! One connection and where its two streams are: reads and writes as far as they go.

use super::page;
use bytes::{Buf, Bytes};
use neap_stack::socket::readiness::Ready;
use neap_stack::socket::tcp::TcpHandle;
use neap_tcp::connection::{ConnectionError, ReadError, WriteError};
use neap_tcp::time::Instant;

/// The connection was refused, reset or given up. It says why, unless it was closed here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failed(pub(super) Option<ConnectionError>);

/// An open connection, how much of its two streams was written and read.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) handle: TcpHandle,
    pub(super) written: u64,
    pub(super) read: u64,
    /// Bytes that are to be written next. The socket has not taken them yet.
    pub(super) pending: Bytes,
}

impl Stream {
    pub(super) fn new(handle: TcpHandle) -> Self {
        Self { handle, written: 0, read: 0, pending: Bytes::new() }
    }

    /// Fails if the socket has an error to tell (`EPOLLERR`).
    pub(super) fn check(&self) -> Result<(), Failed> {
        let has_failed = self.handle.readiness().bits().contains(Ready::ERROR);
        if has_failed { Err(Failed(None)) } else { Ok(()) }
    }

    /// Whether the socket takes more (`EPOLLOUT`).
    pub(super) fn may_write(&self) -> bool {
        self.handle.readiness().bits().contains(Ready::WRITABLE)
    }

    /// Writes what is pending by one call, which `copies` it or takes it as it is. False if the
    /// call would block.
    pub(super) fn write_pending(&mut self, now: Instant, copies: bool) -> Result<bool, Failed> {
        let wrote = if copies {
            let wrote = self.handle.write(now, &self.pending);
            self.pending.advance(wrote.unwrap_or(0));
            wrote
        } else {
            self.handle.write_bytes(now, &mut self.pending)
        };
        match wrote {
            Ok(taken) => {
                self.written += taken as u64;
                Ok(true)
            }
            Err(WriteError::WouldBlock) => Ok(false),
            Err(WriteError::Closed) => Err(Failed(None)),
            Err(WriteError::Failed(error)) => Err(Failed(Some(error))),
        }
    }

    /// Writes what is pending. False if the socket did not take all of it.
    pub(super) fn flush(&mut self, now: Instant) -> Result<bool, Failed> {
        while !self.pending.is_empty() {
            if !self.write_pending(now, false)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes bytes of the page up to the position `end`, at most `most` by one call, until a call
    /// would block. True if it came to `end`.
    pub(super) fn write_to(&mut self, now: Instant, end: u64, most: u64) -> Result<bool, Failed> {
        loop {
            if !self.flush(now)? {
                return Ok(false);
            }
            let rest = end.saturating_sub(self.written).min(most.max(1));
            if rest == 0 {
                return Ok(true);
            }
            self.pending = page::slice(self.written, rest as usize);
        }
    }

    /// Reads all there is, but nothing more once the position `end` is reached. `take` gets each
    /// part with its position. True if the stream is over.
    pub(super) fn read_to(
        &mut self,
        now: Instant,
        end: u64,
        mut take: impl FnMut(u64, &Bytes),
    ) -> Result<bool, Failed> {
        while self.read < end {
            match self.handle.read_bytes(now) {
                Ok(Some(data)) => {
                    take(self.read, &data);
                    self.read += data.len() as u64;
                }
                Ok(None) => return Ok(true),
                Err(ReadError::WouldBlock) => return Ok(false),
                Err(ReadError::Failed(error)) => return Err(Failed(Some(error))),
            }
        }
        Ok(false)
    }
}
