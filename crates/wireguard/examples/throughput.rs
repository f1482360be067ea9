//! Bytes per second from one stack to another, each on a WireGuard device of its own, over UDP
//! sockets of the loopback:
//!
//! ```sh
//! cargo run --release -p neap-wireguard --example throughput -- 5
//! ```
//!
//! Both ends run in this process, so a machine of two cores has one for each.

use neap::{Stack, TcpListener, TcpStream};
use neap_wireguard::{Peer, PrivateKey, Wireguard, WireguardConfig, WireguardHandle};
use std::error::Error;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

fn open(key: &PrivateKey, sealers: usize) -> Result<Wireguard, neap_wireguard::Error> {
    let mut config = WireguardConfig::new(key.clone());
    config.sealers = sealers;
    Wireguard::open(&config)
}

fn join(handle: &WireguardHandle, key: &PrivateKey, inside: &str, port: u16) {
    let mut peer = Peer::new(key.public_key());
    peer.allowed_ips = vec![inside.parse().expect("a prefix")];
    peer.endpoint = Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    handle.set_peers(vec![peer]).expect("a peer");
}

fn stack(device: Wireguard, address: &str) -> Result<Stack, Box<dyn Error>> {
    Ok(Stack::builder().device(device.into_device()).address(address).build()?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let argument = |index, default: u64| {
        std::env::args().nth(index).map_or(Ok(default), |text| text.parse::<u64>())
    };
    let (seconds, sealers) = (argument(1, 5)?, argument(2, 0)? as usize);
    let keys = [PrivateKey::generate()?, PrivateKey::generate()?];
    let (near, far) = (open(&keys[0], sealers)?, open(&keys[1], 0)?);
    let (near_handle, far_handle) = (near.handle(), far.handle());
    join(&near_handle, &keys[1], "10.7.0.2/32", far_handle.status().listen_port);
    join(&far_handle, &keys[0], "10.7.0.1/32", near_handle.status().listen_port);
    let near = stack(near, "10.7.0.1/24")?;
    let far = stack(far, "10.7.0.2/24")?;
    let listener = TcpListener::bind(&far, "10.7.0.2:80")?;
    let reader = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let (mut buffer, mut total) = (vec![0; 1 << 17], 0);
        while let Ok(len @ 1..) = stream.read(&mut buffer) {
            total += len as u64;
        }
        total
    });
    let mut stream = TcpStream::connect(&near, "10.7.0.2:80")?;
    let (buffer, start) = (vec![7; 1 << 17], Instant::now());
    while start.elapsed() < Duration::from_secs(seconds) {
        stream.write_all(&buffer)?;
    }
    drop(stream);
    let total = reader.join().expect("the reader ends");
    println!("{:.2} Gbit/s", total as f64 * 8.0 / start.elapsed().as_secs_f64() / 1e9);
    for (name, handle) in [("near", near_handle), ("far", far_handle)] {
        let shown = handle.status().counters.into_iter().filter(|(_, count)| *count > 0);
        println!("{name}: {:?}", shown.collect::<Vec<_>>());
    }
    Ok(())
}
