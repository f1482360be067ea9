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
//!
//! `benches/wireguard` has both ends print JSON: `far SECONDS`, which ends with the last
//! connection, or after so long without one, and `load ADDRESS up|down FLOWS SECONDS`.

use neap::{Stack, TcpListener, TcpStream};
use neap_wireguard::{Peer, PrivateKey, Wireguard, WireguardConfig, WireguardHandle};
use std::error::Error;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// The port of the far end.
const PORT: u16 = 51_820;
/// Everybody knows these keys: measure with them, and nothing else.
const KEYS: [[u8; 32]; 2] = [[1; 32], [2; 32]];
const INSIDE: [&str; 2] = ["10.7.0.1", "10.7.0.2"];
/// What reads at the far end, and what writes.
const SINK: &str = "10.7.0.2:80";
const SOURCE: &str = "10.7.0.2:81";
/// Bytes of a call.
const CALL: usize = 128 << 10;
/// What arrives before this is left out of the steady rate, as slow start is of it.
const STEADY: Duration = Duration::from_secs(1);
/// How long the last bytes may take.
const DRAIN: Duration = Duration::from_secs(10);

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

/// What a connection has moved.
struct Moved {
    bytes: u64,
    /// Those after the first second.
    steady: u64,
    begin: Instant,
    end: Instant,
}

/// Moves bytes by `call` until there are no more.
fn moved(mut call: impl FnMut(&mut [u8]) -> io::Result<usize>) -> Moved {
    let (mut buffer, begin) = (vec![7; CALL], Instant::now());
    let mut moved = Moved { bytes: 0, steady: 0, begin, end: begin };
    while let Ok(count @ 1..) = call(&mut buffer) {
        moved.end = Instant::now();
        moved.bytes += count as u64;
        if moved.end - begin >= STEADY {
            moved.steady += count as u64;
        }
    }
    moved
}

/// Reads what connections to one port bring, and writes to those to the other. With a patience it
/// ends with the last connection, or when there is none for so long, and prints what was moved.
fn serve(stack: &Stack, patience: Option<Duration>) -> Result<(), Box<dyn Error>> {
    let (tell, told) = mpsc::channel();
    for address in [SINK, SOURCE] {
        let (listener, tell) = (TcpListener::bind(stack, address)?, tell.clone());
        thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                let tell = tell.clone();
                // It fails where the end is over.
                let _ = tell.send(None);
                thread::spawn(move || {
                    let moved = match address {
                        SINK => moved(|buffer| stream.read(buffer)),
                        _ => moved(|buffer| stream.write(buffer)),
                    };
                    let _ = tell.send(Some(moved));
                });
            }
        });
    }
    let (mut open, mut all) = (0, Vec::new());
    loop {
        let event = match patience.filter(|_| open == 0) {
            Some(patience) => told.recv_timeout(patience)?,
            None => told.recv()?,
        };
        match event {
            None => open += 1,
            Some(moved) => all.push(moved),
        }
        if patience.is_some() && all.len() == open {
            break;
        }
    }
    let bytes: u64 = all.iter().map(|moved| moved.bytes).sum();
    let steady: u64 = all.iter().map(|moved| moved.steady).sum();
    let begin = all.iter().map(|moved| moved.begin).min().ok_or("there was no connection")?;
    let end = all.iter().map(|moved| moved.end).max().unwrap_or(begin);
    let took = (end - begin).saturating_sub(STEADY).as_secs_f64();
    let gbps = if took > 0.0 { steady as f64 * 8.0 / took / 1e9 } else { 0.0 };
    println!("{{\"bytes\":{bytes},\"gbps_steady\":{gbps:.4},\"flows\":{}}}", all.len());
    Ok(())
}

/// Moves bytes by so many connections, and prints how many.
fn load(stack: &Stack, is_up: bool, flows: usize, time: Duration) -> Result<(), Box<dyn Error>> {
    let to = if is_up { SINK } else { SOURCE };
    let streams: io::Result<Vec<_>> = (0..flows).map(|_| TcpStream::connect(stack, to)).collect();
    let (streams, start) = (streams?, Instant::now());
    for stream in &streams {
        stream.set_read_timeout(Some(time + DRAIN))?;
        stream.set_write_timeout(Some(time + DRAIN))?;
    }
    let flow = |mut stream: &TcpStream| {
        moved(|buffer| match time.saturating_sub(start.elapsed()) {
            Duration::ZERO => Ok(0),
            _ if is_up => stream.write(buffer),
            _ => stream.read(buffer),
        })
    };
    let bytes: u64 = thread::scope(|scope| {
        let flows: Vec<_> =
            streams.iter().map(|stream| scope.spawn(move || flow(stream))).collect();
        flows.into_iter().filter_map(|flow| flow.join().ok()).map(|moved| moved.bytes).sum()
    });
    let took = start.elapsed().as_secs_f64();
    let gbps = bytes as f64 * 8.0 / took / 1e9;
    println!("{{\"bytes\":{bytes},\"seconds\":{took:.3},\"gbps\":{gbps:.4}}}");
    for mut stream in streams.iter().filter(|_| is_up) {
        stream.shutdown(Shutdown::Write)?;
        stream.set_read_timeout(Some(DRAIN))?;
        // Late or reset: the far end's figures tell.
        let _ = stream.read(&mut [0]);
    }
    Ok(())
}

fn upload(stack: &Stack, time: Duration) -> Result<(), Box<dyn Error>> {
    let mut stream = TcpStream::connect(stack, SINK)?;
    let (buffer, start) = (vec![7; CALL], Instant::now());
    while start.elapsed() < time {
        stream.write_all(&buffer)?;
    }
    let info = stream.info();
    let rate = info.bytes_acked as f64 * 8.0 / start.elapsed().as_secs_f64();
    println!("{:.3} Gbit/s, {:.3?} of round trip", rate / 1e9, info.rtt);
    Ok(())
}

/// The counters that are not zero.
fn counters(handle: &WireguardHandle) -> String {
    let shown = handle.status().counters.into_iter().filter(|(_, count)| *count > 0);
    format!("{:?}", shown.collect::<Vec<_>>())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let seconds = |text: &str| text.parse().map(Duration::from_secs_f64);
    match arguments[..] {
        ["far"] => serve(&open(1, None, 0)?.0, None),
        ["far", time] => serve(&open(1, None, 0)?.0, Some(seconds(time)?)),
        ["load", far, way @ ("up" | "down"), flows, time] => {
            let (stack, handle) = open(0, Some(far.parse()?), 0)?;
            load(&stack, way == "up", flows.parse()?, seconds(time)?)?;
            eprintln!("near: {}", counters(&handle));
            Ok(())
        }
        ["near", far, time, ref sealers @ ..] => {
            let sealers = sealers.first().map_or(Ok(0), |text| text.parse())?;
            let (stack, handle) = open(0, Some(far.parse()?), sealers)?;
            upload(&stack, seconds(time)?)?;
            println!("near: {}", counters(&handle));
            Ok(())
        }
        ["both", time] => {
            let (far, far_handle) = open(1, None, 0)?;
            thread::spawn(move || serve(&far, None).map_err(|error| error.to_string()));
            let (near, near_handle) = open(0, Some("127.0.0.1".parse()?), 0)?;
            upload(&near, seconds(time)?)?;
            println!("near: {}", counters(&near_handle));
            println!("far: {}", counters(&far_handle));
            Ok(())
        }
        _ => Err("expected: both SECONDS, far [SECONDS], near ADDRESS SECONDS [SEALERS], or \
                  load ADDRESS up|down FLOWS SECONDS"
            .into()),
    }
}
