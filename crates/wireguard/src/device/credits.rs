//! Frames that the host has not let go of: which are complete, by the bytes that the socket still
//! counts for, and earlier ones on other ports.
//!
//! The kernel counts the memory of each datagram (`truesize`) from `sendmsg` until the driver frees
//! it, over all datagrams of the socket together. Datagrams leave in order. So the oldest frame is
//! complete when no more is counted than what the later frames came with. What a frame came with is
//! the difference of the count before and after its call. If a datagram completes within the call,
//! the difference is too small, and that frame completes with the next one: late, never early.
//! Where nothing is counted, everything is complete.

use neap_stack::device::Completed;
use neap_stack::frame::Frame;
use std::collections::VecDeque;

/// Frames on their way out, oldest first.
///
/// Cost: O(1) per frame. Memory: one frame each, bounded by the socket's send buffer.
#[derive(Debug, Default)]
pub(crate) struct Credits {
    frames: VecDeque<Held>,
    /// Bytes of memory that all frames came with.
    charged: u64,
    done: Completed,
}

#[derive(Debug)]
struct Held {
    frame: Frame,
    charge: u64,
    account: Account,
}

/// Who is told of a frame's completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Account {
    /// The caller of `submit`, if it is complete at once; otherwise `reap`.
    New,
    /// `reap`: `submit` has returned.
    Queued,
    /// Nobody: it was given up as complete when it came, and had to wait for a handshake.
    Closed,
}

impl Credits {
    /// Takes a frame whose call brought the count from `before` to `after`. Whether a new one is
    /// complete already.
    pub(crate) fn sent(&mut self, frame: Frame, account: Account, before: u64, after: u64) -> bool {
        if after == 0 && account == Account::New {
            self.settle(0);
            return true;
        }
        let charge = after.saturating_sub(before).max(1);
        self.charged += charge;
        self.frames.push_back(Held { frame, charge, account });
        self.settle(after);
        false
    }

    /// Completes a frame that the host has refused for good. The caller of `submit` completes a new
    /// one itself.
    pub(crate) fn refused(&mut self, frame: &Frame, account: Account) {
        if account == Account::Queued {
            complete(&mut self.done, frame);
        }
    }

    /// Completes what is complete when the host holds `held` bytes.
    pub(crate) fn settle(&mut self, held: u64) {
        while let Some(oldest) = self.frames.front()
            && (held == 0 || held <= self.charged - oldest.charge)
        {
            self.charged -= oldest.charge;
            if oldest.account != Account::Closed {
                complete(&mut self.done, &oldest.frame);
            }
            self.frames.pop_front();
        }
    }

    /// Bytes of memory that the frames came with.
    pub(crate) fn charged(&self) -> u64 {
        self.charged
    }

    /// Whether the host holds none.
    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// What was completed since this was last asked.
    pub(crate) fn take_completed(&mut self) -> Completed {
        core::mem::take(&mut self.done)
    }
}

fn complete(done: &mut Completed, frame: &Frame) {
    done.frames += 1;
    done.bytes += frame.len() as u64;
}

#[cfg(test)]
mod tests {
    use super::*;
    use neap_stack::frame::Headers;
    use neap_tcp::segment::Payload;

    fn frame(len: usize) -> Frame {
        Frame::new(Headers::default(), Payload::from(bytes::Bytes::from(vec![0; len])))
    }

    fn done(credits: &mut Credits) -> (u32, u64) {
        let done = credits.take_completed();
        (done.frames, done.bytes)
    }

    #[test]
    fn frames_complete_in_order() {
        let mut credits = Credits::default();
        assert!(!credits.sent(frame(1000), Account::New, 0, 2304));
        assert!(!credits.sent(frame(2000), Account::New, 2304, 5000));
        assert!(!credits.sent(frame(3000), Account::New, 5000, 9000));
        assert_eq!(done(&mut credits), (0, 0));
        credits.settle(6697);
        assert_eq!(done(&mut credits), (0, 0), "a byte of the first is left");
        credits.settle(6696);
        assert_eq!(done(&mut credits), (1, 1000));
        credits.settle(100);
        assert_eq!(done(&mut credits), (1, 2000), "a part of the last is left");
        credits.settle(0);
        assert_eq!(done(&mut credits), (1, 3000));
        assert!(credits.is_empty());
    }

    #[test]
    fn nothing_held_is_complete_at_once() {
        let mut credits = Credits::default();
        credits.sent(frame(1000), Account::New, 0, 2304);
        assert!(credits.sent(frame(500), Account::New, 2304, 0), "the wire has it");
        assert_eq!(done(&mut credits), (1, 1000), "the one before it is reaped, it is not");
        assert!(credits.is_empty());
    }

    #[test]
    fn a_frame_that_is_cut_on_its_way_counts_for_more_and_is_not_complete_early() {
        let mut credits = Credits::default();
        credits.sent(frame(60_000), Account::New, 0, 62_000);
        credits.sent(frame(60_000), Account::New, 62_000, 124_000);
        // The qdisc has cut the first: each piece counts on its own.
        credits.settle(165_000);
        credits.settle(63_000);
        assert_eq!(done(&mut credits), (0, 0));
        credits.settle(62_000);
        assert_eq!(done(&mut credits), (1, 60_000));
    }

    #[test]
    fn what_completes_within_a_call_makes_others_late_and_never_early() {
        let mut credits = Credits::default();
        credits.sent(frame(1), Account::New, 0, 1000);
        // The first has left during the call of the second: nothing seems to have come.
        credits.sent(frame(2), Account::New, 1000, 1000);
        credits.settle(1000);
        assert_eq!(done(&mut credits), (0, 0), "late");
        credits.settle(0);
        assert_eq!(done(&mut credits), (2, 3));
    }

    #[test]
    fn what_was_given_up_as_complete_is_not_counted_again() {
        let mut credits = Credits::default();
        credits.sent(frame(1), Account::Closed, 0, 1000);
        credits.sent(frame(2), Account::Queued, 1000, 0);
        assert_eq!(done(&mut credits), (1, 2));
        assert!(credits.is_empty());
    }
}
