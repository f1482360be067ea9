//! A connection that a proxy opens.

use super::error::{ProxyError, of_the_way};
use super::{Credentials, PATIENCE, Proxy, http, socks5};
use crate::destination::Destination;
use crate::host::HostStream;
use crate::relay::End;
use crate::upstream::Far;
use bytes::{Bytes, BytesMut};
use neap::{Events, Poller};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::Instant;

/// Most bytes of a proxy's answer.
pub(super) const MOST_ANSWER: usize = 16 << 10;

/// What is said before data passes.
#[derive(Debug)]
pub(super) enum Dialogue {
    Socks(socks5::Client),
    /// The request, until it is taken.
    Http(Bytes),
}

impl Dialogue {
    pub(super) fn http(to: &Destination, credentials: Option<&Credentials>) -> Self {
        Self::Http(http::request(to, credentials))
    }

    fn first(&mut self) -> Bytes {
        match self {
            Self::Socks(client) => client.greeting(),
            Self::Http(request) => std::mem::take(request),
        }
    }

    /// What is to be done after something was received.
    fn take(&mut self, received: &mut BytesMut) -> Result<socks5::Step, ProxyError> {
        match self {
            Self::Socks(client) => client.take(received),
            Self::Http(_) => Ok(if http::take_answer(received)? {
                socks5::Step::Granted(None)
            } else {
                socks5::Step::Receive
            }),
        }
    }
}

/// A dialogue with a proxy over a connection of the host.
#[derive(Debug)]
pub(super) struct Talk {
    pub(super) stream: HostStream,
    is_connected: bool,
    dialogue: Dialogue,
    outgoing: Bytes,
    pub(super) received: BytesMut,
}

impl Talk {
    /// Begins a connection to the proxy.
    pub(super) fn begin(proxy: &Proxy, mut dialogue: Dialogue) -> io::Result<Self> {
        let stream = HostStream::connect(proxy.server, &proxy.outbound).map_err(of_the_way)?;
        let (outgoing, received) = (dialogue.first(), BytesMut::new());
        Ok(Self { stream, is_connected: false, dialogue, outgoing, received })
    }

    /// Goes on as far as it can. When the proxy has granted the request: where it expects
    /// datagrams, if it says so.
    ///
    /// # Errors
    /// `WouldBlock` until more can be sent or received; others say why it never will.
    pub(super) fn advance(&mut self) -> io::Result<Option<SocketAddr>> {
        if !self.is_connected {
            if !self.stream.is_connected().map_err(of_the_way)? {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.is_connected = true;
        }
        loop {
            while !self.outgoing.is_empty() {
                self.stream.send_piece(&mut self.outgoing).map_err(of_the_way)?;
            }
            match self.dialogue.take(&mut self.received)? {
                socks5::Step::Send(next) => {
                    self.outgoing = next;
                    continue;
                }
                socks5::Step::Granted(bound) => return Ok(bound),
                socks5::Step::Receive if self.received.len() >= MOST_ANSWER => {
                    return Err(ProxyError::TooLong.into());
                }
                socks5::Step::Receive => {}
            }
            let data = self.stream.receive().map_err(of_the_way)?;
            self.received.extend_from_slice(&data.ok_or(ProxyError::Ended)?);
        }
    }
}

/// A connection to a destination by way of a proxy.
#[derive(Debug)]
pub(super) struct ProxyStream {
    state: State,
    due: Instant,
}

#[derive(Debug)]
enum State {
    Opens(Box<Talk>),
    Open {
        stream: HostStream,
        /// Data that came with the answer.
        first: Bytes,
    },
    /// While it changes, and when the proxy has refused.
    Over,
}

impl ProxyStream {
    pub(super) fn open(proxy: &Proxy, dialogue: Dialogue) -> io::Result<Self> {
        let talk = Talk::begin(proxy, dialogue)?;
        Ok(Self { state: State::Opens(Box::new(talk)), due: Instant::now() + PATIENCE })
    }

    fn stream(&mut self) -> io::Result<&mut HostStream> {
        match &mut self.state {
            State::Opens(talk) => Ok(&mut talk.stream),
            State::Open { stream, .. } => Ok(stream),
            State::Over => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

impl Far for ProxyStream {
    fn is_open(&mut self) -> io::Result<bool> {
        let State::Opens(talk) = &mut self.state else { return Ok(true) };
        match talk.advance() {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
        if let State::Opens(talk) = std::mem::replace(&mut self.state, State::Over) {
            let Talk { stream, received, .. } = *talk;
            self.state = State::Open { stream, first: received.freeze() };
        }
        Ok(true)
    }

    fn enter(&self, poller: &Poller, token: u64, events: Events) -> io::Result<()> {
        match &self.state {
            State::Opens(talk) => poller.add(&talk.stream, token, events),
            State::Open { stream, .. } => poller.add(stream, token, events),
            State::Over => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn opens_until(&self) -> Option<Instant> {
        Some(self.due)
    }

    fn is_by_proxy(&self) -> bool {
        true
    }
}

impl End for ProxyStream {
    fn beneath(&self) -> Option<&dyn End> {
        match &self.state {
            State::Opens(talk) => Some(&talk.stream),
            State::Open { stream, .. } => Some(stream),
            State::Over => None,
        }
    }

    fn beneath_mut(&mut self) -> Option<&mut dyn End> {
        self.stream().ok().map(|stream| stream as &mut dyn End)
    }

    fn held(&self) -> usize {
        match &self.state {
            State::Opens(talk) => talk.received.len(),
            State::Open { first, .. } => first.len(),
            State::Over => 0,
        }
    }

    fn receive(&mut self) -> io::Result<Option<Bytes>> {
        if let State::Open { first, .. } = &mut self.state
            && !first.is_empty()
        {
            return Ok(Some(std::mem::take(first)));
        }
        self.stream()?.receive()
    }

    fn send(&mut self, pieces: &mut VecDeque<Bytes>, most: usize) -> io::Result<usize> {
        self.stream()?.send(pieces, most)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.stream()?.finish()
    }

    fn take_error(&mut self) -> io::Result<()> {
        self.stream()?.take_error()
    }

    fn reset(&mut self) {
        if let Ok(stream) = self.stream() {
            stream.reset();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::Protocol;
    use crate::upstream::Upstream;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::thread::{self, JoinHandle};

    /// A proxy that says what is given, each piece after it has heard so many bytes.
    fn proxy(protocol: Protocol, says: Vec<(usize, Vec<u8>)>) -> (Proxy, JoinHandle<TcpStream>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let server = listener.local_addr().expect("an address");
        let thread = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            for (heard, said) in says {
                stream.read_exact(&mut vec![0; heard]).expect("a request");
                // The other end may have given up.
                let _ = stream.write_all(&said);
            }
            stream
        });
        (Proxy::new(protocol, server, None), thread)
    }

    fn open(proxy: &Proxy) -> io::Result<Box<dyn Far>> {
        let to = "192.0.2.1:80".parse::<SocketAddr>().expect("an address").into();
        let client = "10.0.2.100:1000".parse::<SocketAddr>().expect("an address").into();
        let mut far = proxy.connect(&to, client)?;
        assert!(far.opens_until().is_some());
        let (poller, mut events) = (Poller::new()?, Vec::new());
        far.enter(&poller, 1, Events::IN | Events::OUT | Events::RDHUP | Events::ET)?;
        while !far.is_open()? {
            poller.wait(&mut events, None)?;
        }
        Ok(far)
    }

    const GRANTED: &[u8] = &[5, 0, 0, 1, 0, 0, 0, 0, 0, 0];

    #[test]
    fn what_comes_with_the_answer_is_the_first_data() {
        let http = b"HTTP/1.1 200 OK\r\n\r\nhello".to_vec();
        for (protocol, says) in [
            (Protocol::Socks5, vec![(3, vec![5, 0]), (10, [GRANTED, b"hello"].concat())]),
            (Protocol::Http, vec![(53, http)]),
        ] {
            let (proxy, thread) = proxy(protocol, says);
            let mut far = open(&proxy).expect("the proxy grants it");
            let first = far.receive().expect("data").expect("data");
            assert_eq!(&first[..], b"hello", "{protocol:?}");
            let mut data = Bytes::from_static(b"to the server");
            far.send_piece(&mut data).expect("room");
            far.finish().expect("open");
            let mut heard = String::new();
            let mut server = thread.join().expect("served");
            server.read_to_string(&mut heard).expect("the end");
            assert_eq!(heard, "to the server");
        }
    }

    #[test]
    fn an_answer_without_an_end_and_an_end_without_an_answer_are_refused() {
        let endless = [b"HTTP/1.1 200 OK\r\nX: ".to_vec(), vec![b'a'; 4 * MOST_ANSWER]].concat();
        for (says, kind) in [
            (vec![(53, endless)], io::ErrorKind::InvalidData),
            (vec![(53, b"HTTP/1.1 200".to_vec())], io::ErrorKind::HostUnreachable),
            (vec![], io::ErrorKind::HostUnreachable),
        ] {
            let (proxy, thread) = proxy(Protocol::Http, says);
            let closes = thread::spawn(move || drop(thread.join().expect("served")));
            let error = open(&proxy).err().expect("it is no answer");
            assert_eq!(error.kind(), kind, "{error}");
            closes.join().expect("closed");
        }
    }
}
