//! The fields of SOCKS5 messages (RFC 1928, RFC 1929), which clients and servers share.

use crate::destination::Destination;
use bytes::{BufMut, BytesMut};
use std::net::{IpAddr, SocketAddr};

pub(crate) const VERSION: u8 = 5;
/// Version of the password's dialogue (RFC 1929).
pub(crate) const PASSWORD_VERSION: u8 = 1;

pub(crate) const NO_AUTHENTICATION: u8 = 0;
pub(crate) const PASSWORD: u8 = 2;
pub(crate) const NO_METHOD: u8 = 0xff;

pub(crate) const CONNECT: u8 = 1;
pub(crate) const UDP_ASSOCIATE: u8 = 3;

const V4: u8 = 1;
const NAME: u8 = 3;
const V6: u8 = 4;

/// Longest header of a datagram: one with a name.
pub(crate) const MOST_HEADER: usize = 3 + 1 + 1 + 255 + 2;

/// An address or a name, with a port.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Place<'a> {
    Address(SocketAddr),
    /// Any bytes, at most 255.
    Name(&'a [u8], u16),
}

/// Why there is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// More has to come.
    Short,
    /// An unknown type of addresses.
    Unknown,
}

/// Takes an address or a name from the front.
pub(crate) fn take_place<'a>(from: &mut &'a [u8]) -> Result<Place<'a>, Unread> {
    let mut rest = *from;
    let kind = take::<1>(&mut rest)?[0];
    let mut name: &[u8] = &[];
    let ip: Option<IpAddr> = match kind {
        V4 => Some(take::<4>(&mut rest)?.into()),
        V6 => Some(take::<16>(&mut rest)?.into()),
        NAME => {
            let length = usize::from(take::<1>(&mut rest)?[0]);
            (name, rest) = rest.split_at_checked(length).ok_or(Unread::Short)?;
            None
        }
        _ => return Err(Unread::Unknown),
    };
    let port = u16::from_be_bytes(take::<2>(&mut rest)?);
    *from = rest;
    Ok(ip.map_or(Place::Name(name, port), |ip| Place::Address(SocketAddr::new(ip, port))))
}

fn take<const N: usize>(from: &mut &[u8]) -> Result<[u8; N], Unread> {
    let (first, rest) = from.split_first_chunk::<N>().ok_or(Unread::Short)?;
    *from = rest;
    Ok(*first)
}

/// Appends text of at most 255 bytes behind its length.
pub(crate) fn put_text(into: &mut BytesMut, text: &str) {
    let length = u8::try_from(text.len()).expect("credentials and names are short");
    into.put_u8(length);
    into.put_slice(text.as_bytes());
}

pub(crate) fn put_destination(into: &mut BytesMut, to: &Destination) {
    match &to.name {
        Some(name) => {
            into.put_u8(NAME);
            put_text(into, name);
            into.put_u16(to.address.port());
        }
        None => put_address(into, to.address),
    }
}

pub(crate) fn put_address(into: &mut BytesMut, address: SocketAddr) {
    match address.ip() {
        IpAddr::V4(v4) => {
            into.put_u8(V4);
            into.put_slice(&v4.octets());
        }
        IpAddr::V6(v6) => {
            into.put_u8(V6);
            into.put_slice(&v6.octets());
        }
    }
    into.put_u16(address.port());
}
