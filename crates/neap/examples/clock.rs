//! A clock of one's own: a stack without threads, driven by `poll(now)`.
//!
//! `docs/extending/clock.md` has the contract. Here time is a number that jumps to the next event,
//! so that a minute takes no time at all; the stack talks to itself over the loopback.

use neap::info::State;
use neap::threadless::{ReadError, Stack, StackConfig};
use neap::time::{Instant, Nanos};
use neap::{ConnectOptions, ListenOptions};
use std::error::Error;
use std::net::SocketAddr;

/// The only driver of the stack, and the only one who knows what time it is.
struct Driver {
    stack: Stack,
    now: Instant,
}

impl Driver {
    /// Lets time pass until `done`, or until nothing is left to happen.
    fn run_until(&mut self, mut done: impl FnMut(&Stack, Instant) -> bool) -> bool {
        loop {
            let (next, _why) = self.stack.poll(0, self.now);
            if done(&self.stack, self.now) {
                return true;
            }
            if next == Instant::FAR_FUTURE {
                return false;
            }
            // A driver of real time would wait here, for the time or for a device.
            self.now = self.now.max(next);
        }
    }
}

/// Sends a megabyte, and waits for the end of TIME-WAIT.
///
/// # Errors
/// Whatever goes wrong.
pub(crate) fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let config = StackConfig { seed: 1, ..StackConfig::default() };
    let begin = Instant::from_nanos(1_000_000_000);
    let mut driver = Driver { stack: Stack::new(config)?, now: begin };
    let address: SocketAddr = "127.0.0.1:80".parse()?;
    let listener = driver.stack.listen(address, ListenOptions::default())?;
    let client = driver.stack.connect(driver.now, address, ConnectOptions::default())?;
    let mut accepted = None;
    driver.run_until(|_, _| {
        accepted = listener.accept().ok();
        accepted.is_some()
    });
    let (server, _) = accepted.ok_or("nobody connected")?;

    let data = vec![7; 1 << 20];
    let (mut written, mut received) = (0, Vec::new());
    let mut buf = vec![0; 1 << 16];
    let is_whole = driver.run_until(|_, now| {
        // Calls never wait: what they cannot do now is tried again when time has passed.
        if written < data.len() {
            written += client.write(now, &data[written..]).unwrap_or(0);
        }
        loop {
            match server.read(now, &mut buf) {
                Ok(len) if len > 0 => received.extend_from_slice(&buf[..len]),
                Ok(_) | Err(ReadError::WouldBlock | ReadError::Failed(_)) => break,
            }
        }
        received.len() == data.len()
    });
    assert!(is_whole && received == data);

    client.shutdown_write(driver.now);
    driver.run_until(|_, now| client.info(now).state == State::FinWait2);
    drop((server, client));
    let is_over = driver.run_until(|stack, _| {
        let usage = stack.usage().tcp;
        usage.connections + usage.time_wait == 0
    });
    let passed = driver.now.since(begin);
    assert!(is_over && passed >= Nanos::from_secs(60), "TIME-WAIT lasts a minute: {passed:?}");
    println!("{} bytes, and a TIME-WAIT: {:.0} s of no time", received.len(), passed.as_secs_f64());
    Ok(())
}
