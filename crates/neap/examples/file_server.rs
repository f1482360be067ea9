//! A file server: HTTP/1.0 on tokio, with a low-water mark so that little of a file is in memory.
//!
//! `file_server TUN KERNEL_CIDR OUR_CIDR PORT DIRECTORY`, for instance
//! `file_server neap0 10.9.0.1/24 10.9.0.2/24 8080 .`, then
//! `curl http://10.9.0.2:8080/README.md`. Needs `CAP_NET_ADMIN`.

use neap::SocketOption;
use neap::tokio::{TcpListener, TcpStream};
use std::convert::Infallible;
use std::error::Error;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

/// Unsent bytes of a connection at which the server stops reading its file.
const LOWAT: u32 = 128 << 10;
/// Most bytes of a request line.
const LONGEST_LINE: u64 = 4096;

/// Serves the files below `directory` until accepting fails.
///
/// # Errors
/// Why accepting failed.
pub(crate) async fn serve(listener: TcpListener, directory: PathBuf) -> io::Result<Infallible> {
    let directory: Arc<Path> = directory.into();
    loop {
        let (stream, peer) = listener.accept().await?;
        let directory = directory.clone();
        tokio::spawn(async move {
            if let Err(error) = answer(stream, &directory).await {
                eprintln!("{peer}: {error}");
            }
        });
    }
}

/// Answers one request, then closes.
async fn answer(stream: TcpStream, directory: &Path) -> io::Result<()> {
    stream.get_ref().set_option(SocketOption::NotSentLowat(LOWAT))?;
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    (&mut stream).take(LONGEST_LINE).read_line(&mut line).await?;
    let file = line.split(' ').nth(1).and_then(|path| open(directory, path));
    // The rest of the head must be read: a close with unread data resets the connection.
    let mut rest = String::new();
    while (&mut stream).take(LONGEST_LINE).read_line(&mut rest).await? > 2 {
        rest.clear();
    }
    let mut stream = stream.into_inner();
    let Some(mut file) = file else {
        stream.write_all(b"HTTP/1.0 404 Not Found\r\n\r\n").await?;
        return stream.shutdown().await;
    };
    let length = file.metadata()?.len();
    let head = format!("HTTP/1.0 200 OK\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    let mut part = vec![0; 64 << 10];
    loop {
        match file.read(&mut part)? {
            0 => return stream.shutdown().await,
            read => stream.write_all(&part[..read]).await?,
        }
    }
}

/// The file of a request, if it lies below the directory.
fn open(directory: &Path, path: &str) -> Option<File> {
    let path = Path::new(path.trim_start_matches('/'));
    let is_inside = path.components().all(|part| matches!(part, Component::Normal(_)));
    let path = directory.join(path);
    if is_inside && path.is_file() { File::open(path).ok() } else { None }
}

#[tokio::main(flavor = "current_thread")]
#[allow(dead_code)] // The tests use the rest.
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [tun, kernel, ours, port, directory] = &args[..] else {
        return Err("file_server TUN KERNEL_CIDR OUR_CIDR PORT DIRECTORY".into());
    };
    let stack = neap::Stack::builder().tun(tun).host_address(kernel).address(ours).build()?;
    let listener = TcpListener::bind(&stack, format!("0.0.0.0:{port}")).await?;
    match serve(listener, directory.into()).await? {}
}
