//! A bulk upload beside a flow of small messages, and where the bytes of both are.
//!
//! `upload TUN KERNEL_CIDR OUR_CIDR RATE SINK ECHO`, for instance
//! `upload neap0 10.9.0.1/24 10.9.0.2/24 20mbit 10.9.0.1:9 10.9.0.1:7`: the sink reads everything,
//! the echo server answers. The TUN is limited to the rate. Needs `CAP_NET_ADMIN`.

use neap::{SocketOption, Stack, TcpStream, ToAddrs};
use std::error::Error;
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Unsent bytes at which the upload has to wait.
const LOWAT: u32 = 32 << 10;
/// Messages that are measured, and the time between two of them.
const MESSAGES: usize = 100;
const INTERVAL: Duration = Duration::from_millis(20);

/// What was measured.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The median of the times from a message to its echo.
    pub(crate) median: Duration,
    /// The most bytes that the upload had written and not sent, of all that were seen.
    pub(crate) most_unsent: u32,
    /// The most bytes of memory that the upload had in the qdisc and the device.
    pub(crate) most_below: u64,
    /// Payload bytes of the upload that were acknowledged.
    pub(crate) uploaded: u64,
}

/// Uploads to `sink` while messages go to `echo` and back.
///
/// # Errors
/// Why a connection failed.
pub(crate) fn run(stack: &Stack, sink: impl ToAddrs, echo: impl ToAddrs) -> io::Result<Outcome> {
    let upload = TcpStream::connect(stack, sink)?;
    upload.set_option(SocketOption::NotSentLowat(LOWAT))?;
    let mut messages = TcpStream::connect(stack, echo)?;
    messages.set_nodelay(true)?;
    let is_over = AtomicBool::new(false);
    let (mut times, mut most_unsent, mut most_below) = (Vec::new(), 0, 0);
    thread::scope(|scope| {
        let mut writer = &upload;
        let is_over = &is_over;
        let uploads = scope.spawn(move || {
            let part = vec![7; 16 << 10];
            while !is_over.load(Ordering::Relaxed) {
                writer.write_all(&part)?;
            }
            Ok::<_, io::Error>(())
        });
        let measured = (|| {
            let mut message = [0; 64];
            for _ in 0..MESSAGES {
                let begun = Instant::now();
                messages.write_all(&message)?;
                messages.read_exact(&mut message)?;
                times.push(begun.elapsed());
                let info = upload.info();
                most_unsent = most_unsent.max(info.notsent_bytes);
                most_below = most_below.max(info.below_bytes);
                thread::sleep(INTERVAL.saturating_sub(begun.elapsed()));
            }
            Ok(())
        })();
        is_over.store(true, Ordering::Relaxed);
        uploads.join().expect("the upload does not panic").and(measured)
    })?;
    times.sort();
    let uploaded = upload.info().bytes_acked;
    Ok(Outcome { median: times[times.len() / 2], most_unsent, most_below, uploaded })
}

#[allow(dead_code)] // The tests use the rest.
fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [tun, kernel, ours, rate, sink, echo] = &args[..] else {
        return Err("upload TUN KERNEL_CIDR OUR_CIDR RATE SINK ECHO".into());
    };
    let limit = format!("tbf rate {rate} burst 16kb limit 1mb");
    let stack =
        Stack::builder().tun(tun).host_address(kernel).address(ours).qdisc(&limit).build()?;
    let outcome = run(&stack, sink.as_str(), echo.as_str())?;
    println!("median of the messages: {:?}", outcome.median);
    println!("upload: {} bytes", outcome.uploaded);
    println!("at most {} unsent, {} below TCP", outcome.most_unsent, outcome.most_below);
    for flow in stack.host().flows() {
        println!("{} {:?} {} unsent", flow.remote, flow.info.blocked, flow.info.notsent_bytes);
    }
    Ok(())
}
