//! Every interleaving of a sender and the completions of its frames.
//! `RUSTFLAGS="--cfg loom" cargo test -p neap-tcp --release --test loom`
#![cfg(loom)]

use loom::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use loom::thread;
use neap_tcp::transmit::small_queue::{TxAccount, TxCredit};
use std::sync::Arc;
use std::task::{Wake, Waker};

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

fn account() -> (Arc<Wakes>, Arc<TxAccount>) {
    let wakes = Arc::new(Wakes::default());
    (wakes.clone(), TxAccount::new(Waker::from(wakes)))
}

/// A refused sender is woken, and one mark makes one wake.
#[test]
fn a_throttled_sender_is_woken_exactly_once() {
    loom::model(|| {
        let (wakes, account) = account();
        let completions: Vec<_> = [100, 100]
            .map(|bytes| TxCredit::charge(&account, bytes))
            .map(|credit| thread::spawn(move || drop(credit)))
            .into_iter()
            .collect();
        let admitted = account.admit(50);
        completions.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(account.bytes(), 0);
        assert!(!account.is_throttled(), "a mark without a wake");
        let woken = wakes.0.load(SeqCst);
        if admitted {
            assert!(woken <= 1);
        } else {
            assert_eq!(woken, 1, "lost or doubled wake-up");
        }
    });
}

/// A sender that asks for more room than one completion makes is woken by one that makes it.
#[test]
fn a_sender_that_waits_for_half_is_woken_exactly_once() {
    loom::model(|| {
        let (wakes, account) = account();
        let credits = [100, 100].map(|bytes| TxCredit::charge(&account, bytes));
        let completions = credits.map(|credit| thread::spawn(move || drop(credit)));
        let admitted = account.admit_waking_at(150, 50);
        let woken = wakes.0.load(SeqCst);
        // A sender that is admitted after all takes its mark back by a wake-up.
        assert!(woken == 0 || admitted || account.bytes() <= 50, "there is no room yet");
        completions.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(!account.is_throttled(), "a mark without a wake");
        let woken = wakes.0.load(SeqCst);
        assert!(admitted || woken == 1, "lost or doubled wake-up");
    });
}

/// A sender that looks again whenever it was woken gets below its limit and then sleeps for ever
/// only with nothing below.
#[test]
fn a_sender_that_waits_for_wakes_is_never_stuck() {
    loom::model(|| {
        let (wakes, account) = account();
        let credits = [100, 100].map(|bytes| TxCredit::charge(&account, bytes));
        let completions = credits.map(|credit| thread::spawn(move || drop(credit)));
        let mut seen = 0;
        let mut admitted = account.admit(0);
        for completion in completions {
            completion.join().unwrap();
            let woken = wakes.0.load(SeqCst);
            if !admitted && woken > seen {
                seen = woken;
                admitted = account.admit(0);
            }
        }
        assert!(admitted, "refused, and nobody woke");
    });
}

/// `holds` says yes only if the completion that makes it a no is sure to wake.
#[test]
fn a_retransmission_held_back_is_retried() {
    loom::model(|| {
        let (wakes, account) = account();
        let other = TxCredit::charge(&account, 1);
        let original = TxCredit::charge(&account, 100);
        let ticket = original.ticket();
        let first = thread::spawn(move || drop(original));
        let second = thread::spawn(move || drop(other));
        let held = account.holds(ticket);
        first.join().unwrap();
        second.join().unwrap();
        if held {
            assert!(wakes.0.load(SeqCst) >= 1, "held back for ever");
        }
        assert!(!account.holds(ticket));
        assert!(!account.is_throttled());
    });
}

/// The frame whose ticket is asked for completes after another frame took the wake-up: the retry
/// that this wake causes asks again and leaves its own mark.
#[test]
fn a_wake_by_another_frame_does_not_end_the_wait() {
    loom::model(|| {
        let (wakes, account) = account();
        let other = TxCredit::charge(&account, 1);
        let original = TxCredit::charge(&account, 100);
        let ticket = original.ticket();
        assert!(account.holds(ticket));
        drop(other);
        assert_eq!(wakes.0.load(SeqCst), 1);
        let completion = thread::spawn(move || drop(original));
        let held = account.holds(ticket);
        completion.join().unwrap();
        if held {
            assert_eq!(wakes.0.load(SeqCst), 2, "held back for ever");
        }
    });
}

/// A split credit completes piece by piece on several threads; figures by place come back to zero.
#[test]
fn pieces_of_a_frame_complete_on_several_threads() {
    loom::model(|| {
        let (wakes, account) = account();
        let mut rest = TxCredit::charge(&account, 100);
        rest.enter_device();
        let piece = rest.split(60);
        let first = thread::spawn(move || drop(piece));
        let second = thread::spawn(move || drop(rest));
        let admitted = account.admit(0);
        first.join().unwrap();
        second.join().unwrap();
        assert_eq!((account.bytes(), account.device_bytes()), (0, 0));
        assert!(admitted || wakes.0.load(SeqCst) == 1);
    });
}

/// New data that is admitted after a retransmission was held back does not take away the mark
/// that the held-back one relies on.
#[test]
fn admitting_new_data_keeps_the_mark_of_what_is_held_back() {
    loom::model(|| {
        let (wakes, account) = account();
        let other = TxCredit::charge(&account, 100);
        let original = TxCredit::charge(&account, 1);
        let ticket = original.ticket();
        let completion = thread::spawn(move || drop(other));
        let held = account.holds(ticket);
        let _ = account.admit(50);
        completion.join().unwrap();
        let before = wakes.0.load(SeqCst);
        drop(original);
        assert!(held);
        assert!(before >= 1 || wakes.0.load(SeqCst) >= 1, "held back for ever");
    });
}

/// A sender that is admitted after all does not take away the mark that another sender of the same
/// socket has come to rely on.
#[test]
fn of_two_senders_the_one_that_was_refused_is_woken() {
    loom::model(|| {
        let (wakes, account) = account();
        let first = TxCredit::charge(&account, 100);
        let completion = thread::spawn(move || drop(first));
        let other = account.clone();
        let other = thread::spawn(move || other.admit(50));
        let second = TxCredit::charge(&account, 100);
        let admitted = account.admit(50);
        completion.join().unwrap();
        let _ = other.join().unwrap();
        let before = wakes.0.load(SeqCst);
        drop(second);
        assert!(admitted || before >= 1 || wakes.0.load(SeqCst) >= 1, "refused, and nobody woke");
    });
}
