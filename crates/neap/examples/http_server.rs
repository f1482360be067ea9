//! An HTTP server: hyper on a user-space stack.
//!
//! `http_server TUN KERNEL_CIDR OUR_CIDR PORT`, for instance `http_server neap0 10.9.0.1/24
//! 10.9.0.2/24 8080`, then `curl http://10.9.0.2:8080/1000000`. `GET /N` answers N bytes, `POST /`
//! what was posted. Needs `CAP_NET_ADMIN`.

use http_body_util::{Either, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use neap::SocketOptions;
use neap::tokio::TcpListener;
use std::convert::Infallible;
use std::error::Error;
use std::io;

/// Bytes of the longest answer.
const MOST: usize = 1 << 30;
/// Bytes that wait unsent in a connection at the most: what is generated later can still change.
const LOWAT: u32 = 128 << 10;

type Body = Either<Full<Bytes>, Incoming>;

async fn answer(request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let of = |status, body| {
        let mut response = Response::new(body);
        *response.status_mut() = status;
        Ok(response)
    };
    match *request.method() {
        Method::POST => of(StatusCode::OK, Either::Right(request.into_body())),
        Method::GET => match request.uri().path()[1..].parse() {
            Ok(size @ 0..=MOST) => {
                let body: Vec<u8> = (0..size).map(|at| at as u8).collect();
                of(StatusCode::OK, Either::Left(body.into()))
            }
            _ => of(StatusCode::NOT_FOUND, Either::Left("GET /SIZE\n".into())),
        },
        _ => of(StatusCode::METHOD_NOT_ALLOWED, Either::Left("GET or POST\n".into())),
    }
}

/// Serves until accepting fails.
///
/// # Errors
/// Why it failed.
pub(crate) async fn serve(listener: TcpListener) -> io::Result<Infallible> {
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(async move {
            let connection =
                http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer));
            // A client that leaves early is no error of the server.
            let _ = connection.await;
        });
    }
}

/// A listener whose connections have a low-water mark.
///
/// # Errors
/// As [`TcpListener::bind`].
pub(crate) async fn listen(
    stack: &neap::Stack,
    address: std::net::SocketAddr,
) -> io::Result<TcpListener> {
    let sockets = SocketOptions { notsent_lowat: LOWAT, nodelay: true, ..SocketOptions::default() };
    let options = neap::ListenOptions { options: sockets, ..Default::default() };
    TcpListener::bind_with(stack, address, options).await
}

#[tokio::main(flavor = "current_thread")]
#[allow(dead_code)] // The tests use the rest.
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [tun, kernel, ours, port] = &args[..] else {
        return Err("http_server TUN KERNEL_CIDR OUR_CIDR PORT".into());
    };
    let stack = neap::Stack::builder().tun(tun).host_address(kernel).address(ours).build()?;
    let (ip, _) = ours.split_once('/').ok_or("an address with its prefix length")?;
    match serve(listen(&stack, format!("{ip}:{port}").parse()?).await?).await? {}
}
