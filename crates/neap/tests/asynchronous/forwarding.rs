//! Connections that tasks decide about.

use std::io::ErrorKind;
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::thread;

use neap::time::Nanos;
use neap::tokio::{PendingConnection, TcpForwarder};
use neap::{Refusal, SocketOptions, Stack, TcpForwarderOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::common::foreign::{Forger, Link, Opening, addresses, stack};
use crate::common::{
    Family, Pattern, eventually, expect_end, expect_nothing_left, expect_that_nothing_wakes,
    in_namespace, run,
};
use crate::on_runtime;
use crate::sockets::poll_once;

fn at(family: Family, port: u16) -> SocketAddr {
    SocketAddr::new(addresses(family)[0], port)
}

fn forwarder(stack: &Stack) -> TcpForwarder {
    TcpForwarder::new(stack, TcpForwarderOptions::default()).expect("a forwarder")
}

/// Reads to the end, and sends all of it back.
async fn echo(pending: PendingConnection) -> usize {
    let mut stream = pending.accept(SocketOptions::default()).await.expect("a client");
    let mut all = Vec::new();
    stream.read_to_end(&mut all).await.expect("data");
    stream.write_all(&all).await.expect("room");
    stream.shutdown().await.expect("the end");
    all.len()
}

#[test]
fn tasks_accept_connections_to_every_address() {
    const CLIENTS: u64 = 24;
    const LEN: u64 = 300_000;
    in_namespace(|| {
        for (family, threads) in [(Family::V4, 1), (Family::V6, 2)] {
            let stack = stack(family, Link::Tun);
            let forwarder = neap::TcpForwarder::new(&stack, TcpForwarderOptions::default());
            let clients: Vec<_> = (0..CLIENTS)
                .map(|nth| {
                    thread::spawn(move || {
                        let address = addresses(family)[nth as usize % 3];
                        let to = SocketAddr::new(address, 1000 + nth as u16);
                        let stream = Opening::new(to).wait().expect("accepted");
                        thread::scope(|scope| {
                            scope.spawn(|| {
                                Pattern(nth).send(&mut &stream, LEN);
                                stream.shutdown(Shutdown::Write).expect("shutdown");
                            });
                            Pattern(nth).receive(&mut &stream, LEN);
                            expect_end(&mut &stream);
                        });
                    })
                })
                .collect();
            on_runtime(threads, async {
                let forwarder = TcpForwarder::from_blocking(forwarder.expect("a forwarder"));
                let forwarder = forwarder.expect("a runtime");
                let mut tasks = Vec::new();
                for _ in 0..CLIENTS {
                    let pending = forwarder.recv().await.expect("a SYN");
                    assert!(addresses(family).contains(&pending.local_addr().ip()));
                    assert_eq!(pending.peer_addr().ip(), family.kernel());
                    assert_eq!(pending.arrival().hop_limit, 64);
                    tasks.push(tokio::spawn(echo(pending)));
                }
                for task in tasks {
                    assert_eq!(task.await.expect("a task") as u64, LEN);
                }
            });
            for client in clients {
                client.join().expect("a client");
            }
            expect_nothing_left(&stack, 0);
        }
    });
}

#[test]
fn a_task_refuses_or_ignores_and_a_dropped_future_takes_nothing() {
    in_namespace(|| {
        let family = Family::V4;
        let stack = stack(family, Link::Tun);
        on_runtime(1, async {
            let forwarder = forwarder(&stack);
            assert!(poll_once(forwarder.recv()).is_pending());
            assert_eq!(forwarder.try_recv().expect_err("none").kind(), ErrorKind::WouldBlock);
            let refused = [
                (ErrorKind::ConnectionRefused, None),
                (ErrorKind::HostUnreachable, Some(Refusal::Host)),
                (ErrorKind::NetworkUnreachable, Some(Refusal::Network)),
            ];
            for (kind, refusal) in refused {
                let client = Opening::new(at(family, 80));
                let pending = forwarder.recv().await.expect("a SYN");
                match refusal {
                    None => pending.reset(),
                    Some(refusal) => pending.reject(refusal),
                }
                assert_eq!(client.refused(), kind);
            }
            let client = Opening::new(at(family, 80));
            forwarder.recv().await.expect("a SYN").ignore();
            let again = std::future::poll_fn(|cx| forwarder.poll_recv(cx)).await;
            let again = again.expect("the kernel tries again");
            assert_eq!(again.peer_addr(), client.local_addr());
            drop(again);
            assert_eq!(client.refused(), ErrorKind::ConnectionRefused);
            // A task that gives up while the handshake runs leaves nothing. The kernel may answer
            // before the future is asked, nobody answers for an address that it does not have.
            let client = Opening::new(at(family, 80));
            let pending = forwarder.recv().await.expect("a SYN");
            drop(poll_once(pending.accept(SocketOptions::default())));
            expect_end(&mut client.wait().expect("the SYN is answered"));
            let (forger, silent) = (Forger::new(family), SocketAddr::from(([10, 9, 0, 77], 4000)));
            forger.syn(silent, at(family, 80), 1000);
            let pending = forwarder.recv().await.expect("a SYN");
            assert!(poll_once(pending.accept(SocketOptions::default())).is_pending());
            forger.reset(silent, at(family, 80), 1001);
            let client = Opening::new(at(family, 80));
            let pending = forwarder.recv().await.expect("a SYN");
            drop(client);
            let error = pending.accept(SocketOptions::default()).await.expect_err("it has gone");
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            assert_eq!(forwarder.get_ref().queued(), (0, 0));
        });
        // The stack closed one of them first, so there is a TIME-WAIT.
        eventually(|| stack.host().usage().tcp.connections, |left| *left == 0);
    });
}

#[test]
fn a_task_that_asks_elsewhere_learns_that_there_is_nothing_to_decide() {
    in_namespace(|| {
        for family in Family::BOTH {
            let stack = stack(family, Link::Tun);
            on_runtime(2, async {
                let whole = forwarder(&stack);
                let forger = Forger::new(family);
                let from = SocketAddr::new(family.kernel(), 4000);
                // The client takes it back.
                forger.syn(from, at(family, 80), 1000);
                let pending = Arc::new(whole.recv().await.expect("a SYN"));
                assert!(poll_once(pending.ended()).is_pending());
                let ended = tokio::spawn({
                    let pending = pending.clone();
                    async move { pending.ended().await.kind() }
                });
                forger.reset(from, at(family, 80), 1001);
                assert_eq!(ended.await.expect("a task"), ErrorKind::ConnectionReset);
                let again = pending.ended().await.kind();
                assert_eq!(again, ErrorKind::ConnectionReset, "it stays");
                // The forwarder is gone.
                forger.syn(from, at(family, 81), 1000);
                let pending = whole.recv().await.expect("a SYN");
                let (ended, ()) = tokio::join!(pending.ended(), async { drop(whole) });
                assert_eq!(ended.kind(), ErrorKind::ConnectionAborted);
                // Its time is over.
                let expiry = Nanos::from_millis(500);
                let options = TcpForwarderOptions { expiry, ..TcpForwarderOptions::default() };
                let short = TcpForwarder::new(&stack, options).expect("a forwarder");
                forger.syn(from, at(family, 82), 1000);
                let pending = short.recv().await.expect("a SYN");
                assert_eq!(pending.ended().await.kind(), ErrorKind::TimedOut);
                // Which of two comes first decides.
                forger.syn(from, at(family, 83), 1000);
                let pending = short.recv().await.expect("a SYN");
                tokio::select! {
                    error = pending.ended() => assert_eq!(error.kind(), ErrorKind::TimedOut),
                    () = std::future::pending() => {}
                }
            });
        }
    });
}

#[test]
fn tasks_are_told_of_the_end_of_the_stack() {
    in_namespace(|| {
        let stack = stack(Family::V4, Link::Tun);
        on_runtime(2, async {
            let forwarder = Arc::new(forwarder(&stack));
            let held = Opening::new(at(Family::V4, 80));
            let pending = forwarder.recv().await.expect("a SYN");
            let waiting = tokio::spawn({
                let forwarder = forwarder.clone();
                async move { forwarder.recv().await.expect_err("the end").kind() }
            });
            let ended = tokio::spawn(async move { pending.ended().await.kind() });
            tokio::task::yield_now().await;
            drop(stack);
            assert_eq!(waiting.await.expect("a task"), ErrorKind::ConnectionAborted);
            assert_eq!(ended.await.expect("a task"), ErrorKind::ConnectionAborted);
            assert_eq!(held.refused(), ErrorKind::ConnectionRefused);
        });
    });
}

#[test]
fn a_runtime_sleeps_while_nobody_knocks_and_while_nobody_decides() {
    in_namespace(|| {
        run("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1");
        let stack = stack(Family::V4, Link::Tun);
        on_runtime(2, async {
            let forwarder = Arc::new(forwarder(&stack));
            let from = SocketAddr::new(Family::V4.kernel(), 4000);
            Forger::new(Family::V4).syn(from, at(Family::V4, 80), 1000);
            let pending = forwarder.recv().await.expect("a SYN");
            let ended = tokio::spawn(async move { pending.ended().await.kind() });
            let waiting = tokio::spawn({
                let forwarder = forwarder.clone();
                async move { forwarder.recv().await.map(drop) }
            });
            tokio::task::spawn_blocking(expect_that_nothing_wakes).await.expect("idle");
            eventually(|| forwarder.get_ref().queued(), |queued| *queued == (1, 0));
            drop(stack);
            ended.await.expect("a task");
            waiting.await.expect("a task").expect_err("the end");
        });
    });
}
