//! A transparent echo: connections and datagrams to every address and port of a network come back
//! from there.
//!
//! `transparent_echo TUN KERNEL_CIDR OUR_CIDR NETWORK`, for instance
//! `transparent_echo neap0 10.9.0.1/24 10.9.0.2/24 198.51.100.0/24`, and then
//! `ip route add 198.51.100.0/24 dev neap0`. Needs `CAP_NET_ADMIN`.

use neap::net::{Address, Prefix, PrefixError};
use neap::{
    BuildError, PendingConnection, Refusal, SocketOptions, Stack, TcpForwarder,
    TcpForwarderOptions, UdpForwarder, UdpForwarderOptions,
};
use std::io;
use std::net::Shutdown;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Most connections at the same time: each has a thread.
const MAX_CONNECTIONS: usize = 1000;
/// Stack of such a thread, in bytes.
const THREAD_STACK: usize = 128 << 10;
/// How long a client may take to complete its handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Why there is no echo.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{0} arguments: expected TUN KERNEL_CIDR OUR_CIDR NETWORK")]
    Count(usize),
    #[error("{0}: {1}")]
    Argument(&'static str, PrefixError),
    #[error("no stack: {0}")]
    Stack(#[from] BuildError),
    #[error("no forwarder: {0}")]
    Forwarder(#[from] io::Error),
}

/// What to echo, and where.
#[derive(Debug)]
pub(crate) struct Args {
    tun: String,
    kernel: Address,
    ours: Address,
    network: Prefix,
}

impl Args {
    /// Reads the arguments behind the name of the program.
    pub(crate) fn parse(args: &[String]) -> Result<Self, Error> {
        let [tun, kernel, ours, network] = args else { return Err(Error::Count(args.len())) };
        Ok(Self {
            tun: tun.clone(),
            kernel: kernel.parse().map_err(|error| Error::Argument("KERNEL_CIDR", error))?,
            ours: ours.parse().map_err(|error| Error::Argument("OUR_CIDR", error))?,
            network: network.parse().map_err(|error| Error::Argument("NETWORK", error))?,
        })
    }
}

/// The echo, on a stack of its own.
pub(crate) struct Echo {
    tcp: TcpForwarder,
    udp: UdpForwarder,
    /// Held once by each connection.
    places: Arc<()>,
}

impl Echo {
    /// Makes the TUN and what is behind it. The echo ends with the stack.
    pub(crate) fn new(args: &Args) -> Result<(Stack, Self), Error> {
        let Args { tun, kernel, ours, network } = args;
        let stack = Stack::builder()
            .tun(tun)
            .host_address(*kernel)
            .address(*ours)
            .any_destination(true)
            .build()?;
        let destinations = Some(*network);
        let options = TcpForwarderOptions { destinations, ..TcpForwarderOptions::default() };
        let tcp = TcpForwarder::new(&stack, options)?;
        let options = UdpForwarderOptions { destinations, ..UdpForwarderOptions::default() };
        let udp = UdpForwarder::new(&stack, options)?;
        Ok((stack, Self { tcp, udp, places: Arc::new(()) }))
    }

    /// Serves until the stack is gone; returns how that is said.
    pub(crate) fn serve(&self) -> io::Error {
        thread::scope(|scope| {
            scope.spawn(|| self.echo_datagrams());
            loop {
                match self.tcp.recv() {
                    Ok(pending) => self.decide(pending),
                    Err(error) => return error,
                }
            }
        })
    }

    /// Accepts a connection in a thread, or refuses it where there are too many.
    fn decide(&self, pending: PendingConnection) {
        if Arc::strong_count(&self.places) > MAX_CONNECTIONS {
            return pending.reject(Refusal::Prohibited);
        }
        let place = self.places.clone();
        // Without a thread the connection is dropped, which resets it.
        let _ = thread::Builder::new().stack_size(THREAD_STACK).spawn(move || {
            let _place = place;
            let stream = pending.accept_with(SocketOptions::default(), Some(HANDSHAKE))?;
            io::copy(&mut &stream, &mut &stream)?;
            stream.shutdown(Shutdown::Write)
        });
    }

    fn echo_datagrams(&self) {
        while let Ok(datagram) = self.udp.recv() {
            // One that cannot be sent back is lost, as datagrams may be.
            let _ = self.udp.send(&datagram.reply(datagram.data.clone()));
        }
    }
}

#[allow(dead_code)] // The tests use the rest.
fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let served = Args::parse(&args).and_then(|args| Echo::new(&args));
    let (error, status) = match served {
        Ok((_stack, echo)) => (Error::Forwarder(echo.serve()), 1),
        Err(error @ (Error::Count(_) | Error::Argument(..))) => (error, 2),
        Err(error) => (error, 1),
    };
    eprintln!("transparent_echo: {error}");
    ExitCode::from(status)
}
