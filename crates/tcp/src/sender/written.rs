//! Written data: what an application does with the sending half, and what that holds of it.

use super::Sender;
use super::send_queue::More;
use bytes::Bytes;

impl Sender {
    /// Returns the bytes that were written and never sent.
    pub fn unsent(&self) -> u32 {
        self.queue.len()
    }

    /// Returns whether bytes wait that were never sent.
    pub fn has_unsent(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Returns the bytes that still fit the last buffer, which is full at `goal`.
    pub fn room_in_last(&self, goal: u32) -> u32 {
        self.queue.room_in_last(goal)
    }

    /// Begins a new buffer with the next byte. With `keeps_size` no frame carries bytes of it and
    /// of the one before.
    pub fn begin_buffer(&mut self, keeps_size: bool) {
        if keeps_size {
            self.queue.end_buffer(self.nxt);
        }
        self.queue.begin_buffer();
    }

    /// Copies `data` to the end of the queue.
    pub fn append(&mut self, data: &[u8]) {
        self.queue.note_in_flight(self.unacked());
        self.queue.push(data);
    }

    /// Appends `data` without a copy.
    pub fn append_bytes(&mut self, data: Bytes) {
        self.queue.push_bytes(data);
    }

    /// Ends a record with the last byte (`MSG_EOR`).
    pub fn end_record(&mut self) {
        self.queue.end_record(self.nxt);
    }

    /// What the last write said of what follows it.
    pub(crate) fn more(&self) -> More {
        self.queue.more()
    }

    /// A write said what follows it.
    pub(crate) fn set_more(&mut self, more: More) {
        self.queue.set_more(more);
    }

    /// Something else than a write asks for transmission: only the push of its own write is held.
    pub(crate) fn end_hold(&mut self) {
        self.queue.end_hold();
    }

    /// Drops all data that waits or is in flight, since the connection is over.
    pub fn clear(&mut self) {
        self.queue.clear();
        self.board.clear();
    }

    /// Returns the memory of the write queue, sent and unsent (`sk_wmem_queued`). A buffer is full
    /// at `goal`.
    pub fn memory(&self, goal: u32) -> u32 {
        self.board.memory().saturating_add(self.queue.memory(goal))
    }

    /// Frees what a connection without data does not need.
    pub fn release_idle_memory(&mut self) {
        self.board.release_idle_memory();
        self.queue.release_idle_memory();
    }

    /// Returns how many segments the send buffer should have room for (`tcp_sndbuf_expand`).
    pub fn buffered_segments(&self) -> u32 {
        let segments = self.window.cwnd.max(10).max(self.recovery.reordering() + 1);
        self.controller.sndbuf_expand().saturating_mul(segments)
    }

    /// Marks the flow as limited by its application, unless something else holds it back
    /// (`tcp_rate_check_app_limited`). The caller knows that little waits and nothing is below TCP.
    pub fn check_app_limited(&mut self) {
        let counts = self.board.counts();
        if counts.in_flight() < self.window.cwnd && counts.lost_out <= counts.retrans_out {
            self.rate.mark_app_limited(counts.in_flight());
        }
    }
}
