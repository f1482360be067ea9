//! A side that does not read holds the other one back: what is between the two is bounded, and
//! nothing of it is lost.

use super::namespace::in_namespace;
use super::{in_network, in_sandbox};
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

/// Bytes that pass before the reader stops, so that all buffers have grown.
const WARM: usize = 32 << 20;
/// Most bytes between a writer and a reader that has stopped: the receive buffer of the stack or
/// of the host, 1 MiB each, the mark of what is not sent, 1 MiB, one piece of 64 KiB in the relay,
/// and the small buffers of the two ends.
const MOST: usize = 4 << 20;
/// Buffers of the ends, which do not grow.
const BUFFER: usize = 64 << 10;
/// A writer that could write nothing for so long waits for its reader.
const STALL: Duration = Duration::from_secs(2);

/// Writes until the reader has stopped for long, tells it by `control`, and goes on.
fn write(mut stream: TcpStream, mut control: TcpStream) {
    set_socket_send_buffer_size(&stream, BUFFER).expect("a buffer");
    stream.set_write_timeout(Some(STALL)).expect("a timeout");
    let (piece, mut total) = ([7; 16 << 10], 0);
    let error = loop {
        match stream.write(&piece) {
            Ok(count) => total += count,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
    let between = total.checked_sub(WARM).expect("the reader had more to read");
    assert!(between <= MOST, "{between} bytes wait for a reader that has stopped");
    stream.set_write_timeout(None).expect("a timeout");
    control.write_all(&[1]).expect("the reader waits");
    stream.write_all(&[9]).expect("the reader goes on");
    drop(stream);
    // What is on its way ends with the sandbox, so the guest stays until the reader has all.
    assert_eq!(control.read(&mut [0]).expect("the reader ends"), 0);
}

/// Reads so many bytes, stops until the writer waits, and reads the rest.
fn read(mut stream: TcpStream, mut control: TcpStream) {
    set_socket_recv_buffer_size(&stream, BUFFER).expect("a buffer");
    io::copy(&mut (&stream).take(WARM as u64), &mut io::sink()).expect("bytes");
    control.read_exact(&mut [0]).expect("the writer tells");
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).expect("bytes");
    assert_eq!(rest.pop(), Some(9), "the end is lost");
    assert!(rest.iter().all(|&byte| byte == 7));
}

/// In the sandbox.
pub(super) fn guest(server: SocketAddr, writes: bool) {
    let connect = || TcpStream::connect(server).expect("the server accepts");
    let (stream, control) = (connect(), connect());
    if writes { write(stream, control) } else { read(stream, control) }
}

fn stalled(program: &str, server: fn(TcpStream, TcpStream)) {
    // What the host's kernel has for a socket that it receives by.
    let sizes = "4096 131072 1048576";
    std::fs::write("/proc/sys/net/ipv4/tcp_rmem", sizes).expect("a setting");
    let listener = TcpListener::bind((super::SERVER, 0)).expect("a port");
    let address = listener.local_addr().expect("an address");
    let thread = thread::spawn(move || {
        let accept = || listener.accept().expect("a connection").0;
        server(accept(), accept());
    });
    in_sandbox(program, &address.to_string(), &[]);
    thread.join().expect("served");
}

#[test]
fn a_server_that_does_not_read_holds_the_guest_back() {
    in_namespace(|| in_network(|| stalled("stalled writer", read)));
}

#[test]
fn a_guest_that_does_not_read_holds_the_server_back() {
    in_namespace(|| in_network(|| stalled("stalled reader", write)));
}
