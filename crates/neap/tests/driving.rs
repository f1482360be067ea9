//! Who drives a stack while threads, tasks and interfaces come and go. Over sockets of the kernel
//! as devices, which need no privileges.

#[path = "../examples/device.rs"]
#[allow(dead_code, reason = "an example has a `main`")]
mod device;

use neap::{InterfaceConfig, Stack};
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// A stack, and the other end of its device.
fn stack() -> (Stack, UnixDatagram) {
    let (near, far) = UnixDatagram::pair().expect("sockets");
    let device = device::device("end", near).expect("a device");
    let stack = Stack::builder().device(device).address("10.1.0.1/24").build();
    far.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    (stack.expect("a stack"), far)
}

/// The interface of a network of its own.
fn interface(net: u8, near: UnixDatagram) -> InterfaceConfig {
    let device = device::device("one", near).expect("a device");
    InterfaceConfig::new(device).address(format!("10.{net}.0.1/24").parse().expect("an address"))
}

/// The checksum of the Internet (RFC 1071).
fn sum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes.chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1]));
    let sum: u32 = words.sum();
    (!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes()
}

/// An echo request.
fn ping(from: [u8; 4], to: [u8; 4]) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 28, 0, 1, 0, 0, 64, 1, 0, 0];
    packet.extend(from.into_iter().chain(to));
    let header = sum(&packet);
    packet[10..12].copy_from_slice(&header);
    let mut echo = [8, 0, 0, 0, 0, 7, 0, 1];
    let check = sum(&echo);
    echo[2..4].copy_from_slice(&check);
    packet.extend(echo);
    packet
}

#[test]
fn interfaces_that_come_while_others_go_are_heard() {
    let (stack, _far) = stack();
    let is_over = AtomicBool::new(false);
    let add = |net| {
        let (near, far) = UnixDatagram::pair().expect("sockets");
        (far, stack.add_interface(interface(net, near)).expect("an interface"))
    };
    let mut added = Vec::new();
    thread::scope(|scope| {
        for net in 2..4 {
            let (is_over, add, stack) = (&is_over, &add, &stack);
            scope.spawn(move || {
                while !is_over.load(Ordering::SeqCst) {
                    let (_far, id) = add(net);
                    stack.remove_interface(id).expect("it is there");
                }
            });
        }
        added.extend((10..210).map(|net| (net, add(net).0)));
        is_over.store(true, Ordering::SeqCst);
    });
    for (net, far) in added {
        far.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        far.send(&ping([10, net, 0, 2], [10, net, 0, 1])).expect("a packet");
        let answer = far.recv(&mut [0; 100]);
        assert!(answer.is_ok(), "nobody hears what comes to the interface of {net}: {answer:?}");
    }
}

#[cfg(feature = "tokio")]
#[test]
fn timers_go_on_while_the_runtime_of_the_task_does_not_run() {
    let (stack, far) = stack();
    let runtime = runtime();
    let listener = runtime.block_on(async {
        let listener = neap::tokio::TcpListener::bind(&stack, "10.1.0.1:80").await;
        // The task that drives sleeps then.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        listener.expect("a port")
    });
    let to = "10.1.0.9:80".parse().expect("an address");
    let options = neap::ConnectOptions::default();
    let _stream = neap::TcpStream::connect_nonblocking(&stack, to, options).expect("a SYN");
    for count in 1..=3 {
        assert!(far.recv(&mut [0; 2000]).is_ok(), "SYN {count} does not leave");
    }
    drop(listener);
}

/// A runtime with one thread.
#[cfg(feature = "tokio")]
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// A runtime that nobody runs, and a listener of it.
#[cfg(feature = "tokio")]
fn idle_runtime(stack: &Stack) -> (tokio::runtime::Runtime, neap::tokio::TcpListener) {
    let runtime = runtime();
    let listener = runtime.block_on(neap::tokio::TcpListener::bind(stack, "10.1.0.1:80"));
    (runtime, listener.expect("a port"))
}

#[cfg(feature = "tokio")]
#[test]
fn the_sockets_of_a_runtime_are_driven_by_it_beside_one_that_does_not_run() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let (stack, far) = stack();
    let device = device::device("far", far).expect("a device");
    let peer = Stack::builder().device(device).address("10.1.0.9/24").build().expect("a stack");
    let listener = neap::TcpListener::bind(&peer, "10.1.0.9:80").expect("a port");
    thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            let _ = std::io::copy(&mut &stream, &mut &stream);
        }
    });
    let (idle, _listener) = idle_runtime(&stack);
    let runtime = runtime();
    let drives = || runtime.metrics().num_alive_tasks() > 0;
    runtime.block_on(async {
        // Whether the first connection waits for the other task long enough is chance.
        for count in (0..200).take_while(|_| !drives()) {
            let stream = neap::tokio::TcpStream::connect(&stack, "10.1.0.9:80").await;
            let mut stream = stream.expect("a connection");
            stream.write_u8(count).await.expect("written");
            assert_eq!(stream.read_u8().await.expect("read"), count);
        }
    });
    assert!(drives(), "it does not drive");
    // The task whose place was taken ends when it is run.
    idle.block_on(async {
        while idle.metrics().num_alive_tasks() > 0 {
            tokio::task::yield_now().await;
        }
    });
}

#[cfg(feature = "tokio")]
#[test]
fn a_socket_that_is_made_outside_of_a_runtime_is_refused_while_a_runtime_drives() {
    let (stack, _far) = stack();
    let (_idle, _listener) = idle_runtime(&stack);
    let mut made = std::pin::pin!(neap::tokio::TcpStream::connect(&stack, "10.1.0.9:80"));
    let context = &mut std::task::Context::from_waker(std::task::Waker::noop());
    match made.as_mut().poll(context) {
        std::task::Poll::Ready(Err(error)) => assert_eq!(error.kind(), std::io::ErrorKind::Other),
        other => panic!("{other:?}"),
    }
}
