//! Tasks that wait wake nobody.

use std::io::Write;
use std::thread;

use tokio::io::AsyncReadExt;

use crate::common::{Family, expect_that_nothing_wakes, in_namespace, run, sleeps_of};
use crate::on_runtime;

#[test]
fn a_task_that_reads_is_not_woken() {
    in_namespace(|| {
        run("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1");
        let stack = Family::V4.stack();
        let (ours, mut theirs) = Family::V4.pair(&stack);
        let reading = thread::spawn(move || {
            on_runtime(1, async {
                let mut ours = neap::tokio::TcpStream::from_blocking(ours).expect("a runtime");
                ours.read_u8().await
            })
        });
        expect_that_nothing_wakes();
        theirs.write_all(b"a").expect("write");
        assert_eq!(reading.join().expect("a thread").expect("data"), b'a');
    });
}

/// Times that the worker of the stack has slept.
fn sleeps_of_worker() -> u64 {
    let threads = std::fs::read_dir("/proc/self/task").expect("threads");
    let mut threads = threads.map(|thread| thread.expect("a thread").path());
    let is_it = |thread: &std::path::PathBuf| {
        std::fs::read_to_string(thread.join("comm")).is_ok_and(|name| name.trim() == "neap-0")
    };
    sleeps_of(&threads.find(is_it).expect("a worker"))
}

/// Departures of a paced socket. Where the machine is busy the task may be late, and the worker
/// steps in: then the same is tried again.
#[test]
fn timers_that_a_task_serves_do_not_wake_the_worker() {
    in_namespace(|| {
        run("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1");
        let stack = Family::V4.stack();
        let ours = neap::UdpSocket::bind(&stack, (Family::V4.ours(), 0)).expect("bind");
        // One datagram in 50 ms.
        ours.set_max_pacing_rate(Some(20_000)).expect("set");
        let counts = on_runtime(1, async {
            let theirs = tokio::net::UdpSocket::bind((Family::V4.kernel(), 0)).await;
            let theirs = theirs.expect("bind");
            let to = theirs.local_addr().expect("an address");
            let ours = neap::tokio::UdpSocket::from_blocking(ours).expect("a runtime");
            let mut counts = Vec::new();
            while counts.len() < 20 && !counts.iter().any(|count| *count <= 2) {
                for _ in 0..14 {
                    ours.send_to(&[0; 972], to).await.expect("sent");
                }
                let mut before = 0;
                for number in 0..14 {
                    if number == 3 {
                        before = sleeps_of_worker();
                    }
                    theirs.recv(&mut [0; 1000]).await.expect("a datagram");
                }
                counts.push(sleeps_of_worker() - before);
            }
            counts
        });
        assert!(counts.iter().any(|count| *count <= 2), "{counts:?} wake-ups for 11 departures");
    });
}
