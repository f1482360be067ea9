//! TCP and UDP under tokio.

use std::future::Future;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use neap::SocketOption;
use neap::tokio::{TcpListener, TcpStream, UdpSocket};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest};

use crate::common::{
    Family, Pattern, expect_end, expect_nothing_below, expect_nothing_left, fill, in_namespace, run,
};
use crate::on_runtime;

/// A stream of the stack under tokio, and the kernel's end.
async fn pair(stack: &neap::Stack) -> (TcpStream, std::net::TcpStream) {
    let (listener, address) = Family::V4.kernel_listener();
    let ours = TcpStream::connect(stack, address).await.expect("connect");
    (ours, listener.accept().expect("accept").0)
}

pub(crate) fn poll_once<F: Future>(future: F) -> Poll<F::Output> {
    pin!(future).as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn streams_carry_data_both_ways_in_two_tasks() {
    const LEN: u64 = 8 << 20;
    in_namespace(|| {
        for threads in [1, 2] {
            let stack = Family::V4.stack();
            on_runtime(threads, async {
                let (ours, theirs) = pair(&stack).await;
                let echo = thread::spawn(move || {
                    std::io::copy(&mut &theirs, &mut &theirs).expect("an echo");
                    theirs.shutdown(Shutdown::Write).expect("shutdown");
                });
                let (mut reader, mut writer) = ours.into_split();
                let write = tokio::spawn(async move {
                    writer.write_all(&Pattern(1).bytes(LEN as usize)).await.expect("a write");
                    // The writer's end says that it was all.
                });
                let mut all = Vec::new();
                reader.read_to_end(&mut all).await.expect("the echo");
                assert_eq!(all.len() as u64, LEN);
                Pattern(1).check(0, &all);
                write.await.expect("a task");
                echo.join().expect("a thread");
            });
            drop(stack);
        }
    });
}

#[test]
fn copy_bidirectional_makes_a_proxy() {
    const LEN: u64 = 4 << 20;
    const CLIENTS: u64 = 8;
    in_namespace(|| {
        let family = Family::V4;
        let stack = family.stack();
        let (echo, to) = family.kernel_listener();
        on_runtime(1, async {
            let listener = TcpListener::bind(&stack, (family.ours(), 0)).await.expect("bind");
            let address = listener.local_addr().expect("an address");
            let clients: Vec<_> = (0..CLIENTS)
                .map(|seed| {
                    thread::spawn(move || {
                        let stream = std::net::TcpStream::connect(address).expect("connect");
                        thread::scope(|scope| {
                            scope.spawn(|| {
                                Pattern(seed).send(&mut &stream, LEN);
                                stream.shutdown(Shutdown::Write).expect("shutdown");
                            });
                            Pattern(seed).receive(&mut &stream, LEN);
                            expect_end(&mut &stream);
                        });
                    })
                })
                .collect();
            thread::spawn(move || {
                for stream in echo.incoming().take(CLIENTS as usize) {
                    let stream = stream.expect("accept");
                    thread::spawn(move || {
                        std::io::copy(&mut &stream, &mut &stream).expect("an echo");
                        stream.shutdown(Shutdown::Write).expect("shutdown");
                    });
                }
            });
            let mut proxied = Vec::new();
            for _ in 0..CLIENTS {
                let (mut near, _) = listener.accept().await.expect("accept");
                let mut far = TcpStream::connect(&stack, to).await.expect("connect");
                proxied.push(tokio::spawn(async move {
                    tokio::io::copy_bidirectional(&mut near, &mut far).await.expect("a copy")
                }));
            }
            for copy in proxied {
                assert_eq!(copy.await.expect("a task"), (LEN, LEN));
            }
            for client in clients {
                client.join().expect("a thread");
            }
        });
        expect_nothing_below(&stack);
    });
}

#[test]
fn writers_are_woken_below_half_of_the_mark() {
    const LEN: usize = 2 << 20;
    in_namespace(|| {
        let stack = Family::V4.stack();
        for mark in [1, 10_000, 200_000] {
            on_runtime(1, async {
                let (mut ours, theirs) = pair(&stack).await;
                ours.get_ref().set_option(SocketOption::NotSentLowat(mark)).expect("an option");
                let reader = thread::spawn(move || {
                    Pattern(2).receive(&mut &theirs, LEN as u64);
                    expect_end(&mut &theirs);
                });
                let data = Pattern(2).bytes(LEN);
                let mut sent = 0;
                while sent < data.len() {
                    ours.writable().await.expect("room");
                    let unsent = ours.get_ref().outq_nsd();
                    assert!(2 * unsent < mark.max(2), "{unsent} of {mark}");
                    sent += ours.write(&data[sent..]).await.expect("a write");
                }
                ours.shutdown().await.expect("shutdown");
                reader.join().expect("a thread");
            });
        }
    });
}

#[test]
fn a_dropped_future_has_done_nothing() {
    in_namespace(|| {
        let family = Family::V4;
        let stack = family.stack();
        on_runtime(1, async {
            let listener = TcpListener::bind(&stack, (family.ours(), 0)).await.expect("bind");
            let address = listener.local_addr().expect("an address");
            let udp = UdpSocket::bind(&stack, (family.ours(), 0)).await.expect("bind");
            let (ours, mut theirs) = pair(&stack).await;
            for _ in 0..1000 {
                assert!(poll_once(listener.accept()).is_pending());
                assert!(poll_once(udp.recv_from(&mut [0; 10])).is_pending());
                assert!(poll_once(ours.readable()).is_pending());
                assert!(poll_once(ours.peek(&mut [0; 10])).is_pending());
            }
            let client = thread::spawn(move || std::net::TcpStream::connect(address));
            theirs.write_all(b"abc").expect("bytes");
            let sender = std::net::UdpSocket::bind((family.kernel(), 0)).expect("bind");
            let to = udp.local_addr().expect("an address");
            sender.send_to(b"datagram", to).expect("a datagram");
            let (stream, _) = listener.accept().await.expect("the client");
            // The kernel's end first: it keeps the TIME-WAIT.
            drop((client.join().expect("a thread"), stream));
            assert_eq!(udp.recv(&mut [0; 10]).await.expect("the datagram"), 8);
            assert_eq!(ours.peek(&mut [0; 10]).await.expect("the bytes"), 3);
            // A connect that is given up closes what it began.
            let nobody = (family.text("10.9.0.77", "::"), 9);
            for _ in 0..10 {
                assert!(poll_once(TcpStream::connect(&stack, nobody)).is_pending());
            }
            drop((listener, udp, ours));
        });
        expect_nothing_left(&stack, 0);
    });
}

#[test]
fn errors_come_as_they_do_from_std() {
    in_namespace(|| {
        let stack = Family::V4.stack();
        on_runtime(1, async {
            let (listener, address) = Family::V4.kernel_listener();
            drop(listener);
            let error = TcpStream::connect(&stack, address).await.expect_err("nobody listens");
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
            let (mut ours, theirs) = pair(&stack).await;
            rustix::net::sockopt::set_socket_linger(&theirs, Some(Duration::ZERO)).expect("linger");
            drop(theirs);
            let error = ours.read(&mut [0; 10]).await.expect_err("a reset");
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
            ours.shutdown().await.expect("as tokio's");
        });
        let outside = poll_once(TcpListener::bind(&stack, (Family::V4.ours(), 0)));
        assert!(matches!(outside, Poll::Ready(Err(_))), "there is no runtime here");
        let events = stack.events().expect("descriptors");
        let outside = poll_once(events.recv_async());
        assert!(matches!(outside, Poll::Ready(Err(_))), "there is no runtime here");
    });
}

#[test]
fn datagrams_are_echoed() {
    in_namespace(|| {
        let family = Family::V4;
        let stack = family.stack();
        on_runtime(2, async {
            let ours = UdpSocket::bind(&stack, (family.ours(), 0)).await.expect("bind");
            let to = ours.local_addr().expect("an address");
            let echo = tokio::spawn(async move {
                let mut buf = [0; 2000];
                for _ in 0..100 {
                    let (len, from) = ours.recv_from(&mut buf).await.expect("a datagram");
                    ours.send_to(&buf[..len], from).await.expect("room");
                }
            });
            let client = tokio::task::spawn_blocking(move || {
                let theirs = std::net::UdpSocket::bind((Family::V4.kernel(), 0)).expect("bind");
                for size in 1..=100 {
                    theirs.send_to(&Pattern(3).bytes(size * 10), to).expect("a datagram");
                    let mut buf = [0; 2000];
                    assert_eq!(theirs.recv(&mut buf).expect("the echo"), size * 10);
                    Pattern(3).check(0, &buf[..size * 10]);
                }
            });
            client.await.expect("the client");
            echo.await.expect("the echo");
        });
    });
}

#[test]
fn the_worker_drives_while_a_runtime_is_busy_and_after_it_ended() {
    in_namespace(|| {
        let stack = Family::V4.stack();
        let (ours, theirs) = on_runtime(1, async {
            let (mut ours, mut theirs) = pair(&stack).await;
            ours.write_all(b"x").await.expect("a byte");
            theirs.read_exact(&mut [0]).expect("a byte");
            // The runtime's only thread waits here for what only the stack's worker can bring.
            let received = || ours.get_ref().info().bytes_received;
            theirs.write_all(b"y").expect("a byte");
            crate::common::eventually(received, |bytes| *bytes == 1);
            (ours, theirs)
        });
        let taken = AtomicU64::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut ours = ours.get_ref();
                ours.set_nonblocking(false).expect("a mode");
                Pattern(4).send(&mut ours, 4 << 20);
                taken.store(1, Ordering::SeqCst);
                ours.shutdown(Shutdown::Write).expect("shutdown");
            });
            Pattern(4).receive(&mut &theirs, 4 << 20);
            expect_end(&mut &theirs);
        });
        assert_eq!(taken.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn close_waits_as_the_linger_time_says() {
    in_namespace(|| {
        let stack = Family::V4.stack();
        on_runtime(1, async {
            let (mut ours, mut theirs) = pair(&stack).await;
            let hour = Some(Duration::from_secs(3600));
            ours.get_ref().set_linger(hour).expect("an option");
            ours.write_all(b"to the last byte").await.expect("written");
            ours.close().await.expect("acknowledged");
            let mut got = Vec::new();
            theirs.read_to_end(&mut got).expect("all");
            assert_eq!(got, b"to the last byte");

            let (ours, _theirs) = pair(&stack).await;
            ours.get_ref().set_linger(Some(Duration::from_millis(50))).expect("an option");
            fill(ours.get_ref());
            let late = ours.close().await.expect_err("the peer reads nothing");
            assert_eq!(late.kind(), std::io::ErrorKind::WouldBlock);
        });
    });
}

#[test]
fn vectored_writes_take_all_slices() {
    in_namespace(|| {
        let stack = Family::V4.stack();
        on_runtime(1, async {
            let (mut ours, mut theirs) = pair(&stack).await;
            assert!(ours.is_write_vectored());
            let data = Pattern(5).bytes(9000);
            let slices: Vec<_> = data.chunks(900).map(std::io::IoSlice::new).collect();
            assert_eq!(ours.write_vectored(&slices).await.expect("written"), data.len());
            let mut got = vec![0; data.len()];
            theirs.read_exact(&mut got).expect("all");
            Pattern(5).check(0, &got);
            theirs.write_all(&data).expect("written");
            let mut done = 0;
            let mut parts = [vec![0; 4000], vec![0; 5000]];
            while done < data.len() {
                ours.readable().await.expect("data");
                let [first, second] = &mut parts;
                let skip = done.saturating_sub(first.len());
                let first = first.get_mut(done..).unwrap_or_default();
                let mut bufs = [first, &mut second[skip..]].map(std::io::IoSliceMut::new);
                done += ours.try_read_vectored(&mut bufs).expect("read");
            }
            Pattern(5).check(0, &parts.concat());
            let (reader, writer) = ours.into_split();
            assert_eq!(
                reader.peer_addr().expect("a peer"),
                theirs.local_addr().expect("an address")
            );
            writer.forget();
            theirs.write_all(b"x").expect("still open");
        });
    });
}

#[test]
fn batches_of_datagrams_come_back() {
    in_namespace(|| {
        let family = Family::V4;
        let stack = family.stack();
        on_runtime(1, async {
            let ours = UdpSocket::bind(&stack, (family.ours(), 0)).await.expect("bind");
            let theirs = std::net::UdpSocket::bind((family.kernel(), 0)).expect("bind");
            let peer = theirs.local_addr().expect("an address");
            let batch: Vec<_> =
                (0..50).map(|size| neap::Datagram::new(Pattern(1).bytes(size), peer)).collect();
            let mut sent = 0;
            while sent < batch.len() {
                sent += ours.send_batch(&batch[sent..]).await.expect("sent");
            }
            let echo = tokio::task::spawn_blocking(move || {
                let mut buf = [0; 100];
                for _ in 0..50 {
                    let (len, from) = theirs.recv_from(&mut buf).expect("a datagram");
                    theirs.send_to(&buf[..len], from).expect("sent");
                }
            });
            ours.readable().await.expect("a datagram");
            let (_, from) = ours.peek_from(&mut [0; 100]).await.expect("a datagram");
            assert_eq!(from, peer);
            let mut all = Vec::new();
            while all.len() < batch.len() {
                ours.recv_batch(&mut all, 64).await.expect("some");
            }
            assert!(all.iter().zip(&batch).all(|(got, sent)| got.data == sent.data));
            echo.await.expect("the echo");
            ours.connect(peer).await.expect("connect");
            assert_eq!(ours.peer_addr().expect("a peer"), peer);
            let none = ours.try_recv(&mut [0; 10]).expect_err("nothing is there");
            assert_eq!(none.kind(), std::io::ErrorKind::WouldBlock);
        });
    });
}

#[test]
fn a_forwarder_serves_tasks_from_every_address() {
    in_namespace(|| {
        let family = Family::V4;
        let stack = neap::Stack::builder()
            .tun("t0")
            .host_address(family.cidr(family.kernel()))
            .address(family.cidr(family.ours()))
            .any_destination(true)
            .build()
            .expect("a stack on a TUN");
        run("ip route add 192.0.2.0/24 dev t0");
        on_runtime(1, async {
            let options = neap::UdpForwarderOptions::default();
            let forwarder = neap::tokio::UdpForwarder::new(&stack, options).expect("a forwarder");
            let none = forwarder.try_recv().expect_err("nothing came");
            assert_eq!(none.kind(), std::io::ErrorKind::WouldBlock);
            let theirs = std::net::UdpSocket::bind((family.kernel(), 0)).expect("bind");
            theirs.connect("192.0.2.7:53").expect("a route");
            theirs.send(b"question").expect("sent");
            let asked = forwarder.recv().await.expect("a question");
            assert_eq!(asked.local, Some("192.0.2.7:53".parse().expect("an address")));
            forwarder.send(&asked.reply(&b"answer"[..])).await.expect("sent");
            let mut buf = [0; 10];
            assert_eq!(theirs.recv(&mut buf).expect("an answer"), 6);
            theirs.send(b"again").expect("sent");
            let mut all = Vec::new();
            assert_eq!(forwarder.recv_batch(&mut all, 9).await.expect("a question"), 1);
            // The port that asked is closed now: its host says so.
            forwarder.get_ref().set_receive_errors(true).expect("set");
            assert!(poll_once(forwarder.recv_error()).is_pending());
            drop(theirs);
            forwarder.send_batch(&[all[0].reply(&b"too late"[..])]).await.expect("sent");
            let record = forwarder.recv_error().await.expect("a record");
            assert_eq!((record.source, record.destination), (all[0].local, all[0].peer));
        });
    });
}

#[test]
fn readiness_is_told_by_interest() {
    in_namespace(|| {
        let stack = Family::V4.stack();
        on_runtime(1, async {
            let (ours, mut theirs) = pair(&stack).await;
            let both = Interest::READABLE | Interest::WRITABLE;
            let ready = ours.ready(both).await.expect("ready");
            assert!(ready.is_writable() && !ready.is_readable(), "{ready:?}");
            let refused = ours.try_io(Interest::READABLE, || -> std::io::Result<()> {
                panic!("called without data")
            });
            assert_eq!(refused.expect_err("no data").kind(), std::io::ErrorKind::WouldBlock);
            for _ in 0..3 {
                assert!(poll_once(ours.ready(Interest::READABLE)).is_pending());
            }
            theirs.write_all(b"data").expect("written");
            let mut buf = [0; 10];
            let read = ours.async_io(Interest::READABLE, || ours.try_read(&mut buf)).await;
            assert_eq!(read.expect("data"), 4);
            let (reader, writer) = ours.into_split();
            theirs.write_all(b"more").expect("written");
            reader.readable().await.expect("data");
            assert_eq!(reader.try_read(&mut buf).expect("data"), 4);
            writer.writable().await.expect("room");
            assert_eq!(writer.try_write(b"answer").expect("room"), 6);
            theirs.shutdown(Shutdown::Write).expect("shutdown");
            let ready = reader.ready(Interest::READABLE).await.expect("ready");
            assert!(ready.is_readable() && ready.is_read_closed(), "{ready:?}");

            let ours = UdpSocket::bind(&stack, (Family::V4.ours(), 0)).await.expect("bind");
            let theirs = std::net::UdpSocket::bind((Family::V4.kernel(), 0)).expect("bind");
            assert!(ours.ready(both).await.expect("ready").is_writable());
            let none = ours.try_peek_from(&mut buf).expect_err("nothing came");
            assert_eq!(none.kind(), std::io::ErrorKind::WouldBlock);
            theirs.send_to(b"data", ours.local_addr().expect("an address")).expect("sent");
            assert_eq!(ours.peek(&mut buf).await.expect("a datagram"), 4);
            let read = ours.async_io(Interest::READABLE, || ours.try_recv(&mut buf)).await;
            assert_eq!(read.expect("a datagram"), 4);
        });
    });
}

#[test]
fn a_task_answers_pings_of_foreign_addresses() {
    in_namespace(|| {
        let stack = neap::Stack::builder()
            .tun("t0")
            .host_address("10.9.0.1/24")
            .address("10.9.0.2/24")
            .any_destination(true)
            .build()
            .expect("a stack on a TUN");
        run("ip route add 203.0.113.0/24 via 10.9.0.2");
        on_runtime(1, async {
            let socket = neap::tokio::IcmpSocket::open(&stack, neap::IcmpOptions::default());
            let socket = socket.expect("a socket");
            assert!(poll_once(socket.recv()).is_pending());
            assert!(socket.try_recv().is_err());
            let ping = tokio::task::spawn_blocking(|| run("ping -n -c 2 -i 0.2 -W 30 203.0.113.9"));
            for _ in 0..2 {
                socket.readable().await.expect("a message");
                let message = socket.recv().await.expect("a message");
                assert_eq!(message.destination.to_string(), "203.0.113.9");
                socket.writable().await.expect("room");
                socket.send(&message.echo_reply().expect("a ping")).await.expect("a reply");
            }
            ping.await.expect("two answers");
        });
    });
}
