//! Pacing reaches through the tunnel: the datagrams of a paced flow leave the socket of the host in
//! the time of its segments. The kernel's time stamps tell, so that a busy machine only makes gaps
//! longer, but for what the flow makes good.

use super::{counter, pair, read_pattern, write_pattern};
use neap::{TcpListener, TcpStream};
use nix::cmsg_space;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};
use nix::sys::time::TimeSpec;
use std::io::IoSliceMut;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Bytes a second of the paced flow.
const RATE: u64 = 250_000;
/// Bytes that it sends, and one that is not paced.
const TOTALS: [usize; 2] = [200_000, 4_000_000];
/// What is sent at once after the host was late: `neap.tcp_pacing_debt_us` has 50 ms of the rate,
/// and the time from the schedule to the call is twice as much at the most.
const BURST: u64 = RATE * 150 / 1000;
/// Datagrams of a frame at such a rate, at the most.
const FRAME: u64 = 3;
/// Bytes of a datagram that are no payload: those of the tunnel, and headers of IPv4 and TCP with
/// time stamps.
const NO_PAYLOAD: usize = 32 + 52;
/// Datagrams at the beginning that pacing leaves alone: those of the first ten segments.
const UNPACED: usize = 12;

/// A datagram of the near end, and when the host had it.
struct Sent {
    at: Duration,
    len: usize,
}

/// Hands datagrams of one end on, until one is empty. Returns the large ones.
fn record(from: &UdpSocket, by: &UdpSocket, to: SocketAddr) -> Vec<Sent> {
    let (mut buffer, mut space, mut all) = ([0; 2048], cmsg_space!(TimeSpec), Vec::new());
    loop {
        let mut parts = [IoSliceMut::new(&mut buffer)];
        let received =
            recvmsg::<()>(from.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::empty());
        let received = received.expect("a datagram");
        let stamp = received.cmsgs().expect("messages").find_map(|message| match message {
            ControlMessageOwned::ScmTimestampns(at) => Some(Duration::from(at)),
            _ => None,
        });
        let len = received.bytes;
        if len == 0 {
            return all;
        }
        if len > 1000 {
            all.push(Sent { at: stamp.expect("a time"), len });
        }
        by.send_to(&buffer[..len], to).expect("sent");
    }
}

/// Hands answers on, until one is empty.
fn answer(from: &UdpSocket, by: &UdpSocket, to: SocketAddr) {
    let mut buffer = [0; 2048];
    while let Ok((len @ 1.., _)) = from.recv_from(&mut buffer) {
        by.send_to(&buffer[..len], to).expect("sent");
    }
}

/// An upload through a tunnel: its datagrams, and how many of them a frame has.
fn upload(pace: Option<u64>, total: usize) -> (Vec<Sent>, u64) {
    let [near, far] = pair(["10.7.8.1", "10.7.8.2"], "127.0.0.1");
    let [middle, back] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").expect("a socket"));
    setsockopt(&middle, sockopt::ReceiveTimestampns, &true).expect("an option");
    let at = |socket: &UdpSocket| socket.local_addr().expect("an address");
    let (middle_at, back_at) = (at(&middle), at(&back));
    let near_at = SocketAddr::from((Ipv4Addr::LOCALHOST, near.handle.status().listen_port));
    let known = near.handle.status().peers.remove(0);
    near.handle.set_endpoint(&known.public_key, middle_at).expect("a peer");
    let far_at = known.endpoint.expect("the far end");
    let to: SocketAddr = "10.7.8.2:80".parse().expect("an address");
    let listener = TcpListener::bind(&far.stack, to).expect("a listener");
    std::thread::scope(|scope| {
        let recorder = scope.spawn(|| record(&middle, &back, far_at));
        scope.spawn(|| answer(&back, &middle, near_at));
        let reader = scope.spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            read_pattern(&mut stream, total);
        });
        let mut stream = TcpStream::connect(&near.stack, to).expect("a connection");
        stream.set_max_pacing_rate(pace).expect("an option");
        write_pattern(&mut stream, total);
        reader.join().expect("all has come");
        let end = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        for place in [middle_at, back_at] {
            end.send_to(&[], place).expect("sent");
        }
        let frames = counter(&near, "frames_sealed");
        let datagrams = counter(&near, "datagrams_sealed");
        (recorder.join().expect("no panic"), datagrams.div_ceil(frames))
    })
}

/// The largest number of payload bytes that a bucket ever holds which runs out at a third more than
/// the rate: so fast a flow makes good what a busy host has cost it.
fn largest_bucket(sent: &[Sent]) -> u64 {
    let (mut held, mut most) = (0.0, 0.0_f64);
    let paced = &sent[UNPACED..];
    for (before, now) in paced.iter().zip(&paced[1..]) {
        let gap = now.at.saturating_sub(before.at).as_secs_f64();
        held = f64::max(held - gap * RATE as f64 * 4.0 / 3.0, 0.0) + (now.len - NO_PAYLOAD) as f64;
        most = most.max(held);
    }
    most as u64
}

#[test]
fn datagrams_of_a_paced_flow_leave_in_the_time_of_its_segments() {
    let (paced, in_frame) = upload(Some(RATE), TOTALS[0]);
    let bound = BURST + FRAME * 1500;
    let bucket = largest_bucket(&paced);
    assert!(bucket <= bound, "{bucket} bytes at once");
    assert!(in_frame <= FRAME, "{in_frame} datagrams in a frame");
    // One that is not paced has no such gaps.
    let (unpaced, _) = upload(None, TOTALS[1]);
    assert!(largest_bucket(&unpaced) > bound);
}
