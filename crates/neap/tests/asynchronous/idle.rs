//! Tasks that wait wake nobody.

use std::io::Write;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use neap::Stack;
use tokio::io::AsyncReadExt;
use tokio::task::JoinSet;

use crate::common::{
    Family, expect_one_wake_up_for_each_probe, expect_that_nothing_wakes, in_namespace, run,
    sleeps_of,
};
use crate::on_runtime;

/// A stack whose peer sends nothing on its own account.
fn quiet_stack() -> Stack {
    run("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1");
    Family::V4.stack()
}

/// A thread with a runtime, one task of which reads from each of the connections. It returns the
/// number of the connection that something comes on.
fn read_each(connections: Vec<neap::TcpStream>) -> JoinHandle<usize> {
    let reading = async move {
        let mut tasks = JoinSet::new();
        for (number, ours) in connections.into_iter().enumerate() {
            let mut ours = neap::tokio::TcpStream::from_blocking(ours).expect("a runtime");
            tasks.spawn(async move { ours.read_u8().await.map(|_| number) });
        }
        tasks.join_next().await.expect("a task").expect("it ends").expect("data")
    };
    thread::spawn(move || on_runtime(1, reading))
}

#[test]
fn a_thousand_tasks_that_read_are_not_woken() {
    in_namespace(|| {
        let stack = quiet_stack();
        let (ours, mut theirs): (Vec<_>, Vec<_>) =
            Family::V4.pairs(&stack, 1000).into_iter().unzip();
        let reading = read_each(ours);
        expect_that_nothing_wakes();
        theirs[700].write_all(b"a").expect("write");
        assert_eq!(reading.join().expect("a thread"), 700);
    });
}

#[test]
fn a_timer_wakes_a_runtime_once() {
    in_namespace(|| {
        let stack = quiet_stack();
        let (ours, mut theirs): (Vec<_>, Vec<_>) =
            Family::V4.probed_pairs(&stack).into_iter().unzip();
        let reading = read_each(ours);
        expect_one_wake_up_for_each_probe(&stack);
        theirs[2].write_all(b"a").expect("write");
        assert_eq!(reading.join().expect("a thread"), 2);
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
        let stack = quiet_stack();
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

/// Requests that come often, but each after the end of a lease that the one before began. Where the
/// machine is busy the task or the next request may be late, and the worker looks: then the same is
/// tried again. A worker that is woken for each packet has at least 50.
#[test]
fn packets_that_a_task_serves_do_not_wake_the_worker() {
    const FEW: u64 = 25;
    in_namespace(|| {
        let stack = quiet_stack();
        let ours = neap::UdpSocket::bind(&stack, (Family::V4.ours(), 0)).expect("bind");
        let to = ours.local_addr().expect("an address");
        let server = thread::spawn(move || on_runtime(1, echo(ours)));
        let theirs = std::net::UdpSocket::bind((Family::V4.kernel(), 0)).expect("bind");
        let request = |text: &[u8]| {
            theirs.send_to(text, to).expect("sent");
            theirs.recv(&mut [0; 1000]).expect("an answer");
        };
        let mut counts = Vec::new();
        while counts.len() < 20 && !counts.iter().any(|count| *count <= FEW) {
            let before = sleeps_of_worker();
            for _ in 0..50 {
                request(b"a");
                thread::sleep(Duration::from_millis(10));
            }
            counts.push(sleeps_of_worker() - before);
        }
        request(b"");
        server.join().expect("a thread");
        assert!(counts.iter().any(|count| *count <= FEW), "{counts:?} wake-ups for 50 requests");
    });
}

/// Answers each datagram, until an empty one is answered.
async fn echo(ours: neap::UdpSocket) {
    let ours = neap::tokio::UdpSocket::from_blocking(ours).expect("a runtime");
    let mut buffer = [0; 1000];
    loop {
        let (length, from) = ours.recv_from(&mut buffer).await.expect("a datagram");
        ours.send_to(&buffer[..length], from).await.expect("sent");
        if length == 0 {
            return;
        }
    }
}
