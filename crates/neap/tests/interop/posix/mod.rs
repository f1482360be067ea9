//! The socket interface of a C library on a running stack: calls that wait, from several threads.

mod blocking;
mod epoll;
mod foreign;
mod pipes;
mod stress;
mod threads;

use crate::asleep::{announce, announcement, until_all_asleep, until_asleep};
use crate::common::{Family, eventually};
use neap::Stack;
use neap::posix::abi::*;
use neap::posix::sockaddr::{Encoded, encode};
use neap::posix::{Fd, PollFd, Process};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

/// Time in which something that must not come would have come, in milliseconds.
const MOMENT: i32 = 20;

/// A stack on a TUN, and a process on it.
fn process() -> (Stack, Process) {
    let stack = Family::V4.stack();
    let posix = stack.posix(3);
    (stack, posix)
}

fn ours(port: u16) -> Encoded {
    encode(SocketAddr::new(Family::V4.ours(), port))
}

fn tcp(posix: &Process) -> Fd {
    posix.socket(AF_INET, SOCK_STREAM, 0).expect("a descriptor")
}

fn udp(posix: &Process) -> Fd {
    posix.socket(AF_INET, SOCK_DGRAM, 0).expect("a descriptor")
}

/// A connection that the process opened, and the kernel's end of it.
fn pair(posix: &Process) -> (Fd, TcpStream) {
    let (listener, address) = Family::V4.kernel_listener();
    let fd = tcp(posix);
    posix.connect(fd, &encode(address)).expect("somebody listens");
    let (theirs, _) = listener.accept().expect("a connection");
    theirs.set_nodelay(true).expect("an option");
    (fd, theirs)
}

/// A listener of the process and its address.
fn listener(posix: &Process) -> (Fd, SocketAddr) {
    let fd = tcp(posix);
    posix.bind(fd, &ours(0)).expect("a free port");
    posix.listen(fd, 64).expect("bound");
    (fd, posix.getsockname(fd).expect("a socket"))
}

/// A UDP socket of the kernel and its address.
fn kernel_udp() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind((Family::V4.kernel(), 0)).expect("bind");
    let address = socket.local_addr().expect("an address");
    (socket, address)
}

/// What `poll` finds within `timeout_ms`.
fn poll_one(posix: &Process, fd: Fd, events: u32, timeout_ms: i32) -> u32 {
    let mut fds = [PollFd { fd, events: events as i16, revents: 0 }];
    posix.poll(&mut fds, timeout_ms).expect("no error");
    u32::from(fds[0].revents as u16)
}

/// `SO_RCVTIMEO` or `SO_SNDTIMEO`.
fn set_timeout(posix: &Process, fd: Fd, name: i32, timeout: Duration) {
    let mut value = [0; 16];
    value[..8].copy_from_slice(&timeout.as_secs().to_ne_bytes());
    value[8..].copy_from_slice(&u64::from(timeout.subsec_micros()).to_ne_bytes());
    posix.setsockopt(fd, SOL_SOCKET, name, &value).expect("a timeout");
}
