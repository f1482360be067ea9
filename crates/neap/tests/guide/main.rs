//! The programs of the guide against the kernel of this machine, each test in a network namespace
//! of its own.

#[path = "../common/mod.rs"]
#[allow(dead_code)]
mod common;
#[path = "../../examples/descriptors.rs"]
mod descriptors;
#[path = "../../examples/echo.rs"]
mod echo;
#[path = "../../examples/file_server.rs"]
mod file_server;
#[path = "../../examples/proxy.rs"]
mod proxy;
#[path = "../../examples/upload.rs"]
mod upload;

use common::{Family, Pattern, in_namespace};
use neap::posix::abi::{AF_INET, SOCK_STREAM};
use neap::posix::sockaddr;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Connections of the echo server.
const CONNECTIONS: usize = 2000;

/// What a server sends in answer to a request, up to its end.
fn ask(server: SocketAddr, request: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(server).expect("a connection");
    stream.write_all(request).expect("write");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    answer
}

/// Runs a server of tokio with a client of the kernel beside it.
fn beside<S: Future + Send + 'static>(
    server: impl FnOnce(neap::tokio::TcpListener) -> S,
    client: impl FnOnce(SocketAddr) + Send + 'static,
) where
    S::Output: Send,
{
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let stack = Family::V4.stack();
        let listener = neap::tokio::TcpListener::bind(&stack, "0.0.0.0:0").await;
        let listener = listener.expect("a listener");
        let port = listener.local_addr().expect("an address").port();
        let serving = tokio::spawn(server(listener));
        let client = tokio::task::spawn_blocking(move || client((Family::V4.ours(), port).into()));
        client.await.expect("the client");
        serving.abort();
    });
}

#[test]
fn the_proxy_joins_a_client_with_a_server_of_the_kernel() {
    in_namespace(|| {
        let behind = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = behind.local_addr().expect("an address");
        thread::spawn(move || {
            let (mut stream, _) = behind.accept().expect("a connection");
            let mut request = [0; 7];
            stream.read_exact(&mut request).expect("a request");
            stream.write_all(&request).expect("write");
            stream.write_all(&Pattern(3).bytes(3_000_000)).expect("write");
        });
        beside(
            move |listener| proxy::serve(listener, address),
            |server| {
                let answer = ask(server, b"request");
                assert!(answer.starts_with(b"request"));
                assert!(answer[7..] == Pattern(3).bytes(3_000_000), "{} bytes", answer.len());
            },
        );
    });
}

#[test]
fn the_file_server_serves_files_of_its_directory_alone() {
    in_namespace(|| {
        let directory = std::env::temp_dir().join(format!("neap-guide-{}", std::process::id()));
        fs::create_dir_all(directory.join("shown")).expect("a directory");
        fs::write(directory.join("secret"), "secret").expect("a file");
        fs::write(directory.join("shown/film"), Pattern(4).bytes(2_000_000)).expect("a file");
        let shown = directory.join("shown");
        beside(
            move |listener| file_server::serve(listener, shown),
            |server| {
                let answer = ask(server, b"GET /film HTTP/1.0\r\nHost: here\r\n\r\n");
                let head = b"HTTP/1.0 200 OK\r\nContent-Length: 2000000\r\n\r\n";
                assert!(answer.starts_with(head), "{}", String::from_utf8_lossy(&answer[..99]));
                assert!(answer[head.len()..] == Pattern(4).bytes(2_000_000));
                for outside in ["/../secret", "/", "/none"] {
                    let answer = ask(server, format!("GET {outside} HTTP/1.0\r\n\r\n").as_bytes());
                    assert!(answer.starts_with(b"HTTP/1.0 404"), "{outside}");
                }
            },
        );
        fs::remove_dir_all(directory).expect("the directory goes");
    });
}

#[test]
fn the_echo_server_has_two_thousand_connections() {
    in_namespace(|| {
        let stack = Family::V4.stack();
        let listener = neap::TcpListener::bind(&stack, "0.0.0.0:0").expect("a listener");
        let port = listener.local_addr().expect("an address").port();
        let clients = thread::spawn(move || {
            let connect = |_| TcpStream::connect((Family::V4.ours(), port)).expect("a connection");
            let mut streams: Vec<_> = (0..CONNECTIONS).map(connect).collect();
            for (number, stream) in streams.iter_mut().enumerate() {
                stream.write_all(&number.to_be_bytes()).expect("write");
            }
            for (number, stream) in streams.iter_mut().enumerate() {
                let mut echoed = [0; size_of::<usize>()];
                stream.read_exact(&mut echoed).expect("an echo");
                assert_eq!(usize::from_be_bytes(echoed), number);
            }
        });
        echo::serve(&listener, CONNECTIONS as u64).expect("serve");
        clients.join().expect("the clients");
    });
}

#[test]
fn clients_that_do_not_read_hold_no_thread_of_the_server_on_descriptors() {
    in_namespace(|| {
        let stack = Family::V4.stack();
        let posix = Arc::new(stack.posix(3));
        let listener = posix.socket(AF_INET, SOCK_STREAM, 0).expect("a socket");
        let address = SocketAddr::new(Family::V4.ours(), 7);
        posix.bind(listener, &sockaddr::encode(address)).expect("a free port");
        posix.listen(listener, 128).expect("a listener");
        let server = posix.clone();
        thread::spawn(move || descriptors::run(&server, listener));
        let connect = || {
            let stream = TcpStream::connect(address).expect("a connection");
            stream.set_read_timeout(Some(Duration::from_secs(20))).expect("an option");
            stream
        };
        let silent: Vec<_> = (0..4).map(|_| connect()).collect();
        for mut stream in &silent {
            // Until all buffers on both ways are full.
            stream.set_write_timeout(Some(Duration::from_millis(500))).expect("an option");
            while stream.write(&[7; 65_536]).is_ok() {}
        }
        let mut reader = connect();
        reader.write_all(b"are you there?").expect("write");
        let mut echoed = [0; 14];
        reader.read_exact(&mut echoed).expect("an echo");
        assert_eq!(&echoed, b"are you there?");
        // What waited goes on when the client reads.
        let mut part = [0; 1 << 20];
        for mut stream in &silent {
            stream.read_exact(&mut part).expect("an echo");
            assert!(part.iter().all(|byte| *byte == 7));
        }
    });
}

#[test]
fn the_upload_leaves_little_unsent_and_little_below() {
    in_namespace(|| {
        let stack = Family::V4.stack();
        let interface = stack.host().interfaces()[0].id;
        stack.set_qdisc(interface, "tbf rate 50mbit burst 16kb limit 1mb").expect("a qdisc");
        let (sink, to_sink) = Family::V4.kernel_listener();
        let (echo, to_echo) = Family::V4.kernel_listener();
        thread::spawn(move || {
            let (mut stream, _) = sink.accept().expect("a connection");
            std::io::copy(&mut stream, &mut std::io::sink())
        });
        thread::spawn(move || {
            let (stream, _) = echo.accept().expect("a connection");
            stream.set_nodelay(true).expect("an option");
            std::io::copy(&mut &stream, &mut &stream)
        });
        let outcome = upload::run(&stack, to_sink, to_echo).expect("an upload");
        assert!(outcome.uploaded > 1_000_000, "{outcome:?}");
        // A buffer of up to 64 KiB that was begun below the mark of 32 KiB may be filled.
        assert!(outcome.most_unsent <= (32 << 10) + (64 << 10), "{outcome:?}");
        // Two frames of 0.3 ms, not two of 64 KB: the qdisc shapes. Those of the first round trips,
        // when the rate is not known, are larger.
        assert!(outcome.most_below <= 64 << 10, "{outcome:?}");
    });
}
