//! Wakers that call the socket that they are called for, and what a told error leaves to be seen.

use super::datagrams::{bind, forwarder, received, send, to};
use super::{SECOND, address};
use crate::common::{WireConfig, World};
use bytes::Bytes;
use core::time::Duration;
use neap_stack::device::{LinkState, LinkStatus};
use neap_stack::socket::SocketError;
use neap_stack::socket::icmp::{IcmpMessage, IcmpOptions};
use neap_stack::socket::readiness::Ready;
use neap_stack::socket::udp::{SendDatagram, UdpHandle};
use neap_stack::stack::{ConnectOptions, ListenOptions, TcpForwarderOptions};
use neap_stack::wait::Source;
use neap_tcp::connection::ConnectionError;
use std::sync::{Arc, Mutex, mpsc};
use std::task::Wake;
use std::thread;

/// The longest that anything may take here: far above what it takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// A waker that takes something from a socket, and keeps it.
struct Taker<T> {
    take: Box<dyn Fn() -> Option<T> + Send + Sync>,
    taken: Mutex<Vec<T>>,
}

impl<T: Send> Wake for Taker<T> {
    fn wake(self: Arc<Self>) {
        if let Some(taken) = (self.take)() {
            self.taken.lock().unwrap().push(taken);
        }
    }
}

/// Leaves a waker with `socket` that calls `take` with it.
fn taker<S, T>(
    socket: &S,
    interest: Ready,
    take: impl Fn(&S) -> Option<T> + Send + Sync + 'static,
) -> Arc<Taker<T>>
where
    S: Source + Clone + Send + Sync + 'static,
    T: Send + 'static,
{
    let own = socket.clone();
    let taken = Mutex::new(Vec::new());
    let taker = Arc::new(Taker { take: Box::new(move || take(&own)), taken });
    assert!(socket.register(socket.readiness(), interest, &taker.clone().into()));
    taker
}

/// Does `what` in a thread, where one that waits for itself fails the test.
fn in_time(what: impl FnOnce() + Send + 'static) {
    let (tell, told) = mpsc::channel();
    let run = move || {
        what();
        let _ = tell.send(());
    };
    thread::Builder::new().spawn(run).unwrap();
    told.recv_timeout(PATIENCE).expect("it ends, and no thread waits for itself");
}

fn gone() -> LinkStatus {
    LinkStatus::new(LinkState::Gone)
}

#[test]
fn a_waker_may_take_the_datagram_that_it_is_called_for() {
    let mut world = World::new(&WireConfig::default());
    let server = bind(&world.b, "10.0.0.2:53");
    let client = bind(&world.a, "10.0.0.1:0");
    let taker = taker(&server, Ready::READABLE, |server| server.recv_from().ok());
    in_time(move || {
        send(&world, &client, to(address("10.0.0.2:53"), b"x")).unwrap();
        world.run(SECOND);
        assert_eq!(taker.taken.lock().unwrap().len(), 1);
    });
    assert!(received(&server).is_empty());
}

#[test]
fn a_waker_may_take_the_error_that_it_is_called_for() {
    let mut world = World::new(&WireConfig::default());
    let client = bind(&world.a, "10.0.0.1:0");
    client.set_receive_errors(true, true);
    client.connect(Some(address("10.0.0.2:53"))).unwrap();
    let records = taker(&client, Ready::ERROR_QUEUE, UdpHandle::next_error);
    let errors = taker(&client, Ready::ERROR, UdpHandle::take_error);
    in_time(move || {
        send(&world, &client, SendDatagram::new(Bytes::from_static(b"x"), None)).unwrap();
        world.run(SECOND);
        assert_eq!(records.taken.lock().unwrap().len(), 1);
        // The record took its error with it.
        assert!(errors.taken.lock().unwrap().is_empty());
        let errors = taker(&client, Ready::ERROR, UdpHandle::take_error);
        world.a.set_link_status(world.now, world.a_interface, gone()).unwrap();
        let down = SocketError::Reported(ConnectionError::NetworkDown);
        assert_eq!(*errors.taken.lock().unwrap(), [down]);
    });
}

#[test]
fn a_waker_may_take_the_message_that_it_is_called_for() {
    let mut world = World::new(&WireConfig::default());
    let options =
        IcmpOptions { foreign: false, own: true, transparent: false, ..IcmpOptions::default() };
    let sockets = [(); 2].map(|()| world.b.open_icmp(options.clone()).unwrap());
    let takers = sockets.each_ref().map(|one| taker(one, Ready::READABLE, |one| one.recv().ok()));
    let asker = world.a.open_icmp(IcmpOptions::default()).unwrap();
    in_time(move || {
        let (from, to) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let ping = IcmpMessage::new(from, to, vec![8, 0, 0, 0, 0, 0, 0, 0]);
        asker.send(world.now, &ping).unwrap();
        world.run(SECOND);
        for taker in takers {
            assert_eq!(taker.taken.lock().unwrap().len(), 1);
        }
        let errors = sockets.map(|one| taker(&one, Ready::ERROR, |one| one.recv().err()));
        world.b.set_link_status(world.now, world.b_interface, gone()).unwrap();
        for taker in errors {
            let down = SocketError::Reported(ConnectionError::NetworkDown);
            assert_eq!(*taker.taken.lock().unwrap(), [down]);
        }
    });
}

#[test]
fn a_waker_may_accept_the_connection_that_it_is_called_for() {
    let mut world = World::with_any_destination(&WireConfig::default());
    let listener = world.b.listen(address("10.0.0.2:80"), ListenOptions::default()).unwrap();
    let accepted = taker(&listener, Ready::READABLE, |listener| listener.accept().ok());
    let forwarder = world.b.forward_tcp(TcpForwarderOptions::default()).unwrap();
    let pending = taker(&forwarder, Ready::READABLE, |forwarder| forwarder.receive().ok());
    in_time(move || {
        let open = |to| world.a.connect(world.now, address(to), ConnectOptions::default()).unwrap();
        let _clients = ["10.0.0.2:80", "192.0.2.7:80"].map(open);
        world.run(SECOND);
        assert_eq!(accepted.taken.lock().unwrap().len(), 1);
        assert_eq!(pending.taken.lock().unwrap().len(), 1);
        let accepted = taker(&listener, Ready::ERROR, |listener| listener.accept().err());
        let pending = taker(&forwarder, Ready::ERROR, |forwarder| forwarder.receive().err());
        world.b.set_link_status(world.now, world.b_interface, gone()).unwrap();
        let down = SocketError::Reported(ConnectionError::NetworkDown);
        assert_eq!(*accepted.taken.lock().unwrap(), [down]);
        assert_eq!(*pending.taken.lock().unwrap(), [down]);
    });
}

#[test]
fn the_records_of_a_forwarder_are_to_be_seen_until_they_are_read() {
    let mut world = World::with_any_destination(&WireConfig::default());
    let forwarder = forwarder(&world.b);
    forwarder.set_receive_errors(true, true);
    let from = Some(address("192.0.2.7:53"));
    let datagram = SendDatagram { from, ..to(address("10.0.0.1:9"), b"hello") };
    send(&world, &forwarder, datagram).unwrap();
    world.run(SECOND);
    assert_eq!(forwarder.take_error(), None);
    assert!(forwarder.readiness().bits().contains(Ready::ERROR));
    // Another error comes, and is told. The record is still there.
    world.b.set_link_status(world.now, world.b_interface, gone()).unwrap();
    let down = SocketError::Reported(ConnectionError::NetworkDown);
    assert_eq!(forwarder.recv_from().unwrap_err(), down);
    assert!(forwarder.readiness().bits().contains(Ready::ERROR));
    assert!(forwarder.next_error().is_some());
    assert!(!forwarder.readiness().bits().contains(Ready::ERROR));
}

#[test]
fn the_end_of_the_stack_is_to_be_seen_whatever_error_is_told() {
    let world = World::new(&WireConfig::default());
    let [plain, failed] = [(); 2].map(|()| bind(&world.b, "0.0.0.0:0"));
    world.b.set_link_status(world.now, world.b_interface, gone()).unwrap();
    let down = SocketError::Reported(ConnectionError::NetworkDown);
    assert_eq!(plain.take_error(), Some(down));
    assert!(!plain.readiness().bits().contains(Ready::ERROR));
    world.b.shut_down(world.now);
    for (socket, error) in [(plain, None), (failed, Some(down))] {
        assert_eq!(socket.take_error(), error);
        assert!(socket.readiness().bits().contains(Ready::ERROR));
        assert_eq!(socket.recv_from().unwrap_err(), SocketError::ShutDown);
    }
}
