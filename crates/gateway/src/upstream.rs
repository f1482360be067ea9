//! Where the flows of a gateway go: the trait of a far side, and the host's kernel as one.

use crate::host::HostStream;
use crate::relay::End;
use neap::{Events, Poller};
use std::io;
use std::net::SocketAddr;

/// A way to the destinations of flows.
///
/// The gateway opens a connection for each flow of a guest, and answers the guest when it is open.
pub trait Upstream: Send {
    /// Begins a connection to `to` for a client with the address `client`. It does not wait.
    ///
    /// # Errors
    /// The connection is refused at once. The guest is told why, see
    /// [`Gateway`](crate::Gateway).
    fn connect(&self, to: SocketAddr, client: SocketAddr) -> io::Result<Box<dyn Far>>;
}

/// A connection of an [`Upstream`], which never waits.
pub trait Far: End + Send {
    /// Whether the connection is open: the destination has accepted it.
    ///
    /// # Errors
    /// Why it will never be.
    fn is_open(&mut self) -> io::Result<bool>;

    /// Adds what the connection waits for to a poller.
    ///
    /// # Errors
    /// As [`Poller::add`].
    fn enter(&self, poller: &Poller, token: u64, events: Events) -> io::Result<()>;
}

/// The host's kernel: flows are its connections, from its addresses.
#[derive(Clone, Copy, Debug, Default)]
pub struct Direct;

impl Upstream for Direct {
    fn connect(&self, to: SocketAddr, _: SocketAddr) -> io::Result<Box<dyn Far>> {
        connect(to, None)
    }
}

/// Begins a connection of the host's kernel, from an address of its choice if there is no `from`.
pub(crate) fn connect(to: SocketAddr, from: Option<SocketAddr>) -> io::Result<Box<dyn Far>> {
    Ok(Box::new(Opening { stream: HostStream::connect(to, from)?, is_open: false }))
}

/// A connection of the host's kernel that was begun.
#[derive(Debug)]
struct Opening {
    stream: HostStream,
    is_open: bool,
}

impl Far for Opening {
    fn is_open(&mut self) -> io::Result<bool> {
        if !self.is_open {
            self.stream.take_error()?;
            self.is_open = self.stream.is_connected();
        }
        Ok(self.is_open)
    }

    fn enter(&self, poller: &Poller, token: u64, events: Events) -> io::Result<()> {
        poller.add(&self.stream, token, events)
    }
}

impl End for Opening {
    fn receive(&mut self) -> io::Result<Option<bytes::Bytes>> {
        self.stream.receive()
    }
    fn send(&mut self, data: &mut bytes::Bytes) -> io::Result<()> {
        self.stream.send(data)
    }
    fn finish(&mut self) -> io::Result<()> {
        self.stream.finish()
    }
    fn reset(&mut self) {
        self.stream.reset();
    }
}
