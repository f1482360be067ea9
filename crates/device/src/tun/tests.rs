//! What closing a TUN device decides, and when it is looked at again.

use super::*;
use crate::{LinkConfig, configure_link};
use std::io::Write;
use std::process::Command;

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
