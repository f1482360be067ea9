//! Names under tokio.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::mpsc::channel;

use neap::Stack;
use neap::tokio::{TcpListener, TcpStream, UdpSocket};

use crate::common::{Family, in_namespace};
use crate::on_runtime;

#[test]
fn a_resolver_that_blocks_does_not_hold_the_runtime_up() {
    in_namespace(|| {
        let family = Family::V4;
        let (release, released) = channel::<()>();
        let released = std::sync::Mutex::new(released);
        // Answers only after a task of the runtime's one thread has run meanwhile.
        let resolver = move |name: &str, port: u16| {
            assert_eq!(name, "server.test");
            released.lock().expect("one caller").recv().map_err(std::io::Error::other)?;
            Ok(vec![SocketAddr::new(Family::V4.kernel(), port)])
        };
        let stack = Stack::builder()
            .tun("t0")
            .host_address(family.cidr(family.kernel()))
            .address(&family.cidr(family.ours()))
            .resolver(resolver)
            .build()
            .expect("a stack on a TUN");
        let (_listener, address) = family.kernel_listener();
        on_runtime(1, async {
            let connect = TcpStream::connect(&stack, ("server.test", address.port()));
            let (stream, ()) = tokio::join!(connect, async {
                tokio::task::yield_now().await;
                release.send(()).expect("a resolver that waits");
            });
            let stream = stream.expect("connected");
            assert_eq!(stream.get_ref().peer_addr().expect("a peer"), address);
        });
    });
}

#[test]
fn addresses_are_tried_in_turn_and_names_need_a_resolver() {
    in_namespace(|| {
        let stack = Family::V4.stack();
        let (_listener, address) = Family::V4.kernel_listener();
        on_runtime(1, async {
            let closed = SocketAddr::new(Family::V4.kernel(), 9);
            let stream = TcpStream::connect(&stack, [closed, address]).await.expect("the second");
            assert_eq!(stream.get_ref().peer_addr().expect("a peer"), address);
            let error = TcpStream::connect(&stack, "server.test:80").await.expect_err("a name");
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            let foreign: SocketAddr = "10.9.0.9:80".parse().expect("an address");
            let own = SocketAddr::new(Family::V4.ours(), 80);
            let listener = TcpListener::bind(&stack, [foreign, own]).await.expect("the second");
            assert_eq!(listener.local_addr().expect("an address"), own);
            let udp = UdpSocket::bind(&stack, [foreign, own]).await.expect("the second");
            assert_eq!(udp.local_addr().expect("an address"), own);
        });
    });
}
