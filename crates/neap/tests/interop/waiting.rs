//! Ways to wait: several threads, non-blocking mode, timeouts.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use neap::ConnectOptions;
use neap::SocketOption;
use neap::{Event, Events, Poller};

use crate::asleep::{announce, announcement, until_all_asleep};
use crate::common::{Family, Pattern, expect_end, in_namespace};

/// Sends all that comes back until the end.
fn echo(stream: &TcpStream) {
    std::io::copy(&mut &*stream, &mut &*stream).expect("an echo");
    stream.shutdown(Shutdown::Write).expect("shutdown");
}

#[test]
fn threads_share_a_stream() {
    const LEN: u64 = 24 << 20;
    in_namespace(|| {
        let family = Family::V4;
        let stack = family.stack();
        let (ours, theirs) = family.pair(&stack);
        let pattern = Pattern(1);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| echo(&theirs));
            scope.spawn(|| {
                pattern.send(&mut &ours, LEN);
                ours.shutdown(Shutdown::Write).expect("shutdown");
            });
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut last = 0;
                    while !is_over.load(Ordering::SeqCst) {
                        let acked = ours.info().bytes_acked;
                        assert!(acked >= last, "acknowledged bytes went back");
                        last = acked;
                        ours.set_option(SocketOption::QuickAck(1)).expect("an option");
                        stack.host().flows();
                    }
                });
            }
            pattern.receive(&mut &ours, LEN);
            expect_end(&mut &ours);
            is_over.store(true, Ordering::SeqCst);
        });
        assert_eq!(ours.info().bytes_acked, LEN + 2, "SYN and FIN count");
    });
}

#[test]
fn a_reader_that_waits_is_woken_by_shutdown_from_another_thread() {
    in_namespace(|| {
        let stack = Family::V4.stack();
        let (ours, theirs) = Family::V4.pair(&stack);
        let (say, hear) = announcement();
        thread::scope(|scope| {
            let (ours, say) = (&ours, &say);
            let read = |_| {
                scope.spawn(move || {
                    announce(say);
                    { ours }.read(&mut [0; 16])
                })
            };
            let readers: Vec<_> = (0..3).map(read).collect();
            until_all_asleep(&hear, 3);
            ours.shutdown(Shutdown::Read).expect("shutdown");
            for reader in readers {
                assert_eq!(reader.join().expect("a reader").expect("the end"), 0);
            }
        });
        drop(theirs);
    });
}

#[test]
fn a_non_blocking_stream_says_so_and_loses_nothing() {
    const LEN: u64 = 8 << 20;
    in_namespace(|| {
        let family = Family::V4;
        let stack = family.stack();
        let (mut ours, theirs) = family.pair(&stack);
        ours.set_nonblocking(true).expect("a mode");
        let refused = ours.read(&mut [0; 16]).expect_err("nothing is there");
        assert_eq!(refused.kind(), ErrorKind::WouldBlock);
        let pattern = Pattern(2);
        // Nobody reads yet: the buffers of both ends fill up.
        let data = pattern.bytes(LEN as usize);
        let mut sent = 0;
        while sent < data.len() {
            match ours.write(&data[sent..]) {
                Ok(written) => sent += written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(sent > 0);
        thread::scope(|scope| {
            scope.spawn(|| echo(&theirs));
            scope.spawn(|| {
                let mut ours = &ours;
                let mut sent = sent;
                while sent < data.len() {
                    match ours.write(&data[sent..]) {
                        Ok(written) => sent += written,
                        Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                    }
                }
                ours.shutdown(Shutdown::Write).expect("shutdown");
            });
            let mut ours = &ours;
            let mut got = 0;
            let mut buf = vec![0; 1 << 16];
            loop {
                match ours.read(&mut buf) {
                    Ok(0) => break,
                    Ok(len) => {
                        pattern.check(got, &buf[..len]);
                        got += len as u64;
                    }
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
            }
            assert_eq!(got, LEN);
        });
    });
}

#[test]
fn a_connection_is_opened_without_waiting() {
    in_namespace(|| {
        let family = Family::V4;
        let stack = family.stack();
        let (listener, address) = family.kernel_listener();
        let options = ConnectOptions::default();
        let open = |address, options| {
            let stream = neap::TcpStream::connect_nonblocking(&stack, address, options);
            let stream = stream.expect("a SYN on its way");
            let poller = Poller::new().expect("a poller");
            poller.add(&stream, 7, Events::OUT).expect("a socket");
            let mut events = Vec::new();
            poller.wait(&mut events, None).expect("events");
            (stream, events)
        };
        let (mut stream, events) = open(address, options.clone());
        let ready = Event { token: 7, events: Events::OUT };
        assert_eq!(events, [ready]);
        assert!(stream.take_error().expect("a state").is_none());
        stream.write_all(b"x").expect("a byte");
        let (mut theirs, _) = listener.accept().expect("accept");
        theirs.read_exact(&mut [0]).expect("a byte");
        drop(listener);
        let (stream, events) = open(address, options);
        assert!(events[0].events.contains(Events::ERR | Events::HUP | Events::OUT), "{events:?}");
        let error = stream.take_error().expect("a state").expect("an error");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    });
}

#[test]
fn timeouts_of_reads_and_writes() {
    in_namespace(|| {
        let family = Family::V4;
        let stack = family.stack();
        let (mut ours, theirs) = family.pair(&stack);
        let short = Some(Duration::from_millis(30));
        let zero = ours.set_read_timeout(Some(Duration::ZERO)).expect_err("zero is no timeout");
        assert_eq!(zero.kind(), ErrorKind::InvalidInput);
        ours.set_read_timeout(short).expect("a timeout");
        ours.set_write_timeout(short).expect("a timeout");
        assert_eq!(ours.read_timeout().expect("a timeout"), short);
        let late = ours.read(&mut [0; 16]).expect_err("nothing comes");
        assert_eq!(late.kind(), ErrorKind::WouldBlock);
        let pattern = Pattern(3);
        let mut chunk = vec![0; 100_000];
        let mut sent = 0;
        let late = loop {
            pattern.fill(sent, &mut chunk);
            match ours.write(&chunk) {
                Ok(written) => sent += written as u64,
                Err(error) => break error,
            }
        };
        assert_eq!(late.kind(), ErrorKind::WouldBlock);
        // The connection is none the worse for it.
        thread::scope(|scope| {
            scope.spawn(|| {
                pattern.receive(&mut &theirs, sent);
                expect_end(&mut &theirs);
                (&theirs).write_all(b"thanks").expect("a reply");
            });
            ours.shutdown(Shutdown::Write).expect("shutdown");
            ours.set_read_timeout(None).expect("no timeout");
            let mut reply = [0; 6];
            ours.read_exact(&mut reply).expect("a reply");
            assert_eq!(&reply, b"thanks");
        });
    });
}

/// There is room again and again before the timeout is over: a minute's worth at this rate.
#[test]
fn the_write_timeout_counts_for_all_of_a_send() {
    in_namespace(|| {
        let family = Family::V4;
        let stack = family.stack();
        let (ours, theirs) = family.pair(&stack);
        ours.set_max_pacing_rate(Some(1 << 20)).expect("a rate");
        ours.set_write_timeout(Some(Duration::from_millis(200))).expect("a timeout");
        let pattern = Pattern(4);
        let data = pattern.bytes(64 << 20);
        thread::scope(|scope| {
            let reader = scope.spawn(|| std::io::copy(&mut &theirs, &mut std::io::sink()));
            let sent = ours.send(&data, neap::WriteFlags::empty()).expect("a part");
            assert!(sent > 0 && sent < data.len(), "{sent}");
            drop(ours);
            assert_eq!(reader.join().expect("a reader").expect("received"), sent as u64);
        });
    });
}

#[test]
fn a_send_that_took_a_part_leaves_the_error_to_the_next_call() {
    in_namespace(|| {
        let family = Family::V4;
        let stack = family.stack();
        let data = vec![0; 20 << 20];
        for is_copied in [true, false] {
            let send = |ours: &neap::TcpStream| match is_copied {
                true => ours.send(&data, neap::WriteFlags::empty()),
                false => ours.send_bytes(&mut data.clone().into()),
            };
            let (ours, mut theirs) = family.pair(&stack);
            thread::scope(|scope| {
                let sender = scope.spawn(|| send(&ours));
                // What follows is more than the buffers hold.
                theirs.read_exact(&mut [0]).expect("a byte");
                rustix::net::sockopt::set_socket_linger(&theirs, Some(Duration::ZERO))
                    .expect("an option");
                drop(theirs);
                let sent = sender.join().expect("a thread").expect("a part");
                assert!(sent > 0 && sent < data.len(), "{sent}");
            });
            for kind in [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe] {
                assert_eq!(send(&ours).expect_err("it is over").kind(), kind);
            }
        }
    });
}

#[test]
fn vectored_reads_and_writes_take_all_slices_in_one_call() {
    in_namespace(|| {
        let family = Family::V4;
        let stack = family.stack();
        let (mut ours, mut theirs) = family.pair(&stack);
        let pattern = Pattern(6);
        let data = pattern.bytes(10_000);
        let slices: Vec<_> = data.chunks(1000).map(std::io::IoSlice::new).collect();
        assert_eq!(ours.write_vectored(&slices).expect("written"), data.len());
        pattern.receive(&mut theirs, data.len() as u64);
        theirs.write_all(&data).expect("written");
        while ours.peek(&mut vec![0; data.len()]).expect("data") < data.len() {}
        let mut parts = [vec![0; 3000], Vec::new(), vec![0; 6000], vec![0; 2000]];
        let mut bufs = parts.each_mut().map(|part| std::io::IoSliceMut::new(part));
        assert_eq!(ours.read_vectored(&mut bufs).expect("read"), data.len());
        pattern.check(0, &parts.concat()[..data.len()]);
        // A write that is larger than the buffer is short, and the rest comes in later ones.
        let data = pattern.bytes(6 << 20);
        let reader = thread::spawn(move || {
            pattern.receive(&mut theirs, 6 << 20);
            expect_end(&mut theirs);
        });
        let mut done = 0;
        while done < data.len() {
            let slices: Vec<_> = data[done..].chunks(100_000).map(std::io::IoSlice::new).collect();
            done += ours.write_vectored(&slices).expect("written");
        }
        drop(ours);
        reader.join().expect("the reader");
    });
}
