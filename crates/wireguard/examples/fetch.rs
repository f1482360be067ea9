//! One request of HTTP through a WireGuard tunnel, in one process, without privileges.

use neap::{InterfaceConfig, Stack, TcpStream};
use neap_wireguard::{Peer, Wireguard, WireguardConfig};
use std::error::Error;
use std::io::{Read, Write};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [key_file, peer_key, endpoint, address, target] = &arguments[..] else {
        return Err("expected: KEYFILE PEER_KEY ENDPOINT ADDRESS TARGET:PORT".into());
    };
    let mut peer = Peer::new(peer_key.parse()?);
    peer.endpoint = Some(endpoint.parse()?);
    peer.allowed_ips = vec!["0.0.0.0/0".parse()?, "::/0".parse()?];
    let mut config = WireguardConfig::new(std::fs::read_to_string(key_file)?.parse()?);
    config.peers = vec![peer];

    let device = Wireguard::open(&config)?;
    let tunnel = device.handle();
    let target: std::net::SocketAddr = target.parse()?;
    let interface = InterfaceConfig::new(device.into_device())
        .address(format!("{address}/32").as_str().try_into()?)
        .on_link("0.0.0.0/0".try_into()?);
    let stack = Stack::builder().interface(interface).build()?;
    let mut stream = TcpStream::connect(&stack, target)?;
    write!(stream, "GET / HTTP/1.0\r\nHost: {}\r\n\r\n", target.ip())?;
    let mut page = Vec::new();
    stream.read_to_end(&mut page)?;
    println!("{}", String::from_utf8_lossy(&page));
    for peer in tunnel.status().peers {
        eprintln!("{}: {} bytes received, {} sent", peer.public_key, peer.received, peer.sent);
    }
    Ok(())
}
