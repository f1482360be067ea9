//! What closing a TUN device decides.

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
        let (main, bulk) = (tun.queues[0].main.clone(), tun.queues[0].bulk.clone());
        assert!(bulk.as_ref().expect("a bulk queue").is_threaded);
        let tx = TunTx::new(main, bulk, true);
        assert!(tx.to_drain().is_none());
        configure_link(tun.name(), &LinkConfig::default()).expect("up");
        assert!(tx.to_drain().is_some());
        let down = ["link", "set", tun.name(), "down"];
        let status = Command::new("ip").args(down).status().expect("ip runs");
        assert!(status.success());
        assert!(tx.to_drain().is_none());
    });
}
