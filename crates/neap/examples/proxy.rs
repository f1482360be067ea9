//! A TCP proxy: whoever connects to the stack is joined with a server that the kernel reaches.
//!
//! `proxy TUN KERNEL_CIDR OUR_CIDR PORT SERVER`, for instance
//! `proxy neap0 10.9.0.1/24 10.9.0.2/24 8080 127.0.0.1:80`. Needs `CAP_NET_ADMIN`.

use neap::SocketOption;
use neap::tokio::{TcpListener, TcpStream};
use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::net::SocketAddr;

/// Unsent bytes at which the proxy stops reading from the server, so that a slow client holds the
/// server back instead of filling memory.
const LOWAT: u32 = 64 << 10;

/// Joins every connection of `listener` with a new one to `server`, until accepting fails.
///
/// # Errors
/// Why accepting failed.
pub(crate) async fn serve(listener: TcpListener, server: SocketAddr) -> io::Result<Infallible> {
    loop {
        let (client, _) = listener.accept().await?;
        tokio::spawn(async move {
            if let Err(error) = join(client, server).await {
                eprintln!("{server}: {error}");
            }
        });
    }
}

/// Copies in both directions until both are at their end.
async fn join(mut client: TcpStream, server: SocketAddr) -> io::Result<()> {
    client.get_ref().set_option(SocketOption::NotSentLowat(LOWAT))?;
    client.get_ref().set_option(SocketOption::NoDelay(true))?;
    let mut server = tokio::net::TcpStream::connect(server).await?;
    server.set_nodelay(true)?;
    tokio::io::copy_bidirectional(&mut client, &mut server).await?;
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
#[allow(dead_code)] // The tests use the rest.
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [tun, kernel, ours, port, server] = &args[..] else {
        return Err("proxy TUN KERNEL_CIDR OUR_CIDR PORT SERVER".into());
    };
    let stack = neap::Stack::builder().tun(tun).host_address(kernel).address(ours).build()?;
    let listener = TcpListener::bind(&stack, format!("0.0.0.0:{port}")).await?;
    match serve(listener, server.parse()?).await? {}
}
