//! Calls by which an application reads.

use super::{Connection, ReadError};
use crate::state::State;
use crate::time::Instant;
use bytes::Bytes;

impl Connection {
    /// Tells the error, if nothing comes before it: neither data nor the end of the stream, which
    /// leaves the error to `SO_ERROR` or a write (`SOCK_DONE` in `tcp_recvmsg_locked`).
    fn may_read(&mut self) -> Result<(), ReadError> {
        if self.receiver.unread() == 0
            && !self.receiver.is_finished()
            && let Some(error) = self.errors.take()
        {
            return Err(ReadError::Failed(error));
        }
        Ok(())
    }

    fn is_at_end(&self) -> bool {
        self.receiver.is_finished() || self.read_shut || self.state == State::Closed
    }

    /// Says whether the host is slower than its senders, so that what they send waits in the
    /// device. Meanwhile the receive buffer does not grow by itself, unless the shortest round trip
    /// that is known takes more than 50 ms: a larger window would only let more of it wait.
    ///
    /// `held` is then the number of bytes that the peer may send at once. The window becomes no
    /// larger than that and two segments, if a round trip is known that was shorter than 2 ms.
    pub fn hold_receive_buffer(&mut self, held: Option<u32>) {
        self.receiver.hold_buffer(held, self.sender.rtt().min_rtt());
    }

    /// Moves received bytes to `buf`. `Ok(0)` is the end of the stream, or `buf` is empty.
    pub fn read(&mut self, now: Instant, buf: &mut [u8]) -> Result<usize, ReadError> {
        self.may_read()?;
        match self.receiver.read(now, buf) {
            0 if buf.is_empty() || self.is_at_end() => Ok(0),
            0 => Err(ReadError::WouldBlock),
            read => Ok(read),
        }
    }

    /// Reads like [`read`](Self::read), but returns [`ReadError::WouldBlock`] also while fewer
    /// bytes are there than `SO_RCVLOWAT` and `buf` ask for and more can come.
    ///
    /// # Errors
    /// Those of [`read`](Self::read).
    pub fn read_low_water(&mut self, now: Instant, buf: &mut [u8]) -> Result<usize, ReadError> {
        let len = u32::try_from(buf.len()).unwrap_or(u32::MAX);
        let target = self.options.receive_lowat.min(len);
        if self.receiver.unread() > 0 && !self.receiver.has_enough(target) && !self.is_at_end() {
            return Err(ReadError::WouldBlock);
        }
        self.read(now, buf)
    }

    /// Takes received bytes without a copy. `Ok(None)` is the end of the stream.
    pub fn read_bytes(&mut self, now: Instant) -> Result<Option<Bytes>, ReadError> {
        self.may_read()?;
        match self.receiver.read_bytes(now) {
            None if self.is_at_end() => Ok(None),
            None => Err(ReadError::WouldBlock),
            slice => Ok(slice),
        }
    }

    /// Copies received bytes and leaves them in the queue (`MSG_PEEK`).
    pub fn peek(&mut self, buf: &mut [u8]) -> Result<usize, ReadError> {
        self.may_read()?;
        match self.receiver.peek(buf) {
            0 if buf.is_empty() || self.is_at_end() => Ok(0),
            0 => Err(ReadError::WouldBlock),
            read => Ok(read),
        }
    }

    /// Ends the reading side (`SHUT_RD`). Data that arrives later is dropped.
    pub fn shutdown_read(&mut self) {
        self.read_shut = true;
        self.receiver.discard();
    }
}
