//! Devices whose descriptors somebody else has opened: handed over a Unix socket, from another
//! network namespace too.

use std::fs::File;
use std::io::{ErrorKind, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::net::{IpAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::thread;

use neap::Stack;
use neap::device::{Device, Error, LinkConfig, Packet, PacketConfig, Tun, TunConfig};
use neap::device::{Medium, configure_link};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socket_with,
};

use crate::asleep::{announce, announcement, until_asleep};
use crate::common::{eventually, in_namespace, run};
use crate::links::{Elsewhere, add_address, veth};
use crate::network::exchange;

fn send_descriptor(to: &UnixStream, descriptor: BorrowedFd<'_>) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut message = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    assert!(message.push(SendAncillaryMessage::ScmRights(&descriptors)));
    sendmsg(to, &[IoSlice::new(b"!")], &mut message, SendFlags::empty()).expect("sent");
}

fn receive_descriptor(from: &UnixStream) -> OwnedFd {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut message = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut data = [IoSliceMut::new(&mut byte)];
    recvmsg(from, &mut data, &mut message, RecvFlags::CMSG_CLOEXEC).expect("received");
    let mut descriptors = message.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    descriptors.next().expect("a descriptor")
}

/// What the helper has opened, through a Unix socket.
fn hand_over(open: impl FnOnce(&UnixStream)) -> OwnedFd {
    let (here, there) = UnixStream::pair().expect("a pair");
    open(&there);
    receive_descriptor(&here)
}

/// A TUN or TAP named `t0` that is up, and its kernel's end.
fn open_tun(tap: bool) -> Device {
    let config = TunConfig { name: Some("t0".into()), tap, ..TunConfig::default() };
    let tun = Tun::open(&config).expect("a TUN");
    let addresses = vec![("10.9.0.1".parse().expect("an address"), 24)];
    configure_link("t0", &LinkConfig { addresses, ..LinkConfig::default() }).expect("an address");
    tun.into_device()
}

fn send_first(to: &UnixStream, device: &Device) {
    let descriptor = device.queues[0].descriptor.as_ref().expect("a descriptor");
    send_descriptor(to, descriptor.as_fd());
}

fn stack(device: Device) -> Stack {
    Stack::builder().device(device).address("10.9.0.2/24").build().expect("a stack")
}

fn connect(stack: &Stack, listener: &TcpListener) -> (neap::TcpStream, std::net::TcpStream) {
    let address = listener.local_addr().expect("an address");
    let ours = neap::TcpStream::connect(stack, address).expect("connect");
    (ours, listener.accept().expect("accept").0)
}

/// A read that waits fails when `delete` has taken the device away.
fn is_told(mut ours: neap::TcpStream, delete: impl FnOnce()) {
    thread::scope(|scope| {
        let (say, hear) = announcement();
        let reader = scope.spawn(move || {
            announce(&say);
            ours.read(&mut [0; 10]).map(drop)
        });
        until_asleep(&hear);
        delete();
        let error = reader.join().expect("no panic").expect_err("it is gone");
        assert_eq!(error.kind(), ErrorKind::NetworkDown, "{error}");
    });
}

#[test]
fn a_tun_of_another_namespace_is_taken_over() {
    in_namespace(|| {
        for tap in [false, true] {
            let there = Elsewhere::new();
            let open = || hand_over(|to| there.run(|| send_first(to, &open_tun(tap))));
            let error = Tun::from_fd(open(), None).expect_err("its MTU is not known");
            assert!(matches!(&error, Error::UnknownMtu { name } if name == "t0"), "{error}");
            let tun = Tun::from_fd(open(), Some(1400)).expect("a TUN");
            assert_eq!((tun.name(), tun.capabilities().mtu), ("t0", 1400));
            assert!(tun.capabilities().checksum_tx, "it has the header");
            assert_eq!(tun.capabilities().medium == Medium::Ip, !tap);
            let stack = stack(tun.into_device());
            let listener = there.run(|| TcpListener::bind("10.9.0.1:0").expect("bind"));
            let (mut ours, mut theirs) = connect(&stack, &listener);
            exchange(&mut ours, &mut theirs, 4 << 20);
            assert_eq!(ours.info().pmtu, 1400);
            is_told(ours, || {
                there.run(|| run("ip link del t0"));
            });
            assert!(stack.host().interfaces().is_empty());
        }
    });
}

#[test]
fn a_tun_that_was_handed_over_here_follows_its_interface() {
    in_namespace(|| {
        let descriptor = hand_over(|to| send_first(to, &open_tun(false)));
        run("ip link set t0 mtu 1300");
        let stack = stack(Tun::from_fd(descriptor, None).expect("a TUN").into_device());
        let mtu = || stack.host().interfaces()[0].capabilities.mtu;
        assert_eq!(mtu(), 1300);
        run("ip link set t0 mtu 1450");
        eventually(mtu, |mtu| *mtu == 1450);
        let listener = TcpListener::bind("10.9.0.1:0").expect("bind");
        let (mut ours, mut theirs) = connect(&stack, &listener);
        exchange(&mut ours, &mut theirs, 1 << 20);
        assert_eq!(ours.info().pmtu, 1450);
    });
}

#[test]
fn all_queues_of_a_tun_are_taken_over() {
    in_namespace(|| {
        let open = |name: &str, queues| {
            let config = TunConfig { name: Some(name.into()), queues, ..TunConfig::default() };
            Tun::open(&config).expect("a TUN").into_device()
        };
        let queue = |device: &Device, index: usize| {
            let descriptor = device.queues[index].descriptor.as_ref().expect("a descriptor");
            descriptor.try_clone().expect("a descriptor")
        };
        let there = Elsewhere::new();
        let queues = there.run(|| {
            let device = open("t0", 2);
            let addresses = vec![("10.9.0.1".parse().expect("an address"), 24)];
            let config = LinkConfig { addresses, ..LinkConfig::default() };
            configure_link("t0", &config).expect("an address");
            vec![queue(&device, 0), queue(&device, 1)]
        });
        let device = Tun::from_fds(queues, Some(1500)).expect("a TUN").into_device();
        assert_eq!(device.queues.len(), 2);
        let stack = stack(device);
        let listener = there.run(|| TcpListener::bind("10.9.0.1:0").expect("bind"));
        let mut pairs: Vec<_> = (0..16).map(|_| connect(&stack, &listener)).collect();
        for (ours, theirs) in &mut pairs {
            exchange(ours, theirs, 64 << 10);
        }
        let sent = &stack.host().interfaces()[0].ports;
        assert!(sent.len() == 2 && sent.iter().all(|port| port.frames > 0), "{sent:?}");

        // Queues of two devices are no device, also if both have one name.
        let (here, other) = (open("t0", 1), open("t1", 1));
        let far = there.run(|| open("t1", 1));
        for pair in [[queue(&here, 0), queue(&other, 0)], [queue(&other, 0), queue(&far, 0)]] {
            let error = Tun::from_fds(pair.into(), Some(1500)).expect_err("two devices");
            assert!(error.to_string().contains("of another TUN device"), "{error}");
        }
        let error = Tun::from_fds(Vec::new(), None).expect_err("no queues");
        assert!(matches!(error, Error::OutOfRange { option: "queues", value: 0, .. }), "{error}");
    });
}

fn packet_socket(kind: SocketType) -> OwnedFd {
    socket_with(AddressFamily::PACKET, kind, SocketFlags::CLOEXEC, None).expect("a socket")
}

#[test]
fn a_packet_socket_of_another_namespace_is_taken_over() {
    in_namespace(|| {
        let there = Elsewhere::new();
        veth(&there);
        add_address("v0", "10.9.0.1/24");
        let socket = hand_over(|to| {
            there.run(|| send_descriptor(to, packet_socket(SocketType::RAW).as_fd()));
        });
        let config = PacketConfig::new("v1");
        let stack = stack(Packet::from_fd(socket, &config).expect("a device").into_device());
        let listener = TcpListener::bind("10.9.0.1:0").expect("bind");
        let (mut ours, mut theirs) = connect(&stack, &listener);
        exchange(&mut ours, &mut theirs, 4 << 20);
        is_told(ours, || {
            run("ip link del v0");
        });
    });
}

#[test]
fn descriptors_of_other_things_are_refused() {
    fn found<T: std::fmt::Debug>(result: Result<T, Error>) -> &'static str {
        match result {
            Err(Error::Descriptor { found, .. }) => found,
            other => panic!("{other:?}"),
        }
    }
    in_namespace(|| {
        let loopback = IpAddr::from([127, 0, 0, 1]);
        let udp = || OwnedFd::from(std::net::UdpSocket::bind((loopback, 0)).expect("bind"));
        let file = |path| OwnedFd::from(File::options().read(true).open(path).expect(path));
        assert_eq!(found(Tun::from_fd(udp(), None)), "not a TUN or TAP device");
        assert_eq!(found(Tun::from_fd(file("/dev/null"), None)), "not a TUN or TAP device");
        let loose = File::options().read(true).write(true).open("/dev/net/tun").expect("TUN");
        let found_loose = found(Tun::from_fd(loose.into(), None));
        assert_eq!(found_loose, "a TUN device that belongs to no interface");

        let there = Elsewhere::new();
        veth(&there);
        let config = PacketConfig::new("v0");
        assert_eq!(found(Packet::from_fd(udp(), &config)), "a socket of another family");
        assert_eq!(found(Packet::from_fd(file("/dev/null"), &config)), "not a socket");
        let datagrams = packet_socket(SocketType::DGRAM);
        let error = found(Packet::from_fd(datagrams, &config));
        assert_eq!(error, "an AF_PACKET socket of another type");
        let bound = Packet::open(&config).expect("a device").into_device();
        let socket = hand_over(|to| send_first(to, &bound));
        let error = Packet::from_fd(socket, &PacketConfig::new("v9")).expect_err("another name");
        assert!(matches!(&error, Error::BoundElsewhere { bound, .. } if bound == "v0"), "{error}");
        let two = PacketConfig { queues: 2, ..PacketConfig::new("v0") };
        let error = Packet::from_fd(packet_socket(SocketType::RAW), &two).expect_err("one socket");
        assert!(matches!(error, Error::OutOfRange { option: "queues", .. }), "{error}");
    });
}
