//! The network namespace behind the gateway, and its servers.

use crate::common::{Family, run};
use crate::host::{Host, await_links};
use crate::victim::{DAYTIME, DISCARD, ECHO, SOURCE};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

/// Port of resolvers.
pub(crate) const DNS: u16 = 53;
/// Bytes of one write of the source.
const CHUNK: usize = 64 << 10;
/// Mark of what the gateway sends, by which it takes this way and not that of its guests.
pub(crate) const MARK: &str = "7";

/// The addresses of the link between the machine of the gateway and the world.
pub(crate) fn link(family: Family) -> [IpAddr; 2] {
    [family.text("192.0.2.2", "fd00:192::2"), family.text("192.0.2.1", "fd00:192::1")]
}

/// Address of the world on its link, where a resolver is that never answers.
pub(crate) fn resolver(family: Family) -> IpAddr {
    link(family)[1]
}

/// Makes the world, with a way to it for what the gateway sends. All addresses of its networks are
/// its own.
pub(crate) fn make(family: Family) -> Host {
    let world = Host::new(true);
    let [near, far] = link(family);
    let is_v4 = family == Family::V4;
    let (ip, any) = if is_v4 { ("ip", "0.0.0.0/0") } else { ("ip -6", "::/0") };
    let nodad = if is_v4 { "" } else { "nodad" };
    run(&format!("ip link add outside type veth peer name far netns {}", world.pid()));
    run(&format!("ip address add {} dev outside {nodad}", family.cidr(near)));
    run("ip link set outside up");
    if is_v4 {
        run("sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.outside.rp_filter=0");
    }
    // Guests may ping, and what does not answer is given up soon.
    std::fs::write("/proc/sys/net/ipv4/ping_group_range", "0 2147483647").expect("a sysctl");
    run("sysctl -qw net.ipv4.tcp_syn_retries=1");
    world.inside(|| {
        run("ip link set lo up");
        run(&format!("ip address add {} dev far {nodad}", family.cidr(far)));
        run("ip link set far up");
        let network = family.text("10.9.0.0", "fd00:9::");
        run(&format!("ip route add local {} dev lo", family.cidr(network)));
        await_links(&["far"]);
    });
    await_links(&["outside"]);
    // Who has not said anything yet is not known.
    run(&format!("{ip} rule add fwmark {MARK} table {MARK} pref 10"));
    run(&format!("{ip} route add {any} via {far} dev outside table {MARK}"));
    world.inside(|| serve(family));
    world
}

/// Makes the world what is behind the machine of the gateway, for whatever is sent there.
pub(crate) fn make_default(family: Family) {
    let ip = if family == Family::V4 { "ip" } else { "ip -6" };
    run(&format!("{ip} route add default via {} dev outside", link(family)[1]));
}

/// Starts the servers in the namespace of this thread.
fn serve(family: Family) {
    let any: IpAddr = match family {
        Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
        Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
    };
    for (port, work) in [
        (ECHO, echo as fn(TcpStream)),
        (DISCARD, discard),
        (SOURCE, source),
        (DAYTIME, |stream| drop(stream)),
    ] {
        let listener = TcpListener::bind((any, port)).expect("a port");
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A thread that cannot be had costs the connection and nothing else.
                let _ = thread::Builder::new().stack_size(128 << 10).spawn(move || work(stream));
            }
        });
    }
    let datagrams = UdpSocket::bind((any, ECHO)).expect("a port");
    thread::spawn(move || {
        let mut data = [0; 2048];
        loop {
            if let Ok((count, from)) = datagrams.recv_from(&mut data) {
                let _ = datagrams.send_to(&data[..count], from);
            }
        }
    });
    // It takes questions and never answers.
    let silent = UdpSocket::bind((any, DNS)).expect("a port");
    thread::spawn(move || while silent.recv_from(&mut [0; 2048]).is_ok() {});
}

fn echo(mut stream: TcpStream) {
    let mut data = vec![0; 16 << 10];
    while let Ok(count) = stream.read(&mut data)
        && count > 0
        && stream.write_all(&data[..count]).is_ok()
    {}
}

fn discard(mut stream: TcpStream) {
    let mut data = vec![0; 16 << 10];
    while stream.read(&mut data).is_ok_and(|count| count > 0) {}
}

fn source(mut stream: TcpStream) {
    // A peer that does not read is given up.
    let _ = stream.set_write_timeout(Some(Duration::from_secs(3)));
    let chunk = vec![b'.'; CHUNK];
    while stream.write_all(&chunk).is_ok() {}
}
