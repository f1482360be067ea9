//! A resolver of the host.

use std::net::UdpSocket;
use std::thread;

/// Answers each question at port 53 of an address: with the question, `mark` behind it, and no
/// error.
pub(crate) fn resolver(address: &str, mark: &'static [u8]) {
    let socket = UdpSocket::bind((address, 53)).expect("a port");
    thread::spawn(move || {
        let mut question = [0; 100];
        while let Ok((count, from)) = socket.recv_from(&mut question) {
            question[2] |= 0x80;
            let answer = [&question[..count], mark].concat();
            socket.send_to(&answer, from).expect("sent");
        }
    });
}
