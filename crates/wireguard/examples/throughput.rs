//! Bytes per second from one stack to another, each on a WireGuard device of its own.
//!
//! Both in one process, over UDP sockets of the loopback, for five seconds:
//!
//! ```sh
//! cargo run --release -p neap-wireguard --example throughput -- both 5
//! ```
//!
//! Or on two hosts or in two network namespaces: `far` first, then `near ADDRESS SECONDS [SEALERS]`
//! with the address of the far one.

use neap::{Stack, TcpListener, TcpStream};
use neap_wireguard::{Peer, PrivateKey, Wireguard, WireguardConfig, WireguardHandle};
use std::error::Error;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// The port of the far end.
const PORT: u16 = 51_820;
/// Everybody knows these keys: measure with them, and nothing else.
const KEYS: [[u8; 32]; 2] = [[1; 32], [2; 32]];
const INSIDE: [&str; 2] = ["10.7.0.1", "10.7.0.2"];

/// One end: 0 is the near one, which knows where the far one is.
fn open(
    end: usize,
    far: Option<IpAddr>,
    sealers: usize,
) -> Result<(Stack, WireguardHandle), Box<dyn Error>> {
    let mut peer = Peer::new(PrivateKey::from(KEYS[1 - end]).public_key());
    peer.allowed_ips = vec![INSIDE[1 - end].parse::<IpAddr>()?.into()];
    peer.endpoint = far.map(|address| SocketAddr::new(address, PORT));
    let mut config = WireguardConfig::new(PrivateKey::from(KEYS[end]));
    config.listen_port = if end == 1 { PORT } else { 0 };
    config.sealers = sealers;
    config.peers = vec![peer];
    let device = Wireguard::open(&config)?;
    let handle = device.handle();
    let address = format!("{}/24", INSIDE[end]);
    let stack = Stack::builder().device(device.into_device()).address(address).build()?;
    Ok((stack, handle))
}

/// Reads what connections bring.
fn serve(stack: &Stack) -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind(stack, "10.7.0.2:80")?;
    loop {
        let (mut stream, _) = listener.accept()?;
        let mut buffer = vec![0; 1 << 17];
        while let Ok(1..) = stream.read(&mut buffer) {}
    }
}

fn upload(stack: &Stack, time: Duration) -> Result<(), Box<dyn Error>> {
    let mut stream = TcpStream::connect(stack, "10.7.0.2:80")?;
    let (buffer, start) = (vec![7; 1 << 17], Instant::now());
    while start.elapsed() < time {
        stream.write_all(&buffer)?;
    }
    let info = stream.info();
    let rate = info.bytes_acked as f64 * 8.0 / start.elapsed().as_secs_f64();
    println!("{:.3} Gbit/s, {:.3?} of round trip", rate / 1e9, info.rtt);
    Ok(())
}

fn print(name: &str, handle: &WireguardHandle) {
    let shown = handle.status().counters.into_iter().filter(|(_, count)| *count > 0);
    println!("{name}: {:?}", shown.collect::<Vec<_>>());
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let seconds = |text: &str| text.parse().map(Duration::from_secs);
    let sealers = arguments.get(3).map_or(Ok(0), |text| text.parse())?;
    match arguments[..] {
        ["far"] => serve(&open(1, None, 0)?.0),
        ["near", far, time, ..] => {
            let (stack, handle) = open(0, Some(far.parse()?), sealers)?;
            upload(&stack, seconds(time)?)?;
            print("near", &handle);
            Ok(())
        }
        ["both", time] => {
            let (far, far_handle) = open(1, None, 0)?;
            std::thread::spawn(move || serve(&far).map_err(|error| error.to_string()));
            let (near, near_handle) = open(0, Some("127.0.0.1".parse()?), sealers)?;
            upload(&near, seconds(time)?)?;
            print("near", &near_handle);
            print("far", &far_handle);
            Ok(())
        }
        _ => Err("expected: both SECONDS, far, or near ADDRESS SECONDS [SEALERS]".into()),
    }
}
