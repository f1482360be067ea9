//! A device of one's own: two stacks in one process, over a cable that is a pair of sockets.
//!
//! `docs/extending/device.md` has the contract. Needs no privileges.

use neap::device::{
    Capabilities, Completed, Completion, Device, Frame, Medium, QueuePair, Received, RxChecksum,
    RxQueue, TxQueue,
};
use neap::time::{Instant, Nanos};
use neap::{Stack, TcpListener, TcpStream};
use std::error::Error;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;

const MTU: u16 = 1500;

/// The sending half: each packet is a datagram.
struct Tx {
    cable: UnixDatagram,
    completed: Completed,
    retry_at: Instant,
}

impl TxQueue for Tx {
    fn submit(&mut self, frame: Frame, now: Instant) -> Result<(), Frame> {
        self.retry_at = Instant::FAR_FUTURE;
        match self.cable.send(&frame.to_bytes()) {
            // The cable is full: the stack keeps the frame and comes back.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.retry_at = now + Nanos::from_millis(1);
                return Err(frame);
            }
            Err(_) | Ok(_) => {}
        }
        // The frame is dropped here, which is its completion, sent or lost.
        self.completed.frames += 1;
        self.completed.bytes += frame.len() as u64;
        Ok(())
    }

    fn flush(&mut self, _now: Instant) {}

    fn reap(&mut self, _now: Instant) -> Completed {
        std::mem::take(&mut self.completed)
    }

    fn next_event(&self) -> Instant {
        self.retry_at
    }
}

/// The receiving half.
struct Rx(UnixDatagram);

impl RxQueue for Rx {
    fn receive(&mut self, _now: Instant) -> Option<Received> {
        let mut buf = [0; MTU as usize];
        let len = self.0.recv(&mut buf).ok()?;
        let data = bytes::Bytes::copy_from_slice(&buf[..len]);
        Some(Received { data, gso_size: 0, checksum: RxChecksum::Unknown })
    }
}

/// A device at this end of a cable. The driver waits for the descriptor.
pub(crate) fn device(name: &str, end: UnixDatagram) -> io::Result<Device> {
    end.set_nonblocking(true)?;
    let cable = end.try_clone()?;
    let descriptor = Some(Arc::new(end.try_clone()?.into()));
    let retry_at = Instant::FAR_FUTURE;
    let tx = Box::new(Tx { cable, completed: Completed::default(), retry_at });
    let queues = vec![QueuePair { tx, rx: Box::new(Rx(end)), bulk: None, descriptor }];
    let capabilities = Capabilities::new(Medium::Ip, MTU, Completion::OnSubmit);
    Ok(Device { name: name.to_owned(), capabilities, queues, steering: None, monitor: None })
}

/// Sends a megabyte from one stack to the other.
///
/// # Errors
/// Whatever goes wrong.
pub(crate) fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let (one, other) = UnixDatagram::pair()?;
    let client = Stack::builder().device(device("one", one)?).address("10.1.0.1/24").build()?;
    let server = Stack::builder().device(device("other", other)?).address("10.1.0.2/24").build()?;
    let listener = TcpListener::bind(&server, "10.1.0.2:80")?;
    let mut stream = TcpStream::connect(&client, "10.1.0.2:80")?;
    let (mut accepted, _) = listener.accept()?;
    let writer = std::thread::spawn(move || stream.write_all(&vec![7; 1 << 20]));
    let mut received = Vec::new();
    accepted.read_to_end(&mut received)?;
    writer.join().expect("the writer does not panic")?;
    assert_eq!(received, vec![7; 1 << 20]);
    println!("{} bytes came over a cable of one's own", received.len());
    Ok(())
}
