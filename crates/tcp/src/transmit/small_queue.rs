//! TCP Small Queues: the bytes a socket has below TCP, and their credits.
//!
//! A [`TxCredit`] travels inside each frame; its drop is the TX completion (Linux's `tcp_wfree`).
//! Count and flag share one word, so "is it full" and "wake me" are decided by one
//! read-modify-write and no fence is needed, where Linux needs one because `sk_wmem_alloc` and
//! `TSQ_THROTTLED` are two words.
//!
//! Cost: one atomic add to charge, one to enter the device, two to complete, one load to admit.
//! An account is 128 bytes.

use crate::sync::atomic::{
    AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
};
use std::sync::Arc;
use std::task::Waker;

const THROTTLED: u64 = 1 << 63;

/// Any number of bytes below is few enough.
const ANY: u32 = u32::MAX;

/// Frames whose presence below TCP can be told apart; later ones are judged by the byte count.
const TICKETS: usize = 8;

/// Count of one socket's bytes that are in qdiscs and devices. UDP sockets have one too.
#[derive(Debug)]
pub struct TxAccount {
    word: AtomicU64,
    /// The part of the bytes that a device holds; the rest waits in qdiscs.
    device_bytes: AtomicU64,
    /// Ticket number of the frame that occupies each place; 0 when free.
    tickets: [AtomicU32; TICKETS],
    issued: AtomicU32,
    /// With so many bytes below, or fewer, a completion wakes a socket that waits; `u32::MAX` is
    /// any number.
    wake_at: AtomicU32,
    /// Wakes the socket's shard; runs wherever the last frame is dropped, so it may only post.
    ready: Waker,
}

impl TxAccount {
    /// Returns an empty account. `ready` is woken when a throttled socket may transmit again.
    pub fn new(ready: Waker) -> Arc<Self> {
        Arc::new(Self {
            word: AtomicU64::new(0),
            device_bytes: AtomicU64::new(0),
            tickets: core::array::from_fn(|_| AtomicU32::new(0)),
            issued: AtomicU32::new(0),
            wake_at: AtomicU32::new(ANY),
            ready,
        })
    }

    /// Returns whether a further segment may go down: at most `limit` bytes are below TCP. After
    /// `false`, the next completion is sure to wake the socket.
    pub fn admit(&self, limit: u64) -> bool {
        self.admit_waking_at(limit, u64::MAX)
    }

    /// As [`admit`](Self::admit), but after `false` the completion wakes the socket that leaves
    /// `wake_at` bytes below or fewer. Of several that ask, the last one decides.
    pub fn admit_waking_at(&self, limit: u64, wake_at: u64) -> bool {
        if self.bytes() <= limit {
            return true;
        }
        // The mark publishes it.
        self.wake_at.store(u32::try_from(wake_at).unwrap_or(ANY), Relaxed);
        self.throttle_above(limit)
    }

    /// Asks for a wake-up at the next completion if more than `limit` bytes are below.
    /// Returns whether they are not, judged by the very read that left the mark. An older mark
    /// stays: a retransmission that was held back may rely on it.
    fn throttle_above(&self, limit: u64) -> bool {
        let before = self.word.fetch_or(THROTTLED, AcqRel);
        if before & !THROTTLED > limit {
            return false;
        }
        // Another sender of the socket may have come to rely on this mark; datagrams have several.
        if before & THROTTLED == 0 && self.word.fetch_and(!THROTTLED, AcqRel) & THROTTLED != 0 {
            self.ready.wake_by_ref();
        }
        true
    }

    /// Returns the bytes below TCP.
    pub fn bytes(&self) -> u64 {
        self.word.load(Acquire) & !THROTTLED
    }

    /// Returns the bytes below TCP that a device holds. The others wait in qdiscs.
    pub fn device_bytes(&self) -> u64 {
        self.device_bytes.load(Relaxed)
    }

    /// Returns whether the socket waits for a completion.
    pub fn is_throttled(&self) -> bool {
        self.word.load(Acquire) & THROTTLED != 0
    }

    /// Returns whether the frame with this ticket is still below TCP (Linux's
    /// `skb_still_in_host_queue`). If it is, a completion is sure to wake the socket.
    pub fn holds(&self, ticket: Ticket) -> bool {
        self.is_below(ticket) && !self.throttle_above(0) && self.is_below(ticket)
    }

    /// As [`holds`](Self::holds), for one who does not wait for it: no completion wakes the socket.
    #[doc(hidden)]
    pub fn is_below(&self, ticket: Ticket) -> bool {
        match ticket.place() {
            Some(place) => self.tickets[place].load(Acquire) == ticket.0,
            None => ticket == Ticket::UNNAMED && self.bytes() > 0,
        }
    }
}

/// Name of one frame below TCP, for [`TxAccount::holds`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticket(u32);

impl Ticket {
    /// Ticket of no frame: nothing was sent, or it left without a credit.
    pub const NONE: Self = Self(0);
    /// A frame that found no free place; it counts as below while anything is.
    const UNNAMED: Self = Self(u32::MAX);

    fn place(self) -> Option<usize> {
        (self != Self::NONE && self != Self::UNNAMED).then_some(self.0 as usize % TICKETS)
    }
}

/// Permission of one frame to be below TCP. It is dropped when the wire has the frame.
#[derive(Debug)]
pub struct TxCredit {
    account: Arc<TxAccount>,
    bytes: u32,
    ticket: Ticket,
    in_device: bool,
}

impl TxCredit {
    /// Counts `bytes` of memory (payload and overhead) as below TCP.
    #[doc(hidden)]
    pub fn charge(account: &Arc<TxAccount>, bytes: u32) -> Self {
        account.word.fetch_add(u64::from(bytes), Relaxed);
        Self { account: account.clone(), bytes, ticket: account.issue(), in_device: false }
    }

    /// Returns the name of this frame.
    #[doc(hidden)]
    pub fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// Returns the bytes that this credit counts.
    pub fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Returns the account of this credit, for figures by place.
    #[doc(hidden)]
    pub fn account(&self) -> &Arc<TxAccount> {
        &self.account
    }

    /// Splits off the credit of the first `bytes` (at most all), for software GSO. The rest
    /// keeps the ticket, so the frame counts as below until its last piece is on the wire.
    #[must_use]
    #[doc(hidden)]
    pub fn split(&mut self, bytes: u32) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self {
            account: self.account.clone(),
            bytes,
            ticket: Ticket::NONE,
            in_device: self.in_device,
        }
    }

    /// Counts these bytes as held by a device, until they are dropped.
    #[doc(hidden)]
    pub fn enter_device(&mut self) {
        if !self.in_device {
            self.in_device = true;
            self.account.device_bytes.fetch_add(u64::from(self.bytes), Relaxed);
        }
    }

    /// Counts these bytes as waiting again: the device gave the frame back.
    #[doc(hidden)]
    pub fn leave_device(&mut self) {
        if self.in_device {
            self.in_device = false;
            self.account.device_bytes.fetch_sub(u64::from(self.bytes), Relaxed);
        }
    }
}

impl TxAccount {
    fn issue(&self) -> Ticket {
        let number = self.issued.fetch_add(1, Relaxed).wrapping_add(1);
        let ticket = Ticket(number);
        let Some(place) = ticket.place() else {
            return Ticket::UNNAMED;
        };
        match self.tickets[place].compare_exchange(0, number, AcqRel, Relaxed) {
            Ok(_) => ticket,
            Err(_) => Ticket::UNNAMED,
        }
    }
}

impl Drop for TxCredit {
    fn drop(&mut self) {
        self.leave_device();
        let account = &self.account;
        if let Some(place) = self.ticket.place() {
            account.tickets[place].store(0, std::sync::atomic::Ordering::Release);
        }
        let before = account.word.fetch_sub(u64::from(self.bytes), AcqRel);
        let left = (before & !THROTTLED) - u64::from(self.bytes);
        let has_room = || match account.wake_at.load(Relaxed) {
            ANY => true,
            wake_at => left <= u64::from(wake_at),
        };
        // The completion of the last frame finds few enough whatever was asked for. Of several
        // racing completions, the one that clears the flag wakes.
        if before & THROTTLED != 0
            && has_room()
            && account.word.fetch_and(!THROTTLED, AcqRel) & THROTTLED != 0
        {
            account.ready.wake_by_ref();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Wakes(AtomicUsize);
    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn account() -> (Arc<Wakes>, Arc<TxAccount>) {
        let wakes = Arc::new(Wakes::default());
        (wakes.clone(), TxAccount::new(wakes.into()))
    }

    #[test]
    fn a_refused_socket_is_woken_once() {
        let (wakes, account) = account();
        let credits: Vec<_> = (0..3).map(|_| TxCredit::charge(&account, 100)).collect();
        assert!(account.admit(300));
        assert!(!account.admit(299));
        drop(credits);
        assert_eq!(account.bytes(), 0);
        assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_socket_that_asks_for_room_is_woken_when_there_is_so_much() {
        let (wakes, account) = account();
        let mut credits: Vec<_> = (0..4).map(|_| TxCredit::charge(&account, 100)).collect();
        assert!(account.admit_waking_at(400, 200));
        assert!(!account.admit_waking_at(399, 200));
        let mut complete = || {
            drop(credits.pop());
            (wakes.0.load(Ordering::SeqCst), account.is_throttled())
        };
        assert_eq!(complete(), (0, true));
        assert_eq!(complete(), (1, false));
        assert!(!account.admit(0));
        assert_eq!(complete(), (2, false), "the next one");
        assert!(!account.admit_waking_at(0, 0));
        assert_eq!(complete(), (3, false), "the last one");
    }

    #[test]
    fn a_split_credit_releases_in_steps() {
        let (_, account) = account();
        let mut credit = TxCredit::charge(&account, 100);
        let ticket = credit.ticket();
        let part = credit.split(60);
        drop(part);
        assert_eq!(account.bytes(), 40);
        assert!(account.holds(ticket));
        drop(credit);
        assert_eq!(account.bytes(), 0);
        assert!(!account.holds(ticket));
    }

    #[test]
    fn bytes_are_told_apart_by_place() {
        let (_, account) = account();
        let mut waiting = TxCredit::charge(&account, 10);
        let mut sent = TxCredit::charge(&account, 100);
        sent.enter_device();
        sent.enter_device();
        assert_eq!((account.bytes(), account.device_bytes()), (110, 100));
        let part = sent.split(30);
        drop(sent);
        assert_eq!((account.bytes(), account.device_bytes()), (40, 30));
        waiting.enter_device();
        waiting.leave_device();
        drop(part);
        assert_eq!((account.bytes(), account.device_bytes()), (10, 0));
    }

    #[test]
    fn a_ticket_names_its_own_frame() {
        let (wakes, account) = account();
        let first = TxCredit::charge(&account, 1);
        let second = TxCredit::charge(&account, 1);
        let (a, b) = (first.ticket(), second.ticket());
        drop(second);
        assert!(account.is_below(a) && !account.is_below(b) && !account.is_throttled());
        assert!(account.holds(a) && !account.holds(b));
        drop(first);
        assert_eq!(wakes.0.load(Ordering::SeqCst), 1, "asking leaves the wake-up mark");
        assert!(!account.holds(Ticket::NONE));
    }

    #[test]
    fn frames_beyond_the_named_ones_count_as_below_while_anything_is() {
        let (_, account) = account();
        let mut credits: Vec<_> = (0..=TICKETS).map(|_| TxCredit::charge(&account, 1)).collect();
        let last = credits.pop().expect("just made");
        let ticket = last.ticket();
        drop(last);
        assert!(account.holds(ticket), "cannot be told apart");
        credits.clear();
        assert!(!account.holds(ticket));
    }
}
