//! A client of DHCPv6 in the namespace (RFC 8415): what it is offered, gets, keeps and gives back.

use super::namespace::in_namespace;
use super::{NO_PORTS, Namespace, PATIENCE, host, join, succeed};
use std::net::{Ipv6Addr, SocketAddrV6, UdpSocket};
use std::time::Duration;

/// Ports of clients and servers, and the group of servers.
const CLIENT: u16 = 546;
const SERVER: u16 = 547;
const SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
/// The interface is the first one beside the loopback.
const INDEX: u32 = 2;
/// The address of the host, see [`host`].
const ADDRESS: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x10);
/// Kinds of messages (section 7.3).
const SOLICIT: u8 = 1;
const ADVERTISE: u8 = 2;
const REQUEST: u8 = 3;
const RENEW: u8 = 5;
const REBIND: u8 = 6;
const REPLY: u8 = 7;
const RELEASE: u8 = 8;
/// Options (section 21).
const CLIENT_ID: u16 = 1;
const SERVER_ID: u16 = 2;
const ASSOCIATION: u16 = 3;
const LEASE: u16 = 5;
const STATUS: u16 = 13;
const QUALIFIED_NAME: u16 = 39;

/// Options of a message: their numbers and contents.
type Options = Vec<(u16, Vec<u8>)>;
/// The client's name for its interface, with the times that it asks for (section 21.4).
const OWN_ASSOCIATION: [u8; 12] = [0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0];
const OWN_ID: [u8; 10] = [0, 3, 0, 1, 2, 3, 4, 5, 6, 7];

fn option(code: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(value.len()).expect("an option");
    [&code.to_be_bytes()[..], &length.to_be_bytes(), value].concat()
}

/// Options, each with its code.
fn options(mut rest: &[u8]) -> Options {
    let mut found = Vec::new();
    while let [code, more, high, low, others @ ..] = rest {
        let number = |high, low| u16::from_be_bytes([high, low]);
        let (value, others) = others.split_at(number(*high, *low).into());
        found.push((number(*code, *more), value.to_vec()));
        rest = others;
    }
    assert!(rest.is_empty(), "{rest:?}");
    found
}

/// The value of an option.
fn value(options: &[(u16, Vec<u8>)], code: u16) -> Option<&[u8]> {
    options.iter().find(|one| one.0 == code).map(|one| &one.1[..])
}

/// The address of an association, which is for ever.
fn address(said: &[(u16, Vec<u8>)]) -> Option<Ipv6Addr> {
    let association = value(said, ASSOCIATION)?;
    let (own, inside) = association.split_first_chunk::<4>()?;
    assert_eq!(own[..], OWN_ASSOCIATION[..4]);
    let inside = options(&inside[8..]);
    let (address, times) = value(&inside, LEASE)?.split_first_chunk::<16>()?;
    assert_eq!(times, [0xff; 8], "its lifetimes");
    Some((*address).into())
}

fn open(patience: Duration) -> UdpSocket {
    let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, CLIENT)).expect("a port");
    socket.set_read_timeout(Some(patience)).expect("a timeout");
    socket
}

/// Sends a message with more options, and returns the kind and the options of its answer. `None` if
/// there is none in time.
fn ask(socket: &UdpSocket, kind: u8, more: &[u8]) -> Option<(u8, Options)> {
    let transaction = [9, 9, kind];
    let message = [&[kind][..], &transaction, &option(CLIENT_ID, &OWN_ID), more].concat();
    socket.send_to(&message, SocketAddrV6::new(SERVERS, SERVER, 0, INDEX)).expect("sent");
    let mut answer = [0; 1500];
    let (count, _) = socket.recv_from(&mut answer).ok()?;
    assert_eq!(answer[1..4], transaction);
    let said = options(&answer[4..count]);
    assert_eq!(value(&said, CLIENT_ID), Some(&OWN_ID[..]));
    Some((answer[0], said))
}

/// In the namespace: asks for an address, and says whether it is offered in time (section 18.2.1).
pub(super) fn solicit(patience: Duration) {
    let wanted = option(ASSOCIATION, &OWN_ASSOCIATION);
    let Some((kind, said)) = ask(&open(patience), SOLICIT, &wanted) else {
        return println!("no offer.");
    };
    assert_eq!((kind, address(&said)), (ADVERTISE, Some(ADDRESS)));
    println!("an offer.");
    if let Some(name) = value(&said, QUALIFIED_NAME) {
        println!("qualified name: {name:?}");
    }
}

/// In the namespace: takes what is offered, keeps it, and gives it back (sections 18.2.2, 18.2.4,
/// 18.2.5 and 18.2.7).
pub(super) fn get_a_lease() {
    let socket = open(PATIENCE);
    let wanted = option(ASSOCIATION, &OWN_ASSOCIATION);
    let (_, offer) = ask(&socket, SOLICIT, &wanted).expect("an offer");
    let server = option(SERVER_ID, value(&offer, SERVER_ID).expect("who offers"));
    let offered = option(ASSOCIATION, value(&offer, ASSOCIATION).expect("what is offered"));
    for (kind, more) in [
        (REQUEST, [&server[..], &offered].concat()),
        (RENEW, [&server[..], &offered].concat()),
        // Any server may answer.
        (REBIND, offered.clone()),
    ] {
        let (answer, said) = ask(&socket, kind, &more).expect("a reply");
        assert_eq!((answer, address(&said)), (REPLY, Some(ADDRESS)), "to {kind}");
    }
    let (answer, said) = ask(&socket, RELEASE, &[server, offered].concat()).expect("a reply");
    let status = value(&said, STATUS).expect("what became of it");
    assert_eq!((answer, &status[..2]), (REPLY, &[0, 0][..]));
    println!("given back.");
}

#[test]
fn a_client_is_offered_the_address_of_the_host_and_gets_it() {
    in_namespace(|| {
        host();
        let namespace = Namespace::new();
        join(&namespace, &NO_PORTS);
        let said = succeed(namespace.program("get a lease", "127.0.0.1:1"));
        assert!(said.contains("given back."), "{said}");
    });
}
