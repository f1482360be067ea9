//! A UDP socket for every address and port, with clients of the kernel behind a TUN.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use neap::{Datagram, Events, Poller, Refusal, UdpForwarder, UdpForwarderOptions};

use crate::common::foreign::{LONG, Link, addresses, seen, sniffer, stack, udp_client as client};
use crate::common::{Family, Pattern, in_namespace};

#[test]
fn every_address_answers_and_ttl_and_tos_pass_both_ways() {
    in_namespace(|| {
        for family in Family::BOTH {
            let stack = stack(family, Link::Tun);
            let forwarder = UdpForwarder::new(&stack, UdpForwarderOptions::default());
            let forwarder = forwarder.expect("a forwarder");
            forwarder.set_read_timeout(LONG).expect("a timeout");
            let sniffer = sniffer();
            for (nth, address) in (1..).zip(addresses(family)) {
                let peer = SocketAddr::new(address, 53 * u16::from(nth));
                let client = client(family, peer, 40 + nth, 0x2c + nth);
                let question = Pattern(nth.into()).bytes(1000 * usize::from(nth));
                client.send(&question).expect("sent");
                let asked = forwarder.recv().expect("a question");
                let own = client.local_addr().expect("an address");
                assert_eq!((asked.peer, asked.local), (own, Some(peer)));
                assert!(asked.data == question, "{} bytes", asked.data.len());
                let arrival = asked.arrival.expect("it was received");
                assert_eq!((arrival.hop_limit, arrival.tos), (40 + nth, 0x2c + nth));
                assert!(arrival.interface.is_some() && !arrival.is_broadcast);
                let answer = asked.reply(&b"answer"[..]);
                let answer = Datagram { hop_limit: Some(nth), tos: Some(0xfc + nth), ..answer };
                forwarder.send(&answer).expect("sent");
                let mut buf = [0; 16];
                assert_eq!(client.recv(&mut buf).expect("from the same address"), 6);
                assert_eq!(&buf[..6], b"answer");
                assert_eq!(seen(&sniffer, address), (nth, 0xfc + nth));
                // Without a word about them they are the defaults.
                forwarder.send(&asked.reply(&b"again"[..])).expect("sent");
                assert_eq!(client.recv(&mut buf).expect("an answer"), 5);
                assert_eq!(seen(&sniffer, address), (64, 0));
            }
        }
    });
}

#[test]
fn a_refusal_is_the_error_of_the_kernels_socket() {
    in_namespace(|| {
        for family in Family::BOTH {
            let stack = stack(family, Link::Tun);
            let forwarder = UdpForwarder::new(&stack, UdpForwarderOptions::default());
            let forwarder = forwarder.expect("a forwarder");
            forwarder.set_read_timeout(LONG).expect("a timeout");
            let peer = SocketAddr::new(addresses(family)[0], 53);
            // In one packet, and in fragments.
            for len in [10, 4000] {
                let client = client(family, peer, 64, 0);
                client.send(&vec![1; len]).expect("sent");
                let asked = forwarder.recv().expect("a question");
                forwarder.refuse(&asked, Refusal::Port).expect("sent");
                let error = client.recv(&mut [0; 16]).expect_err("refused");
                assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{len} bytes");
            }
            let sent = Datagram::new(&b"x"[..], peer);
            let error = forwarder.refuse(&sent, Refusal::Port).expect_err("nobody sent it");
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
        }
    });
}

#[test]
fn what_the_kernel_refuses_is_told_with_both_ends() {
    in_namespace(|| {
        for family in Family::BOTH {
            let stack = stack(family, Link::Tun);
            let forwarder = UdpForwarder::new(&stack, UdpForwarderOptions::default());
            let forwarder = forwarder.expect("a forwarder");
            forwarder.set_read_timeout(LONG).expect("a timeout");
            forwarder.set_receive_errors(true).expect("set");
            let poller = Poller::new().expect("a poller");
            poller.add(&forwarder, 7, Events::IN).expect("added");
            let own = SocketAddr::new(addresses(family)[0], 53);
            let closed = SocketAddr::new(family.kernel(), 9);
            let datagram = Datagram { local: Some(own), ..Datagram::new(&b"anybody?"[..], closed) };
            forwarder.send(&datagram).expect("sent");
            let mut events = Vec::new();
            while events.is_empty() {
                poller.wait(&mut events, LONG).expect("an event");
            }
            assert_eq!((events[0].token, events[0].events), (7, Events::ERR));
            let record = forwarder.recv_error().expect("a record");
            assert_eq!((record.source, record.destination), (Some(own), closed));
            assert_eq!(record.error, neap::ConnectionError::Refused);
            assert_eq!(&record.data[..], b"anybody?");
            poller.wait(&mut events, Some(Duration::ZERO)).expect("nothing");
            assert!(events.is_empty(), "{events:?}");
            forwarder.set_nonblocking(true).expect("a mode");
            let none = forwarder.recv_error().expect_err("there was one");
            assert_eq!(none.kind(), ErrorKind::WouldBlock);
            // It sends from somewhere, and it is not the stack that says from where.
            let nowhere = forwarder.send(&Datagram::new(&b"x"[..], closed)).expect_err("no end");
            assert_eq!(nowhere.kind(), ErrorKind::AddrNotAvailable);
        }
    });
}

#[test]
fn many_clients_are_served_by_a_thread_that_polls() {
    const CLIENTS: u8 = 100;
    in_namespace(|| {
        let family = Family::V4;
        let stack = stack(family, Link::Tun);
        let forwarder = UdpForwarder::new(&stack, UdpForwarderOptions::default());
        let forwarder = forwarder.expect("a forwarder");
        forwarder.set_nonblocking(true).expect("a mode");
        let server = thread::spawn(move || {
            let poller = Poller::new().expect("a poller");
            poller.add(&forwarder, 1, Events::IN | Events::ET).expect("added");
            let (mut events, mut all) = (Vec::new(), Vec::new());
            let mut served = 0;
            while served < usize::from(CLIENTS) {
                poller.wait(&mut events, LONG).expect("an event");
                let none: io::Error = loop {
                    match forwarder.recv_batch(&mut all, 16) {
                        Ok(_) => {}
                        Err(none) => break none,
                    }
                };
                assert_eq!(none.kind(), ErrorKind::WouldBlock);
                let answers: Vec<_> =
                    all.drain(..).map(|one| one.reply(one.data.clone())).collect();
                let mut sent = 0;
                while sent < answers.len() {
                    sent += forwarder.send_batch(&answers[sent..]).expect("room");
                }
                served += sent;
            }
        });
        let clients: Vec<_> = (0..CLIENTS)
            .map(|nth| {
                let peer = SocketAddr::from(([192, 0, 2, nth], 1000 + u16::from(nth)));
                client(family, peer, 64, 0)
            })
            .collect();
        for (nth, client) in (0..).zip(&clients) {
            client.send(&Pattern(nth).bytes(100)).expect("sent");
        }
        for (nth, client) in (0..).zip(&clients) {
            let mut buf = [0; 200];
            let len = client.recv(&mut buf).expect("an answer");
            assert_eq!(len, 100);
            Pattern(nth).check(0, &buf[..len]);
        }
        server.join().expect("the server");
    });
}
