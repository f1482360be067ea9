//! The victim's part as a gateway: it decides about what goes to addresses of others.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::time::Duration;

use neap::time::Nanos;
use neap::{
    Events, PendingConnection, Poller, Refusal, SocketOptions, Stack, TcpForwarder,
    TcpForwarderOptions, TcpStream, UdpForwarder, UdpForwarderOptions,
};

use crate::victim::{DAYTIME, DISCARD, ECHO, SOURCE, echo};

/// Token of the forwarder; connections count up from 1.
const FORWARDER: u64 = 0;
/// Pause between two looks at connections that nobody decides about.
const LOOK: Duration = Duration::from_millis(100);

/// Begins to serve addresses of others, in two threads.
pub(crate) fn begin(stack: &Stack) {
    // Bounds that half a second of a flood reaches.
    let options = TcpForwarderOptions {
        max_pending: 1000,
        max_per_source: 250,
        expiry: Nanos::from_secs(2),
        ..TcpForwarderOptions::default()
    };
    let tcp = TcpForwarder::new(stack, options).expect("a forwarder");
    let udp = UdpForwarder::new(stack, UdpForwarderOptions::default()).expect("a forwarder");
    std::thread::spawn(move || Deciding::new(tcp).expect("a poller").serve());
    std::thread::spawn(move || reflect(&udp));
}

fn reflect(udp: &UdpForwarder) {
    while let Ok(datagram) = udp.recv() {
        // What cannot be sent is lost.
        let _ = match datagram.local {
            Some(local) if local.port() == ECHO => udp.send(&datagram.reply(datagram.data.clone())),
            _ => udp.refuse(&datagram, Refusal::Port),
        };
    }
}

struct Deciding {
    forwarder: TcpForwarder,
    poller: Poller,
    /// Connections whose handshake runs.
    opening: HashMap<u64, TcpStream>,
    accepted: u64,
    /// Connections that nobody decides about, as if the far side did not answer.
    held: VecDeque<PendingConnection>,
}

impl Deciding {
    fn new(forwarder: TcpForwarder) -> io::Result<Self> {
        let poller = Poller::new()?;
        forwarder.set_nonblocking(true)?;
        poller.add(&forwarder, FORWARDER, Events::IN)?;
        let (opening, held) = (HashMap::new(), VecDeque::new());
        Ok(Self { forwarder, poller, opening, accepted: FORWARDER, held })
    }

    fn serve(mut self) -> io::Result<()> {
        let mut events = Vec::new();
        loop {
            let nap = (!self.held.is_empty()).then_some(LOOK);
            self.poller.wait(&mut events, nap)?;
            // Those whose time is over give their places back.
            let is_over = |one: &PendingConnection| one.take_error().is_ok_and(|e| e.is_some());
            while self.held.front().is_some_and(is_over) {
                self.held.pop_front();
            }
            for event in &events {
                if event.token == FORWARDER {
                    while let Ok(pending) = self.forwarder.recv() {
                        // One that cannot be accepted is reset.
                        let _ = self.decide(pending);
                    }
                } else if let Some(stream) = self.opening.remove(&event.token) {
                    self.poller.remove(&stream)?;
                    if stream.take_error()?.is_none() {
                        stream.set_nonblocking(false)?;
                        let thread = std::thread::Builder::new().stack_size(128 << 10);
                        let _ = thread.spawn(move || echo(stream));
                    }
                }
            }
        }
    }

    fn decide(&mut self, pending: PendingConnection) -> io::Result<()> {
        match pending.local_addr().port() {
            ECHO => {
                let stream = pending.accept_nonblocking(SocketOptions::default())?;
                self.accepted += 1;
                self.poller.add(&stream, self.accepted, Events::OUT)?;
                self.opening.insert(self.accepted, stream);
            }
            DISCARD => self.held.push_back(pending),
            DAYTIME => pending.reset(),
            SOURCE => pending.reject(Refusal::Host),
            _ => pending.ignore(),
        }
        Ok(())
    }
}
