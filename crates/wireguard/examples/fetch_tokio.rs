//! Requests of HTTP through a WireGuard tunnel, all at once in one thread of tokio.

use neap::tokio::TcpStream;
use neap::{InterfaceConfig, Stack};
use neap_wireguard::{Peer, Wireguard, WireguardConfig};
use std::error::Error;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

async fn fetch(stack: &Stack, target: SocketAddr) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(stack, target).await?;
    let request = format!("GET / HTTP/1.0\r\nHost: {}\r\n\r\n", target.ip());
    stream.write_all(request.as_bytes()).await?;
    let mut page = Vec::new();
    stream.read_to_end(&mut page).await?;
    Ok(page)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [key_file, peer_key, endpoint, address, first, second] = &arguments[..] else {
        return Err("expected: KEYFILE PEER_KEY ENDPOINT ADDRESS TARGET:PORT TARGET:PORT".into());
    };
    let mut peer = Peer::new(peer_key.parse()?);
    peer.endpoint = Some(endpoint.parse()?);
    peer.allowed_ips = vec!["0.0.0.0/0".parse()?, "::/0".parse()?];
    let mut config = WireguardConfig::new(std::fs::read_to_string(key_file)?.parse()?);
    config.peers = vec![peer];

    let interface = InterfaceConfig::new(Wireguard::open(&config)?.into_device())
        .address(format!("{address}/32").as_str().try_into()?)
        .on_link("0.0.0.0/0".try_into()?);
    let stack = Stack::builder().interface(interface).build()?;
    let (first, second) = (fetch(&stack, first.parse()?), fetch(&stack, second.parse()?));
    let (first, second) = tokio::try_join!(first, second)?;
    for page in [first, second] {
        println!("{}", String::from_utf8_lossy(&page));
    }
    Ok(())
}
