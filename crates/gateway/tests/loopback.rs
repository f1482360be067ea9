//! Clients of published ports at loopback addresses of the host, where the guest has them at its
//! own. The guest's network namespace is that of the test here.

mod common;

use neap_gateway::{Direct, GatewayConfig, GuestSockets, Publication, PublishedId, Transport};
use socket2::{Domain, Socket, Type};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

/// Far above what anything takes.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOPBACK: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// Sockets, as long as there are any. The first call is in vain.
#[derive(Debug, Default)]
struct Sockets {
    were_asked: AtomicBool,
    are_gone: AtomicBool,
}

impl GuestSockets for Sockets {
    fn open(&self, transport: Transport, is_v6: bool) -> io::Result<OwnedFd> {
        if self.are_gone.load(SeqCst) {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        if !self.were_asked.swap(true, SeqCst) {
            return Err(ErrorKind::WouldBlock.into());
        }
        let domain = if is_v6 { Domain::IPV6 } else { Domain::IPV4 };
        let kind = if transport == Transport::Tcp { Type::STREAM } else { Type::DGRAM };
        Ok(Socket::new(domain, kind, None)?.into())
    }
}

#[test]
fn they_reach_servers_at_the_loopback_address_alone_and_are_told_when_there_is_no_socket() {
    let sockets = Arc::<Sockets>::default();
    let mut config = GatewayConfig::default();
    config.guest_sockets = Some(sockets.clone());
    let (gateway, cable) = common::gateway(Box::new(Direct), config);
    // Nothing comes to the stack of the guest.
    let _guest = common::guest(cable);
    let (handle, engine) = (gateway.handle(), common::run(gateway));
    let publish = |transport, port| -> (PublishedId, SocketAddr) {
        let guest = (Ipv4Addr::new(10, 0, 2, 100), port).into();
        let (port, stand_in) = ((LOOPBACK, 0).into(), Ipv4Addr::new(10, 0, 2, 2).into());
        let id = handle.publish(Publication { transport, port, guest, stand_in });
        let id = id.expect("published");
        let all = handle.published().expect("it runs");
        (id, all.iter().find(|port| port.id == id).expect("it is there").publication.port)
    };

    let listener = TcpListener::bind((LOOPBACK, 0)).expect("a port");
    let (_, port) = publish(Transport::Tcp, listener.local_addr().expect("an address").port());
    thread::spawn(move || {
        let (mut stream, client) = listener.accept().expect("a client");
        let mut question = String::new();
        stream.read_to_string(&mut question).expect("a question");
        stream.write_all(format!("{question} {}", client.ip()).as_bytes()).expect("sent");
    });
    let connect = || {
        let stream = TcpStream::connect(port).expect("it is published");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream
    };
    let mut stream = connect();
    stream.write_all(b"question").expect("sent");
    stream.shutdown(Shutdown::Write).expect("it is open");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert_eq!(answer, "question 127.0.0.1");

    let server = UdpSocket::bind((LOOPBACK, 0)).expect("a port");
    server.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let (id, port) = publish(Transport::Udp, server.local_addr().expect("an address").port());
    let client = UdpSocket::bind((LOOPBACK, 0)).expect("a port");
    client.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut buffer = [0; 20];
    let mut seen = Vec::new();
    for question in [b"first", b"again"] {
        client.send_to(question, port).expect("sent");
        let (count, from) = server.recv_from(&mut buffer).expect("it comes");
        assert_eq!((&buffer[..count], from.ip()), (&question[..], LOOPBACK.into()));
        seen.push(from);
        server.send_to(b"answer", from).expect("sent");
        let (count, from) = client.recv_from(&mut buffer).expect("it comes back");
        assert_eq!((&buffer[..count], from), (&b"answer"[..], port));
    }
    assert_eq!(seen[0], seen[1], "a client has one socket");

    // The socket of a client is gone with its port.
    handle.unpublish(id).expect("it was there");
    let freed = UdpSocket::bind(seen[0]).expect("nobody has the address any more");
    drop(freed);
    sockets.are_gone.store(true, SeqCst);
    let lost = connect().read(&mut buffer).expect_err("nobody is there");
    assert_eq!(lost.kind(), ErrorKind::ConnectionReset);
    handle.stop();
    let figures = engine.join().expect("no panic");
    assert_eq!((figures.datagrams_out, figures.datagrams_in, figures.unreached), (2, 2, 1));
}
