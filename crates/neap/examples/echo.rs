//! An echo server for thousands of connections in one thread, with a `Poller`.
//!
//! `echo TUN KERNEL_CIDR OUR_CIDR PORT`, for instance `echo neap0 10.9.0.1/24 10.9.0.2/24 7`.
//! Needs `CAP_NET_ADMIN`.

use neap::{Events, Poller, Stack, TcpListener, TcpStream};
use std::collections::HashMap;
use std::error::Error;
use std::io::{self, ErrorKind, Read, Write};

/// Token of the listener; connections count up from 1.
const LISTENER: u64 = 0;

/// A connection, and bytes that were read and not written back.
struct Connection {
    stream: TcpStream,
    pending: Vec<u8>,
}

impl Connection {
    /// Echoes as much as goes without waiting. Returns whether the connection is over.
    fn turn(&mut self, part: &mut [u8]) -> io::Result<bool> {
        loop {
            // What does not go now is kept, and nothing more is read meanwhile.
            while !self.pending.is_empty() {
                match self.stream.write(&self.pending) {
                    Ok(written) => drop(self.pending.drain(..written)),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                    Err(error) => return Err(error),
                }
            }
            match self.stream.read(part) {
                Ok(0) => return Ok(true),
                Ok(read) => self.pending.extend_from_slice(&part[..read]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Serves until `connections` have come and gone.
///
/// # Errors
/// Why waiting or accepting failed.
pub(crate) fn serve(listener: &TcpListener, connections: u64) -> io::Result<()> {
    let poller = Poller::new()?;
    listener.set_nonblocking(true)?;
    poller.add(listener, LISTENER, Events::IN | Events::ET)?;
    let mut open = HashMap::new();
    let (mut accepted, mut gone) = (LISTENER, 0);
    let mut events = Vec::new();
    let mut part = vec![0; 64 << 10];
    while gone < connections {
        poller.wait(&mut events, None)?;
        for event in &events {
            if event.token == LISTENER {
                // An edge tells of the first connection: take all that wait.
                while let Some(stream) = accept(listener)? {
                    stream.set_nonblocking(true)?;
                    accepted += 1;
                    poller.add(&stream, accepted, Events::IN | Events::OUT | Events::ET)?;
                    open.insert(accepted, Connection { stream, pending: Vec::new() });
                }
            } else if let Some(connection) = open.get_mut(&event.token) {
                // A connection that failed concerns nobody else.
                if connection.turn(&mut part).unwrap_or(true) {
                    // Its drop closes it, and takes it out of the poller.
                    open.remove(&event.token);
                    gone += 1;
                }
            }
        }
    }
    Ok(())
}

/// The next connection, or `None` if none waits.
fn accept(listener: &TcpListener) -> io::Result<Option<TcpStream>> {
    match listener.accept() {
        Ok((stream, _)) => Ok(Some(stream)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

#[allow(dead_code)] // The tests use the rest.
fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [tun, kernel, ours, port] = &args[..] else {
        return Err("echo TUN KERNEL_CIDR OUR_CIDR PORT".into());
    };
    let stack = Stack::builder().tun(tun).host_address(kernel).address(ours).build()?;
    serve(&TcpListener::bind(&stack, format!("0.0.0.0:{port}"))?, u64::MAX)?;
    Ok(())
}
