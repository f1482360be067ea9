//! Threads that wait, of which another one knows.

use std::sync::mpsc::{Receiver, Sender, channel};

use crate::common::eventually;

/// Tells the name of the thread that is about to wait, to one who waits until it does.
pub(crate) fn announcement() -> (Sender<i32>, Receiver<i32>) {
    channel()
}

pub(crate) fn announce(to: &Sender<i32>) {
    to.send(rustix::thread::gettid().as_raw_nonzero().get()).expect("somebody listens");
}

/// Waits until the thread that announces itself sleeps.
pub(crate) fn until_asleep(from: &Receiver<i32>) -> i32 {
    let thread = from.recv().expect("a thread");
    let state = || {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
        let stat = stat.expect("a thread");
        stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next())
    };
    eventually(state, |state| *state == Some('S'));
    thread
}

/// Waits until so many threads that announce themselves sleep.
pub(crate) fn until_all_asleep(from: &Receiver<i32>, count: usize) {
    for _ in 0..count {
        until_asleep(from);
    }
}
