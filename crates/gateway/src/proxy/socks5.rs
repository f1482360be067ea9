//! The client's part of SOCKS5 (RFC 1928, RFC 1929), without I/O.

use super::Credentials;
use super::error::ProxyError;
use crate::destination::Destination;
use crate::socks_wire::{
    CONNECT, MOST_HEADER, NO_AUTHENTICATION, NO_METHOD, PASSWORD, PASSWORD_VERSION, Place,
    UDP_ASSOCIATE, Unread, VERSION, put_destination, put_text, take_place,
};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

/// A dialogue with a SOCKS5 server.
#[derive(Debug)]
pub(super) struct Client {
    stage: Stage,
    credentials: Option<Arc<Credentials>>,
    /// What follows the authentication; `None` if nothing does.
    request: Option<Bytes>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Method,
    Password,
    Reply,
}

/// What is next in a dialogue.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// More of the answer has to come.
    Receive,
    /// To be sent. The dialogue goes on.
    Send(Bytes),
    /// The request is granted. Of an association: where its datagrams go.
    Granted(Option<SocketAddr>),
}

impl Client {
    /// A dialogue that opens a connection.
    pub(super) fn connect(to: &Destination, credentials: Option<Arc<Credentials>>) -> Self {
        Self::new(Some(request(CONNECT, to)), credentials)
    }

    /// A dialogue that opens a way for datagrams. The server learns the port from the first one.
    pub(super) fn associate(is_v6: bool, credentials: Option<Arc<Credentials>>) -> Self {
        let any: IpAddr =
            if is_v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        let request = request(UDP_ASSOCIATE, &SocketAddr::new(any, 0).into());
        Self::new(Some(request), credentials)
    }

    /// A dialogue that ends when the server has accepted the client.
    pub(super) fn greet(credentials: Option<Arc<Credentials>>) -> Self {
        Self::new(None, credentials)
    }

    fn new(request: Option<Bytes>, credentials: Option<Arc<Credentials>>) -> Self {
        Self { stage: Stage::Method, credentials, request }
    }

    /// What is sent first.
    pub(super) fn greeting(&self) -> Bytes {
        if self.credentials.is_some() {
            Bytes::from_static(&[VERSION, 2, NO_AUTHENTICATION, PASSWORD])
        } else {
            Bytes::from_static(&[VERSION, 1, NO_AUTHENTICATION])
        }
    }

    /// Takes what it understands from the front of `received`. What is left after
    /// [`Step::Granted`] is data.
    ///
    /// # Errors
    /// The server refuses, or does not speak SOCKS5.
    pub(super) fn take(&mut self, received: &mut BytesMut) -> Result<Step, ProxyError> {
        match self.stage {
            Stage::Method => self.take_method(received),
            Stage::Password => self.take_password(received),
            Stage::Reply => take_reply(received),
        }
    }

    fn take_method(&mut self, received: &mut BytesMut) -> Result<Step, ProxyError> {
        if received.first().is_some_and(|&version| version != VERSION) {
            return Err(ProxyError::Malformed);
        }
        if received.len() < 2 {
            return Ok(Step::Receive);
        }
        let method = received.split_to(2)[1];
        match (method, &self.credentials) {
            (NO_AUTHENTICATION, _) => Ok(self.ask()),
            (PASSWORD, Some(credentials)) => {
                self.stage = Stage::Password;
                let mut text = BytesMut::with_capacity(MOST_HEADER);
                text.put_u8(PASSWORD_VERSION);
                put_text(&mut text, &credentials.user);
                put_text(&mut text, &credentials.password);
                Ok(Step::Send(text.freeze()))
            }
            (NO_METHOD, _) => Err(ProxyError::Unauthorised),
            _ => Err(ProxyError::Malformed),
        }
    }

    fn take_password(&mut self, received: &mut BytesMut) -> Result<Step, ProxyError> {
        if received.len() < 2 {
            return Ok(Step::Receive);
        }
        // The version is not looked at: some servers repeat that of SOCKS.
        match received.split_to(2)[1] {
            0 => Ok(self.ask()),
            _ => Err(ProxyError::Password),
        }
    }

    fn ask(&mut self) -> Step {
        self.stage = Stage::Reply;
        self.request.take().map_or(Step::Granted(None), Step::Send)
    }
}

fn request(command: u8, to: &Destination) -> Bytes {
    let mut request = BytesMut::with_capacity(MOST_HEADER);
    request.put_slice(&[VERSION, command, 0]);
    put_destination(&mut request, to);
    request.freeze()
}

fn take_reply(received: &mut BytesMut) -> Result<Step, ProxyError> {
    if received.first().is_some_and(|&version| version != VERSION) {
        return Err(ProxyError::Malformed);
    }
    // A refusal may end behind its code.
    if let Some(&code) = received.get(1)
        && code != 0
    {
        return Err(ProxyError::Reply(code));
    }
    let mut rest = received.get(3..).unwrap_or_default();
    match take_place(&mut rest) {
        Ok(place) => {
            let bound = match place {
                Place::Address(address) => address,
                // What the proxy calls itself; it is reached already.
                Place::Name(_, port) => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port),
            };
            let length = received.len() - rest.len();
            received.advance(length);
            Ok(Step::Granted(Some(bound)))
        }
        Err(Unread::Short) => Ok(Step::Receive),
        Err(Unread::Unknown) => Err(ProxyError::Malformed),
    }
}

/// Takes an address and port from the front; `None` is one with a name.
fn take_address(from: &mut &[u8]) -> Result<Option<SocketAddr>, Unread> {
    Ok(match take_place(from)? {
        Place::Address(address) => Some(address),
        Place::Name(..) => None,
    })
}

/// What comes before a datagram (RFC 1928 section 7).
pub(super) fn datagram_header(to: &Destination) -> Bytes {
    let mut header = BytesMut::with_capacity(MOST_HEADER);
    // Reserved, and fragment 0: a whole datagram.
    header.put_slice(&[0, 0, 0]);
    put_destination(&mut header, to);
    header.freeze()
}

/// The sender of a datagram, and the length of its header; `None` for fragments and for what is no
/// datagram. The sender is `None` if the server gives a name.
pub(super) fn read_datagram(datagram: &[u8]) -> Option<(Option<SocketAddr>, usize)> {
    let [_, _, 0, rest @ ..] = datagram else { return None };
    let mut rest = rest;
    let from = take_address(&mut rest).ok()?;
    Some((from, datagram.len() - rest.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credentials() -> Arc<Credentials> {
        Arc::new(Credentials::new("me", "secret").expect("usable"))
    }

    fn named() -> Destination {
        let address: SocketAddr = "198.18.0.1:443".parse().expect("an address");
        Destination { name: Some("example.org".into()), ..address.into() }
    }

    #[test]
    fn a_name_goes_to_the_server_as_a_name() {
        let mut client = Client::connect(&named(), Some(credentials()));
        assert_eq!(&client.greeting()[..], &[5, 2, 0, 2]);
        let mut received = BytesMut::from(&[5][..]);
        assert_eq!(client.take(&mut received), Ok(Step::Receive));
        received.put_u8(2);
        let Ok(Step::Send(text)) = client.take(&mut received) else { panic!("the password") };
        assert_eq!(&text[..], b"\x01\x02me\x06secret");
        received.put_slice(&[1, 0]);
        let Ok(Step::Send(request)) = client.take(&mut received) else { panic!("the request") };
        assert_eq!(&request[..], b"\x05\x01\x00\x03\x0bexample.org\x01\xbb");
        received.put_slice(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        received.put_slice(b"hello");
        assert_eq!(client.take(&mut received), Ok(Step::Granted(Some(any_v4()))));
        assert_eq!(&received[..], b"hello", "what comes behind the answer is data");
    }

    fn any_v4() -> SocketAddr {
        SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0)
    }

    #[test]
    fn an_answer_may_come_byte_by_byte() {
        for reply in [
            &[5, 0, 0, 1, 192, 0, 2, 1, 0, 80][..],
            &[5, 0, 0, 3, 2, b'h', b'i', 0, 80],
            &[5, 0, 0, 4, 0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 80],
        ] {
            let mut client = Client::connect(&named(), None);
            let mut received = BytesMut::from(&[5, 0][..]);
            assert!(matches!(client.take(&mut received), Ok(Step::Send(_))));
            for (count, &byte) in reply.iter().enumerate() {
                received.put_u8(byte);
                let step = client.take(&mut received).expect("a reply");
                assert_eq!(step == Step::Receive, count + 1 < reply.len(), "{step:?}");
            }
            assert!(received.is_empty());
        }
    }

    #[test]
    fn refusals_and_strangers_are_told_apart() {
        let after_greeting = |bytes: &[u8], credentials| {
            let mut client = Client::connect(&named(), credentials);
            let mut received = BytesMut::from(bytes);
            loop {
                match client.take(&mut received) {
                    Ok(Step::Send(_)) => {}
                    other => return other,
                }
            }
        };
        let refused = |bytes, credentials| after_greeting(bytes, credentials).expect_err("refused");
        let named = after_greeting(&[5, 0, 5, 0, 0, 3, 2, b'h', b'i', 0, 80], None);
        let port = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 80);
        assert_eq!(named, Ok(Step::Granted(Some(port))), "the port of an association");
        assert_eq!(refused(&[5, 0xff], None), ProxyError::Unauthorised);
        assert_eq!(refused(&[5, 2], None), ProxyError::Malformed, "it was not offered");
        assert_eq!(refused(&[5, 2, 1, 1], Some(credentials())), ProxyError::Password);
        assert_eq!(refused(&[5, 0, 5, 5], None), ProxyError::Reply(5));
        assert_eq!(refused(b"HTTP/1.1 400", None), ProxyError::Malformed);
        assert_eq!(refused(&[5, 0, 5, 0, 0, 9], None), ProxyError::Malformed);
    }

    #[test]
    fn datagrams_are_read_as_they_were_written() {
        let to: Destination = "[2001:db8::1]:53".parse::<SocketAddr>().expect("an address").into();
        let mut datagram = BytesMut::from(&datagram_header(&to)[..]);
        let header = datagram.len();
        datagram.put_slice(b"data");
        assert_eq!(read_datagram(&datagram), Some((Some(to.address), header)));
        let by_name = datagram_header(&named());
        assert_eq!(read_datagram(&by_name), Some((None, by_name.len())));
        datagram[2] = 1;
        assert_eq!(read_datagram(&datagram), None, "a fragment");
        assert_eq!(read_datagram(&by_name[..by_name.len() - 1]), None, "a cut header");
        assert_eq!(read_datagram(&[]), None);
    }
}
