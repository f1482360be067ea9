//! An HTTP client: hyper on a user-space stack.
//!
//! `http_client TUN KERNEL_CIDR OUR_CIDR URL`, for instance `http_client neap0 10.9.0.1/24
//! 10.9.0.2/24 http://10.9.0.1:8000/`: prints the status and the length of the body. Needs
//! `CAP_NET_ADMIN`.

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Request, Response, Uri, header};
use hyper_util::rt::TokioIo;
use neap::Stack;
use neap::tokio::TcpStream;
use std::error::Error;

/// Fetches `uri`. A host that is a name needs a stack with a resolver.
///
/// # Errors
/// Whatever goes wrong on the way.
pub(crate) async fn fetch(
    stack: &Stack,
    uri: Uri,
    post: Option<Bytes>,
) -> Result<Response<Bytes>, Box<dyn Error>> {
    let host = uri.host().ok_or("a URL with a host")?;
    let address = format!("{host}:{}", uri.port_u16().unwrap_or(80));
    let stream = TcpStream::connect(stack, address).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let method = if post.is_some() { "POST" } else { "GET" };
    let request = Request::builder()
        .method(method)
        .uri(uri.path())
        .header(header::HOST, uri.authority().map_or("", |authority| authority.as_str()))
        .body(Full::new(post.unwrap_or_default()))?;
    let (parts, body) = sender.send_request(request).await?.into_parts();
    let body = body.collect().await?.to_bytes();
    drop(sender);
    connection.await??;
    Ok(Response::from_parts(parts, body))
}

#[tokio::main(flavor = "current_thread")]
#[allow(dead_code)] // The tests use the rest.
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [tun, kernel, ours, url] = &args[..] else {
        return Err("http_client TUN KERNEL_CIDR OUR_CIDR URL".into());
    };
    let builder = Stack::builder().tun(tun).host_address(kernel).address(ours);
    let stack = builder.resolver(neap::SystemResolver).build()?;
    let response = fetch(&stack, url.parse()?, None).await?;
    println!("{}, {} bytes", response.status(), response.body().len());
    Ok(())
}
