//! Reads and writes of one connection, as far as they go.

use super::page;
use bytes::Bytes;
use neap_stack::socket::readiness::Ready;
use neap_stack::socket::tcp::TcpHandle;
use neap_tcp::connection::{ReadError, WriteError};
use neap_tcp::time::Instant;
use std::task::Waker;

/// The connection was refused, reset or given up.
#[derive(Debug)]
pub(super) struct Failed;

/// One connection, and where its two streams are.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) handle: TcpHandle,
    pub(super) written: u64,
    pub(super) read: u64,
    /// Was begun to be written, and the rest was not taken yet.
    pub(super) pending: Bytes,
}

impl Wire {
    pub(super) fn new(handle: TcpHandle) -> Self {
        Self { handle, written: 0, read: 0, pending: Bytes::new() }
    }

    /// Writes what is pending; whether all of it was taken.
    pub(super) fn flush(&mut self, now: Instant) -> Result<bool, Failed> {
        while !self.pending.is_empty() {
            match self.handle.write_bytes(now, &mut self.pending) {
                Ok(taken) => self.written += taken as u64,
                Err(WriteError::WouldBlock) => return Ok(false),
                Err(_) => return Err(Failed),
            }
        }
        Ok(true)
    }

    /// Whether the socket takes more (`EPOLLOUT`).
    pub(super) fn may_write(&self) -> bool {
        self.handle.readiness().bits().contains(Ready::WRITABLE)
    }

    /// Writes bytes of the page up to the position `end`, at most `most` at once, until it is
    /// refused as a blocking `write` would be; whether it came there.
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

    /// Reads all there is, but nothing once the position `end` is reached; whether the stream is
    /// over. `take` gets each part with its position.
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
                Err(ReadError::Failed(_)) => return Err(Failed),
            }
        }
        Ok(false)
    }

    /// Calls `work` until nothing has changed since it began, and `waker` after the next change.
    pub(super) fn settle(
        &mut self,
        waker: &Waker,
        mut work: impl FnMut(&mut Self) -> Result<(), Failed>,
    ) -> Result<(), Failed> {
        loop {
            let seen = self.handle.readiness();
            if seen.bits().contains(Ready::ERROR) {
                return Err(Failed);
            }
            work(self)?;
            if self.handle.register(seen, Ready::all(), waker) {
                return Ok(());
            }
        }
    }
}
