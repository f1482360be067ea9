//! hyper on the stack, with other people's clients and servers at the other end.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use hyper::body::Bytes;

use crate::common::{Family, Pattern, in_namespace, skip};
use crate::{http_client, http_server, on_runtime};

/// A directory that disappears with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("neap-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A program that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn is_there(program: &str, version: &str) -> bool {
    let command =
        Command::new(program).arg(version).stdout(Stdio::null()).stderr(Stdio::null()).status();
    command.is_ok_and(|status| status.success())
}

#[test]
fn curl_fetches_from_hyper_on_the_stack() {
    in_namespace(|| {
        if !is_there("curl", "--version") {
            return skip("no curl");
        }
        for threads in [1, 2] {
            on_runtime(threads, async {
                let stack = Family::V4.stack();
                let listener = http_server::listen(&stack, (Family::V4.ours(), 0).into());
                let listener = listener.await.expect("a listener");
                let address = listener.local_addr().expect("an address");
                let server = tokio::spawn(http_server::serve(listener));
                let scratch = Scratch::new("curl");
                let posted = scratch.0.join("posted");
                fs::write(&posted, Pattern(5).bytes(3_000_000)).expect("a file");
                let posts = posted.display();
                let url = format!("http://{address}");
                for (arguments, expected) in [
                    (format!("{url}/0"), vec![]),
                    (format!("{url}/5000000"), (0..5_000_000).map(|at| at as u8).collect()),
                    (format!("{url}/3 {url}/4"), vec![0, 1, 2, 0, 1, 2, 3]),
                    (
                        format!("-H Expect: --data-binary @{posts} {url}/"),
                        Pattern(5).bytes(3_000_000),
                    ),
                ] {
                    let output = tokio::task::spawn_blocking(move || {
                        let mut curl = Command::new("curl");
                        curl.args(["-sS", "--fail", "--max-time", "60", "--noproxy", "*"]);
                        curl.args(arguments.split(' ')).output().expect("curl runs")
                    });
                    let output = output.await.expect("a thread");
                    let errors = String::from_utf8_lossy(&output.stderr);
                    assert!(output.status.success(), "{errors}");
                    assert!(output.stdout == expected, "{} bytes", output.stdout.len());
                }
                server.abort();
            });
        }
    });
}

const CONFIG: &str = "
daemon off; master_process off; pid nginx.pid; error_log stderr crit;
events {}
http {
    access_log off; root .; client_body_temp_path body; proxy_temp_path proxy;
    fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
    server { listen 10.9.0.1:8000; location / { } }
}
";

#[test]
fn hyper_on_the_stack_fetches_from_nginx() {
    in_namespace(|| {
        if !is_there("nginx", "-v") {
            return skip("no nginx");
        }
        let scratch = Scratch::new("nginx");
        fs::write(scratch.0.join("nginx.conf"), CONFIG).expect("a file");
        fs::write(scratch.0.join("page"), Pattern(6).bytes(5_000_000)).expect("a file");
        let stack = Family::V4.stack();
        let nginx = Command::new("nginx")
            .arg("-p")
            .arg(&scratch.0)
            .args(["-c", "nginx.conf"])
            .stdin(Stdio::null())
            .spawn();
        let _nginx = Running(nginx.expect("nginx runs"));
        crate::common::eventually(
            || std::net::TcpStream::connect("10.9.0.1:8000").is_ok(),
            |is_up| *is_up,
        );
        on_runtime(1, async {
            let fetch = |path: &str| {
                let uri = format!("http://10.9.0.1:8000/{path}").parse().expect("a URI");
                http_client::fetch(&stack, uri, None)
            };
            let pages: Vec<_> = (0..10).map(|_| fetch("page")).collect();
            for page in pages {
                let page = page.await.expect("a page");
                assert_eq!(page.status(), 200);
                Pattern(6).check(0, page.body());
                assert_eq!(page.body().len(), 5_000_000);
            }
            assert_eq!(fetch("nothing").await.expect("an answer").status(), 404);
        });
    });
}

#[test]
fn hyper_talks_to_itself_through_the_loopback_of_the_stack() {
    in_namespace(|| {
        let stack = Family::V4.stack();
        on_runtime(1, async {
            let local = (Family::V4.ours(), 8080).into();
            let listener = http_server::listen(&stack, local).await.expect("a listener");
            let server = tokio::spawn(http_server::serve(listener));
            let uri: hyper::Uri = format!("http://{local}/").parse().expect("a URI");
            let body = Bytes::from(Pattern(7).bytes(1_000_000));
            let echo = http_client::fetch(&stack, uri, Some(body.clone())).await.expect("an echo");
            assert!(*echo.body() == body);
            server.abort();
        });
    });
}
