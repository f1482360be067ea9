//! A gateway in a process that has no descriptors for a while. It is the only test of its process.

mod common;

use neap::TcpListener;
use neap_gateway::{Direct, GatewayConfig, Publication, Transport};
use rustix::process::{Resource, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

/// Far above what anything takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for something that nobody tells of.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        thread::yield_now();
    }
}

/// What the guest says on a connection that comes by its published port.
fn hears(mut client: TcpStream) {
    client.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    client.read_exact(&mut [0; 5]).expect("the guest says hello");
}

#[test]
fn a_connection_that_came_while_there_were_no_descriptors_is_taken_later() {
    let (mut gateway, cable) = common::gateway(Box::new(Direct), GatewayConfig::default());
    let publication = Publication {
        transport: Transport::Tcp,
        port: "127.0.0.1:0".parse().expect("an address"),
        guest: "10.0.2.100:7".parse().expect("an address"),
        stand_in: "10.0.2.2".parse().expect("an address"),
    };
    gateway.publish(publication).expect("a port");
    let port = gateway.published()[0].publication.port;
    let (handle, inspector) = (gateway.handle(), gateway.inspector());
    let engine = common::run(gateway);
    let guest = common::guest(cable);
    let listener = TcpListener::bind(&guest, "10.0.2.100:7").expect("a port");
    let server = thread::spawn(move || {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().expect("a connection");
            stream.write_all(b"hello").expect("sent");
        }
    });
    hears(TcpStream::connect(port).expect("connected"));
    let is_idle = || inspector.holdings().is_some_and(|held| held.flows.is_empty());
    until("the first connection gives its descriptors back", is_idle);
    let client = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let before = getrlimit(Resource::Nofile);
    let mut none = before;
    none.current = Some(File::open("/dev/null").expect("a file").as_raw_fd() as u64);
    setrlimit(Resource::Nofile, none).expect("a lower limit");
    client.connect(&port.into()).expect("the kernel accepts it");
    until("the gateway has found no descriptor", || inspector.figures().full > 0);
    setrlimit(Resource::Nofile, before).expect("the limit from before");
    hears(client.into());
    server.join().expect("no panic");
    handle.stop();
    let figures = engine.join().expect("no panic");
    assert!(figures.full > 0 && figures.unreached == 0, "{figures:?}");
}
