//! Writes of an application (`tcp_sendmsg`): buffers, records (`MSG_EOR`), `MSG_MORE`, and when a
//! large write begins to leave.
//!
//! Cost: the copy, and a handful of comparisons per buffer of up to 64 KiB.

use super::{Connection, Fin, Room, WriteError};
use crate::sender::send_queue::More;
use crate::state::State;
use crate::time::{Instant, Nanos};
use crate::transmit::TxBlocked;
use crate::transmit::egress::Egress;
use bytes::Bytes;

/// What a buffer that keeps its size holds at the rate of its writing.
const HALF_A_MILLISECOND: Nanos = Nanos::from_micros(500);

bitflags::bitflags! {
    /// Flags of one write, as in `send(2)`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct WriteFlags: u8 {
        /// More data follows at once (`MSG_MORE`).
        ///
        /// A segment that is not full waits for it, as if `TCP_CORK` were set until the next write,
        /// ACK or departure, and no segment is marked PSH. A write of nothing does not end the
        /// wait, nor does data of the peer that acknowledges nothing new.
        const MORE = 1;
        /// The last byte ends a record (`MSG_EOR`): no frame carries it together with later bytes.
        /// The flag does nothing for a write that took only a part.
        const EOR = 2;
    }
}

impl Connection {
    /// Returns whether a write of `len` bytes fills more than one buffer, so that
    /// [`send`](Self::send) transmits while it copies.
    #[inline]
    pub fn is_large_write(&self, len: usize) -> bool {
        len > self.sender.mss() as usize && len > self.size_goal() as usize
    }

    /// Payload bytes at which a buffer that is written now is full.
    fn write_goal(&self) -> u32 {
        let most = self.size_goal();
        if !self.config.tso_at_write {
            return most;
        }
        let mss = self.sender.mss().max(1);
        let by_rate = self.sender.pacer().rate().bytes_in(HALF_A_MILLISECOND) / u64::from(mss);
        let segments = by_rate.max(self.config.tcp_min_tso_segs.max(1).into());
        segments.saturating_mul(mss.into()).min(most.into()) as u32
    }

    fn may_write(&mut self) -> Result<(), WriteError> {
        if let Some(error) = self.errors.take() {
            return Err(WriteError::Failed(error));
        }
        if matches!(self.state, State::SynSent | State::SynReceived) && self.fin == Fin::None {
            self.room = Room::Refused;
            return Err(WriteError::WouldBlock);
        }
        if !self.state.may_write() || self.fin != Fin::None {
            return Err(WriteError::Closed);
        }
        Ok(())
    }

    /// Appends bytes to the write queue and returns how many it took.
    ///
    /// If the buffer or the low-water mark is full, it takes a part or returns
    /// [`WriteError::WouldBlock`], and [`Readiness::WRITABLE`] will return. The flags are those of
    /// `send(2)`.
    ///
    /// # Errors
    /// [`WriteError`].
    ///
    /// [`Readiness::WRITABLE`]: crate::connection::Readiness::WRITABLE
    pub fn write(&mut self, data: &[u8], flags: WriteFlags) -> Result<usize, WriteError> {
        self.may_write()?;
        self.check_app_limited();
        let done = self.append(data);
        self.after_write(done, done < data.len(), flags)
    }

    /// Writes like [`write`](Self::write), and transmits a large write while it is copied.
    ///
    /// The first buffer leaves if nothing waits, later ones whenever half of the peer's largest
    /// window is filled (`forced_push`, `tcp_push_one`). The caller still calls
    /// [`transmit`](Self::transmit) for the rest.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn send(
        &mut self,
        now: Instant,
        data: &[u8],
        flags: WriteFlags,
        egress: &mut dyn Egress,
    ) -> Result<usize, WriteError> {
        self.may_write()?;
        self.check_app_limited();
        let mut done = 0;
        let mut may_push = true;
        loop {
            let rest = &data[done..];
            let part = if may_push { self.push_after().min(rest.len()) } else { rest.len() };
            let taken = self.append(&rest[..part]);
            done += taken;
            if taken < part || done == data.len() {
                return self.after_write(done, done < data.len(), flags);
            }
            // The rest completes the last segment.
            self.sender.set_more(More::Held);
            let now = egress.time(now);
            may_push = self.transmit(now, egress) != TxBlocked::Yield;
        }
    }

    /// Bytes of a large write after which what is queued is pushed.
    fn push_after(&self) -> usize {
        let goal = self.size_goal();
        let half_window = if self.sender.has_unsent() { self.sender.max_wnd() / 2 } else { 0 };
        goal.max(half_window) as usize
    }

    /// Copies from the front of `data` what there is room for.
    #[inline(always)]
    fn append(&mut self, data: &[u8]) -> usize {
        let goal = self.write_goal();
        let goal = self.bound_by_host(goal);
        let mut done = 0;
        while done < data.len() {
            let mut room = self.sender.room_in_last(goal);
            if room == 0 {
                if !self.grant_buffer() {
                    break;
                }
                room = goal;
            }
            let take = (data.len() - done).min(room as usize);
            self.sender.append(&data[done..done + take]);
            done += take;
        }
        done
    }

    /// Writes like [`write`](Self::write), without a copy: takes what fits from the front of
    /// `data`.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn write_bytes(
        &mut self,
        data: &mut Bytes,
        flags: WriteFlags,
    ) -> Result<usize, WriteError> {
        self.may_write()?;
        self.check_app_limited();
        let goal = self.write_goal();
        let goal = self.bound_by_host(goal) as usize;
        let mut done = 0;
        while !data.is_empty() && self.grant_buffer() {
            let part = data.split_to(goal.min(data.len()));
            done += part.len();
            self.sender.append_bytes(part);
        }
        self.after_write(done, !data.is_empty(), flags)
    }

    /// Something else than a write asks for transmission: neither `MSG_MORE` nor autocorking holds
    /// the last write any longer (`tcp_data_snd_check`).
    pub(super) fn end_hold(&mut self) {
        self.sender.end_hold();
        self.wrote = false;
    }

    fn grant_buffer(&mut self) -> bool {
        if !self.memory_is_free(false) {
            return false;
        }
        self.sender.begin_buffer(self.config.tso_at_write);
        true
    }

    #[inline(always)]
    fn after_write(
        &mut self,
        done: usize,
        short: bool,
        flags: WriteFlags,
    ) -> Result<usize, WriteError> {
        // A writer that goes by readiness stops here and is never refused; poll sets SOCK_NOSPACE
        // for it in Linux. Without that its buffer would not grow.
        if short {
            self.room = Room::Refused;
        } else if self.room != Room::Enough || !self.is_writable() {
            self.room = Room::Little;
        }
        if done == 0 && short {
            self.sender.end_hold();
            return Err(WriteError::WouldBlock);
        }
        if done == 0 {
            // A write of nothing pushes nothing, not even what waits for more.
            return Ok(0);
        }
        self.wrote = true;
        // A full tail is no short write: the small-segment rules see the whole queue.
        self.push_override = false;
        let is_held = flags.contains(WriteFlags::MORE) && !short;
        self.sender.set_more(if is_held { More::Held } else { More::Unknown });
        if flags.contains(WriteFlags::EOR) && !short {
            self.sender.end_record();
        }
        Ok(done)
    }

    /// Marks the flow as limited by its application (`tcp_rate_check_app_limited`).
    fn check_app_limited(&mut self) {
        if self.sender.unsent() < self.sender.mss() && self.account.bytes() == 0 {
            self.sender.check_app_limited();
        }
    }
}
