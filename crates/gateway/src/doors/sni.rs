//! The name of a server in the first message of TLS (RFC 8446 section 4.1.2, RFC 6066 section 3),
//! without I/O.

use super::config::{Host, Target};
use super::step::{Fault, Request, Step};
use bytes::{Bytes, BytesMut};

/// Port that connections go to.
const PORT: u16 = 443;
/// Type of records that carry the handshake.
const HANDSHAKE: u8 = 22;
/// Length of the header of a record: type, version, length.
const RECORD_HEADER: usize = 5;
/// Type of the first message.
const CLIENT_HELLO: u8 = 1;
/// Bytes of the message before its session identifier: version and random.
const FIXED: usize = 2 + 32;
/// The extension with the name, and the only type of names.
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;

/// Looks for the name. All of `received` is data for the server.
pub(super) fn take(received: &BytesMut) -> Step {
    match message(received) {
        Ok(Some(message)) => match target(&message) {
            Some(target) => Step::Open(Request::plain(target)),
            None => Step::Refuse(Bytes::new(), Fault::Malformed),
        },
        Ok(None) => Step::Receive,
        Err(NoTls) => Step::Refuse(Bytes::new(), Fault::Malformed),
    }
}

/// It is not TLS.
struct NoTls;

/// The first message, which may be in several records; `None` until it is there.
fn message(mut records: &[u8]) -> Result<Option<Vec<u8>>, NoTls> {
    let mut message = Vec::new();
    loop {
        if records.first().is_some_and(|&kind| kind != HANDSHAKE)
            || records.get(1).is_some_and(|&major| major != 3)
        {
            return Err(NoTls);
        }
        let Some((header, rest)) = records.split_first_chunk::<RECORD_HEADER>() else {
            return Ok(None);
        };
        let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
        if length == 0 {
            return Err(NoTls);
        }
        message.extend_from_slice(rest.get(..length).unwrap_or(rest));
        if message.first().is_some_and(|&kind| kind != CLIENT_HELLO) {
            return Err(NoTls);
        }
        if let Some(&[_, high, middle, low]) = message.first_chunk::<4>() {
            let length = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
            if let Some(body) = message.get(4..4 + length) {
                return Ok(Some(body.to_vec()));
            }
        }
        match rest.get(length..) {
            Some(others) => records = others,
            None => return Ok(None),
        }
    }
}

/// The server that a message names.
fn target(message: &[u8]) -> Option<Target> {
    let mut rest = message.get(FIXED..)?;
    take_block::<1>(&mut rest)?;
    take_block::<2>(&mut rest)?;
    take_block::<1>(&mut rest)?;
    let mut extensions = take_block::<2>(&mut rest)?;
    while let Some((&kind, others)) = extensions.split_first_chunk::<2>() {
        extensions = others;
        let mut data = take_block::<2>(&mut extensions)?;
        if u16::from_be_bytes(kind) != SERVER_NAME {
            continue;
        }
        let mut names = take_block::<2>(&mut data)?;
        while let Some((&kind, others)) = names.split_first() {
            names = others;
            let name = take_block::<2>(&mut names)?;
            if kind == HOST_NAME {
                let host = Host::parse(std::str::from_utf8(name).ok()?)?;
                return Some(Target { host, port: PORT });
            }
        }
    }
    None
}

/// Takes bytes from the front that follow their length, a number of `N` bytes.
fn take_block<'a, const N: usize>(from: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, rest) = from.split_first_chunk::<N>()?;
    let length = length.iter().fold(0, |length, &byte| length << 8 | usize::from(byte));
    let (block, rest) = rest.split_at_checked(length)?;
    *from = rest;
    Some(block)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(length: usize, bytes: &[u8]) -> Vec<u8> {
        [&(bytes.len() as u32).to_be_bytes()[4 - length..], bytes].concat()
    }

    /// A first message with a name, in records of so many bytes.
    fn hello(name: Option<&str>, most: usize) -> Vec<u8> {
        let mut extensions = [&[0, 10][..], &block(2, &[0, 2, 0, 29])].concat();
        if let Some(name) = name {
            let entry = [&[HOST_NAME][..], &block(2, name.as_bytes())].concat();
            extensions.extend([&[0, 0][..], &block(2, &block(2, &entry))].concat());
        }
        let body = [
            &[3, 3][..],
            &[7; 32],
            &block(1, &[9; 32]),
            &block(2, &[0x13, 1]),
            &block(1, &[0]),
            &block(2, &extensions),
        ];
        let message = [&[CLIENT_HELLO][..], &block(3, &body.concat())].concat();
        let record = |part: &[u8]| [&[HANDSHAKE, 3, 1][..], &block(2, part)].concat();
        message.chunks(most).flat_map(record).collect()
    }

    fn look(bytes: &[u8]) -> Step {
        take(&BytesMut::from(bytes))
    }

    #[test]
    fn the_name_is_found_in_any_pieces_and_records() {
        let wanted = Step::Open(Request::plain("www.example.org:443".parse().expect("a target")));
        for most in [16 << 10, 50, 1] {
            let bytes = hello(Some("www.Example.org"), most);
            for length in 0..bytes.len() {
                assert_eq!(look(&bytes[..length]), Step::Receive, "{length} of {most}");
            }
            assert_eq!(look(&bytes), wanted);
        }
    }

    #[test]
    fn what_names_no_server_is_refused() {
        let refused = Step::Refuse(Bytes::new(), Fault::Malformed);
        for bytes in [
            &hello(None, 1000)[..],
            &hello(Some("192.0.2.1 "), 1000),
            &hello(Some(""), 1000),
            b"GET / HTTP/1.1\r\n\r\n",
            &[HANDSHAKE, 3, 1, 0, 0],
            &[HANDSHAKE, 3, 1, 0, 1, 2],
        ] {
            assert_eq!(look(bytes), refused, "{bytes:?}");
        }
    }
}
