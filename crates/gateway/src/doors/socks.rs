//! The server's part of SOCKS5 (RFC 1928, RFC 1929), without I/O.

use super::config::{Host, Target};
use super::step::{Failure, Fault, Request, Step};
use super::users::Users;
use crate::socks_wire::{
    CONNECT, MOST_HEADER, NO_AUTHENTICATION, NO_METHOD, PASSWORD, PASSWORD_VERSION, Place,
    UDP_ASSOCIATE, Unread, VERSION, put_address, take_place,
};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::net::{Ipv4Addr, SocketAddr};

/// Reply codes (RFC 1928 section 6).
const GRANTED: u8 = 0;
const GENERAL_FAILURE: u8 = 1;
const NOT_ALLOWED: u8 = 2;
const NETWORK_UNREACHABLE: u8 = 3;
const HOST_UNREACHABLE: u8 = 4;
const REFUSED: u8 = 5;
const TTL_EXPIRED: u8 = 6;
const COMMAND_NOT_SUPPORTED: u8 = 7;
const ADDRESS_NOT_SUPPORTED: u8 = 8;

/// A dialogue with a client.
#[derive(Debug, Default)]
pub(super) struct Server {
    stage: Stage,
}

#[derive(Clone, Copy, Debug, Default)]
enum Stage {
    #[default]
    Method,
    Password,
    Request,
}

impl Server {
    /// Takes what it understands from the front of `received`.
    pub(super) fn take(&mut self, received: &mut BytesMut, users: &Users) -> Step {
        match self.stage {
            Stage::Method => self.take_method(received, users),
            Stage::Password => self.take_password(received, users),
            Stage::Request => take_request(received),
        }
    }

    fn take_method(&mut self, received: &mut BytesMut, users: &Users) -> Step {
        match received.first() {
            Some(&VERSION) | None => {}
            // It speaks something else, and understands no answer.
            Some(_) => return Step::Refuse(Bytes::new(), Fault::Malformed),
        }
        let Some(&count) = received.get(1) else { return Step::Receive };
        let Some(methods) = received.get(2..2 + usize::from(count)) else { return Step::Receive };
        let wanted = if users.is_empty() { NO_AUTHENTICATION } else { PASSWORD };
        if !methods.contains(&wanted) {
            let answer = Bytes::from_static(&[VERSION, NO_METHOD]);
            return Step::Refuse(answer, Fault::Unauthorised);
        }
        received.advance(2 + usize::from(count));
        if wanted == PASSWORD {
            self.stage = Stage::Password;
            return Step::Send(Bytes::from_static(&[VERSION, PASSWORD]));
        }
        self.stage = Stage::Request;
        Step::Send(Bytes::from_static(&[VERSION, NO_AUTHENTICATION]))
    }

    fn take_password(&mut self, received: &mut BytesMut, users: &Users) -> Step {
        if received.first().is_some_and(|&version| version != PASSWORD_VERSION) {
            return Step::Refuse(Bytes::new(), Fault::Malformed);
        }
        let texts = |rest: &[u8]| -> Option<(usize, bool)> {
            let (&length, rest) = rest.split_first()?;
            let (name, rest) = rest.split_at_checked(usize::from(length))?;
            let (&length, rest) = rest.split_first()?;
            let password = rest.get(..usize::from(length))?;
            Some((3 + name.len() + password.len(), users.allow(name, password)))
        };
        let Some((length, is_known)) = received.get(1..).and_then(texts) else {
            return Step::Receive;
        };
        received.advance(length);
        if !is_known {
            let answer = Bytes::from_static(&[PASSWORD_VERSION, GENERAL_FAILURE]);
            return Step::Refuse(answer, Fault::Unauthorised);
        }
        self.stage = Stage::Request;
        Step::Send(Bytes::from_static(&[PASSWORD_VERSION, GRANTED]))
    }
}

fn take_request(received: &mut BytesMut) -> Step {
    let malformed = |code| Step::Refuse(reply(code, None), Fault::Malformed);
    if received.first().is_some_and(|&version| version != VERSION) {
        return Step::Refuse(Bytes::new(), Fault::Malformed);
    }
    let Some(&command) = received.get(1) else { return Step::Receive };
    if ![CONNECT, UDP_ASSOCIATE].contains(&command) {
        return malformed(COMMAND_NOT_SUPPORTED);
    }
    let mut rest = received.get(3..).unwrap_or_default();
    let place = match take_place(&mut rest) {
        Ok(place) => place,
        Err(Unread::Short) => return Step::Receive,
        Err(Unread::Unknown) => return malformed(ADDRESS_NOT_SUPPORTED),
    };
    let length = received.len() - rest.len();
    let step = match (command, target(&place)) {
        // Where its datagrams come from. Only the port is looked at: the address is that of the
        // connection.
        (UDP_ASSOCIATE, target) => Step::Associate(target.map_or(0, |target| target.port)),
        (_, Some(target)) => Step::Open(Request::plain(target)),
        (_, None) => malformed(HOST_UNREACHABLE),
    };
    received.advance(length);
    step
}

/// What a client calls a target; `None` for a name that nothing can have.
fn target(place: &Place<'_>) -> Option<Target> {
    match *place {
        Place::Address(address) => Some(address.into()),
        Place::Name(name, port) => {
            let host = Host::parse(std::str::from_utf8(name).ok()?)?;
            Some(Target { host, port })
        }
    }
}

fn reply(code: u8, from: Option<SocketAddr>) -> Bytes {
    let mut reply = BytesMut::with_capacity(MOST_HEADER);
    reply.put_slice(&[VERSION, code, 0]);
    put_address(&mut reply, from.unwrap_or((Ipv4Addr::UNSPECIFIED, 0).into()));
    reply.freeze()
}

/// The answer that a connection is open, or where datagrams are to be sent to.
pub(super) fn granted(from: Option<SocketAddr>) -> Bytes {
    reply(GRANTED, from)
}

/// The answer that a connection could not be opened.
pub(super) fn refused(why: Failure) -> Bytes {
    let code = match why {
        Failure::Refused => REFUSED,
        Failure::Network => NETWORK_UNREACHABLE,
        Failure::Host | Failure::NoName => HOST_UNREACHABLE,
        Failure::TimedOut => TTL_EXPIRED,
        Failure::Prohibited => NOT_ALLOWED,
        Failure::NoAnswer | Failure::Full | Failure::Other => GENERAL_FAILURE,
    };
    reply(code, None)
}

/// The target of a datagram and the length of the header before its data (RFC 1928 section 7);
/// `None` for fragments and for what is no datagram.
pub(super) fn read_datagram(datagram: &[u8]) -> Option<(Target, usize)> {
    let [_, _, 0, rest @ ..] = datagram else { return None };
    let mut rest = rest;
    let target = target(&take_place(&mut rest).ok()?)?;
    Some((target, datagram.len() - rest.len()))
}

/// A datagram of `from` for a client.
pub(super) fn datagram(from: SocketAddr, data: &[u8]) -> Bytes {
    let mut datagram = BytesMut::with_capacity(MOST_HEADER + data.len());
    datagram.put_slice(&[0, 0, 0]);
    put_address(&mut datagram, from);
    datagram.put_slice(data);
    datagram.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users() -> Users {
        let mut users = Users::default();
        assert!(users.add("me", "secret"));
        users
    }

    /// All that a server says to what comes in pieces, and what it comes to.
    fn talk(users: &Users, pieces: &[&[u8]]) -> (Vec<u8>, Step) {
        let (mut server, mut received, mut said) = (Server::default(), BytesMut::new(), Vec::new());
        for piece in pieces {
            received.extend_from_slice(piece);
            loop {
                match server.take(&mut received, users) {
                    Step::Send(bytes) => said.extend_from_slice(&bytes),
                    Step::Receive => break,
                    Step::Refuse(bytes, fault) => {
                        said.extend_from_slice(&bytes);
                        return (said, Step::Refuse(Bytes::new(), fault));
                    }
                    step => return (said, step),
                }
            }
        }
        (said, Step::Receive)
    }

    const BY_NAME: &[u8] = b"\x05\x01\x00\x03\x0bExample.org\x01\xbb";

    fn opens(target: &str) -> Step {
        Step::Open(Request::plain(target.parse().expect("a target")))
    }

    #[test]
    fn a_client_may_say_all_at_once_or_byte_by_byte() {
        let all = [&[5, 1, 0][..], BY_NAME].concat();
        let expected = (vec![5, 0], opens("example.org:443"));
        assert_eq!(talk(&Users::default(), &[&all]), expected);
        let bytes: Vec<_> = all.chunks(1).collect();
        assert_eq!(talk(&Users::default(), &bytes), expected);
        let v6 = [&[5, 1, 0, 5, 1, 0, 4][..], &[0x20, 1, 0xd, 0xb8], &[0; 11], &[1, 0, 80]];
        assert_eq!(talk(&Users::default(), &v6).1, opens("[2001:db8::1]:80"));
    }

    #[test]
    fn a_password_is_asked_for_and_checked() {
        let all = [&[5, 2, 0, 2, 1, 2][..], b"me", &[6], b"secret", BY_NAME].concat();
        let expected = (vec![5, 2, 1, 0], opens("example.org:443"));
        assert_eq!(talk(&users(), &all.chunks(1).collect::<Vec<_>>()), expected);
        let refused = Step::Refuse(Bytes::new(), Fault::Unauthorised);
        let wrong = [&[5, 1, 2, 1, 2][..], b"me", &[5], b"wrong"].concat();
        assert_eq!(talk(&users(), &[&wrong]), (vec![5, 2, 1, 1], refused));
        let refused = Step::Refuse(Bytes::new(), Fault::Unauthorised);
        assert_eq!(talk(&users(), &[&[5, 1, 0]]), (vec![5, 0xff], refused));
    }

    #[test]
    fn what_is_not_done_has_its_code() {
        for (request, code) in [
            (&[5, 2, 0, 1, 192, 0, 2, 1, 0, 80][..], COMMAND_NOT_SUPPORTED),
            (&[5, 9, 0, 1, 192, 0, 2, 1, 0, 80], COMMAND_NOT_SUPPORTED),
            (&[5, 1, 0, 2, 192, 0, 2, 1, 0, 80], ADDRESS_NOT_SUPPORTED),
            (b"\x05\x01\x00\x03\x03a b\x00\x50", HOST_UNREACHABLE),
            (b"\x05\x01\x00\x03\x00\x00\x50", HOST_UNREACHABLE),
        ] {
            let (said, step) = talk(&Users::default(), &[&[5, 1, 0], request]);
            assert_eq!(step, Step::Refuse(Bytes::new(), Fault::Malformed));
            assert_eq!(said, [5, 0, 5, code, 0, 1, 0, 0, 0, 0, 0, 0]);
        }
        let nonsense = Step::Refuse(Bytes::new(), Fault::Malformed);
        assert_eq!(talk(&Users::default(), &[b"GET / HTTP/1.1\r\n"]), (vec![], nonsense));
        let associate = [5, 1, 0, 5, 3, 0, 1, 0, 0, 0, 0, 4, 0];
        assert_eq!(talk(&Users::default(), &[&associate]).1, Step::Associate(1024));
    }

    #[test]
    fn datagrams_are_read_as_they_were_written() {
        let from = "[2001:db8::1]:53".parse().expect("an address");
        let mut bytes = datagram(from, b"data").to_vec();
        let (target, length) = read_datagram(&bytes).expect("a datagram");
        assert_eq!((target, &bytes[length..]), (from.into(), &b"data"[..]));
        bytes[2] = 1;
        assert_eq!(read_datagram(&bytes), None, "a fragment");
        let named = b"\0\0\0\x03\x0bexample.org\x00\x35data";
        let (target, length) = read_datagram(named).expect("a datagram");
        assert_eq!(
            (target.to_string().as_str(), &named[length..]),
            ("example.org:53", &b"data"[..])
        );
        assert_eq!(read_datagram(&named[..14]), None, "a cut header");
    }
}
