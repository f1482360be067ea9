//! What closing a TUN device decides, and when it is looked at again.

use super::*;
use crate::{LinkConfig, configure_link};
use rustix::thread::{Pid, gettid};
use std::io::{Read, Write};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::{Duration, Instant as Clock};

/// The longest that anything may take here: far above what it takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs `test` in a thread with a network namespace of its own, where that can be had.
fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(|| match sys::leave_network_namespace() {
        Ok(()) => test(),
        // Not `eprintln!`: the harness swallows that of tests that pass.
        Err(errno) => {
            writeln!(std::io::stderr(), "SKIP: no network namespace: {errno}").expect("stderr");
        }
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn only_an_interface_that_is_up_is_waited_for_at_the_end() {
    in_namespace(|| {
        let tun = Tun::open(&TunConfig::default()).expect("a TUN device");
        let Bulk { fd, is_threaded } = tun.queues[0].bulk.clone().expect("a bulk queue");
        assert!(is_threaded);
        assert!(!TunTx::has_to_drain(&fd));
        configure_link(tun.name(), &LinkConfig::default()).expect("up");
        assert!(TunTx::has_to_drain(&fd));
        let down = ["link", "set", tun.name(), "down"];
        let status = Command::new("ip").args(down).status().expect("ip runs");
        assert!(status.success());
        assert!(!TunTx::has_to_drain(&fd));
    });
}

#[test]
fn the_threads_of_the_kernel_interrupt_no_reader() {
    in_namespace(|| {
        if !rustix::process::geteuid().is_root() {
            writeln!(std::io::stderr(), "SKIP: only the superuser may").expect("stderr");
            return;
        }
        let policy = |thread| sys::scheduling(Some(thread)).expect("it runs").sched_policy;
        // Nobody else has an interface of this name.
        let name = format!("calm{}", std::process::id());
        let config = |name: &str| TunConfig {
            name: Some(name.to_owned()),
            queues: 2,
            persistent: true,
            ..TunConfig::default()
        };
        for _ in 0..2 {
            let tun = Tun::open(&config(&name)).expect("a TUN device");
            let threads: Vec<_> = threaded::of_interface(&name).collect();
            assert_eq!(threads.len(), 2);
            for thread in threads {
                assert_eq!(policy(thread), libc::SCHED_BATCH.cast_unsigned());
            }
            drop(tun);
        }
    });
}

#[test]
fn a_time_to_write_again_that_has_passed_is_no_event_any_more() {
    let fd = Arc::new(OwnedFd::from(std::fs::File::open("/dev/null").expect("it is there")));
    let mut tx = TunTx::new(fd, None, true);
    let refused = Instant::from_nanos(1_000_000);
    tx.retry_at = refused + RETRY;
    tx.reap(refused);
    assert_eq!(tx.next_event(), refused + RETRY, "it is not yet time");
    // The frame that was refused may be gone with the link.
    tx.reap(refused + RETRY);
    assert_eq!(tx.next_event(), Instant::FAR_FUTURE);
}

/// Waits until something holds.
fn await_that(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Clock::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::yield_now();
    }
}

/// Whether a thread of this process sleeps in a call of the system.
fn is_asleep(thread: Pid) -> bool {
    let path = format!("/proc/self/task/{}/stat", thread.as_raw_nonzero());
    std::fs::read_to_string(path).is_ok_and(|stat| stat.contains(") S "))
}

#[test]
fn a_signal_does_not_shorten_the_wait_for_the_kernel() {
    let (mut read, mut write) = std::io::pipe().expect("a pipe");
    rustix::io::ioctl_fionbio(&write, true).expect("set");
    let full: usize = core::iter::from_fn(|| write.write(&[0; 4096]).ok()).sum();
    sys::let_signals_interrupt().expect("a handler");
    let (tell, told) = mpsc::channel();
    let waiting = std::thread::spawn(move || {
        tell.send(gettid()).expect("it is waited for");
        wait_until_writable(&write.into(), Nanos::from_secs(20))
    });
    let thread = told.recv().expect("it runs");
    await_that("the thread waits", || is_asleep(thread));
    sys::interrupt(thread).expect("a signal");
    await_that("the signal came", || sys::INTERRUPTIONS.load(Ordering::Relaxed) == 1);
    read.read_exact(&mut vec![0; full]).expect("what was written");
    assert!(waiting.join().expect("no panic"), "the pipe is writable");
}

#[test]
fn a_packet_that_the_kernel_cannot_give_does_not_end_the_reading() {
    let mut reader = Reader::new(true);
    let packet = |room: &mut BytesMut| {
        room.extend_from_slice(&[0; virtio::HEADER_LEN]);
        room.extend_from_slice(b"packet");
        Ok(room.len())
    };
    let mut reads = 0;
    let mut read = |room: &mut BytesMut| {
        reads += 1;
        match reads {
            1 => Err(Errno::INVAL),
            2 => packet(room),
            _ => Err(Errno::AGAIN),
        }
    };
    let received = reader.next(&mut read).expect("the packet behind the lost one");
    assert_eq!(&received.data[..], b"packet");
    assert!(reader.next(&mut read).is_none());
    assert_eq!(reader.lost, 1);
    // Whatever the kernel says, one call ends.
    assert!(reader.next(|_| Err(Errno::INVAL)).is_none());
}
