//! The sockets under tokio against the kernel of this machine, each test in a network namespace of
//! its own; and hyper on them, against curl and nginx.

#[path = "../common/mod.rs"]
#[allow(dead_code)]
mod common;
#[path = "../../examples/http_client.rs"]
mod http_client;
#[path = "../../examples/http_server.rs"]
mod http_server;

mod events;
mod forwarding;
mod http;
mod idle;
mod names;
mod runtimes;
mod sockets;

use std::future::Future;

/// Runs a test on one thread, or on two.
fn on_runtime<F: Future>(threads: usize, test: F) -> F::Output {
    let mut builder = match threads {
        1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    builder.enable_all().build().expect("a runtime").block_on(test)
}
