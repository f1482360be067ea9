//! A load in the process of the tunnel, for `benches/wireguard`: flows that send or receive as fast
//! as they go, without a proxy.
//!
//! ```text
//! load FILE up|down TARGET FLOWS SECONDS [CONGESTION]
//! ```
//!
//! `FILE` is that of wg-quick. The result is one JSON object. The counters of the tunnel that are
//! not zero go to the standard error.

use neap::net::{Address, Prefix};
use neap::{InterfaceConfig, Stack, TcpStream};
use neap_wireguard::Wireguard;
use neap_wireguard::file::{File, HostPort};
use std::error::Error;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of a call.
const CALL: usize = 128 << 10;
/// How long the last bytes may take.
const DRAIN: Duration = Duration::from_secs(10);
const USAGE: &str = "load FILE up|down TARGET FLOWS SECONDS [CONGESTION]";

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [file, way, target, flows, seconds, congestion @ ..] = &words[..] else {
        return Err(USAGE.into());
    };
    let (target, flows): (SocketAddr, usize) = (target.parse()?, flows.parse()?);
    let length = Duration::from_secs_f64(seconds.parse()?);
    let file = File::read(Path::new(file))?;
    let wireguard = Wireguard::open(&file.wireguard(HostPort::address))?;
    let handle = wireguard.handle();
    let mut interface = InterfaceConfig::new(wireguard.into_device());
    for address in &file.interface.addresses {
        let ip = address.addr();
        interface = interface.address(Address { ip, prefix: Prefix::of_host(ip) });
    }
    for prefix in file.peers.iter().flat_map(|peer| &peer.allowed_ips) {
        interface = interface.on_link(Prefix::new(prefix.network(), prefix.prefix_len())?);
    }
    let mut builder = Stack::builder().interface(interface);
    if let Some(name) = congestion.first() {
        builder = builder.sysctl("net.ipv4.tcp_congestion_control", name);
    }
    let stack = builder.build()?;
    let streams: io::Result<Vec<_>> =
        (0..flows).map(|_| TcpStream::connect(&stack, target)).collect();
    let (streams, start) = (streams?, Instant::now());
    let end = start + length;
    let is_up = way == "up";
    let bytes: u64 = thread::scope(|scope| {
        let flows: Vec<_> = streams
            .iter()
            .map(|stream| scope.spawn(move || run(stream, is_up, end).unwrap_or_default()))
            .collect();
        flows.into_iter().map(|flow| flow.join().unwrap_or_default()).sum()
    });
    let took = start.elapsed().as_secs_f64();
    if is_up {
        drain(&streams)?;
    }
    let gbps = bytes as f64 * 8.0 / took / 1e9;
    println!("{{\"bytes\":{bytes},\"seconds\":{took:.3},\"gbps\":{gbps:.4}}}");
    for stream in streams.iter().take(1) {
        eprintln!("{}", stream.info());
    }
    for (name, count) in stack.host().tcp_counters().into_iter().filter(|(_, count)| *count > 0) {
        eprintln!("{name:?} {count}");
    }
    for (name, count) in handle.status().counters.into_iter().filter(|(_, count)| *count > 0) {
        eprintln!("{name} {count}");
    }
    Ok(())
}

/// One flow. Answers its bytes.
fn run(mut stream: &TcpStream, is_up: bool, end: Instant) -> io::Result<u64> {
    let mut buffer = vec![7; CALL];
    let mut bytes = 0;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(bytes);
        }
        let done = if is_up {
            stream.set_write_timeout(Some(left))?;
            stream.write(&buffer)
        } else {
            stream.set_read_timeout(Some(left))?;
            stream.read(&mut buffer)
        };
        match done {
            Ok(0) => return Ok(bytes),
            Ok(count) => bytes += count as u64,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(bytes),
            Err(error) => return Err(error),
        }
    }
}

/// Half-closes, and waits until the far side has read everything and closed, too.
fn drain(streams: &[TcpStream]) -> io::Result<()> {
    for stream in streams {
        stream.shutdown(Shutdown::Write)?;
    }
    for mut stream in streams {
        stream.set_read_timeout(Some(DRAIN))?;
        // Late or reset: the far side's figures tell.
        let _ = stream.read(&mut [0]);
    }
    Ok(())
}
