//! The honest flow: a client of the kernel that exchanges blocks with the victim, at a rate that is
//! far below what the victim can do.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::common::Pattern;

/// Bytes of a block, each of which goes there and comes back.
const BLOCK: usize = 20_000;
/// Time from block to block.
const PACE: Duration = Duration::from_millis(5);
/// How long an exchange may take before the flow counts as dead.
const PATIENCE: Duration = Duration::from_secs(60);

/// Progress of the flow.
#[derive(Default)]
struct Progress {
    blocks: AtomicU64,
    is_over: AtomicBool,
}

/// A flow that runs until this is dropped.
pub(crate) struct Flow {
    progress: Arc<Progress>,
    thread: Option<JoinHandle<Result<(), String>>>,
    /// Its own end, and the victim's.
    pub(crate) ends: (SocketAddr, SocketAddr),
}

impl Flow {
    /// Connects to an echo server, and begins.
    pub(crate) fn begin(to: SocketAddr) -> Self {
        let stream = TcpStream::connect(to).expect("the victim listens");
        stream.set_nodelay(true).expect("an option");
        stream.set_read_timeout(Some(PATIENCE)).expect("an option");
        stream.set_write_timeout(Some(PATIENCE)).expect("an option");
        let ends =
            (stream.local_addr().expect("an address"), stream.peer_addr().expect("an address"));
        let progress = Arc::new(Progress::default());
        let thread = std::thread::spawn({
            let progress = progress.clone();
            move || exchange(&progress, stream)
        });
        Self { progress, thread: Some(thread), ends }
    }

    /// Blocks that came back so far.
    pub(crate) fn blocks(&self) -> u64 {
        self.progress.blocks.load(SeqCst)
    }

    /// Bytes per second that come back while `f` runs.
    pub(crate) fn rate_during<R>(&self, f: impl FnOnce() -> R) -> (f64, R) {
        let (before, begin) = (self.blocks(), Instant::now());
        let result = f();
        let blocks = (self.blocks() - before) as f64;
        (blocks * BLOCK as f64 / begin.elapsed().as_secs_f64(), result)
    }

    /// Waits for so many more blocks.
    pub(crate) fn wait_for(&self, blocks: u64) {
        let wanted = self.blocks() + blocks;
        let is_there = |now: &u64| *now >= wanted || self.thread_is_over();
        let now = crate::common::eventually(|| self.blocks(), is_there);
        assert!(now >= wanted, "the flow ended");
    }

    fn thread_is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends the flow; how it fared.
    pub(crate) fn end(mut self) -> Result<(), String> {
        self.progress.is_over.store(true, SeqCst);
        let thread = self.thread.take().expect("it ends once");
        thread.join().expect("no panic")
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.progress.is_over.store(true, SeqCst);
    }
}

/// Clients of the kernel that come one after the other, each for one byte there and back, until
/// this is ended.
pub(crate) struct Newcomers {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl Newcomers {
    pub(crate) fn begin(to: SocketAddr) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let is_over = is_over.clone();
            move || {
                let mut served = 0;
                while !is_over.load(SeqCst) {
                    served += u64::from(visit(to).is_ok());
                    std::thread::sleep(PACE);
                }
                served
            }
        });
        Self { is_over, thread }
    }

    /// Ends them; how many were served.
    pub(crate) fn end(self) -> u64 {
        self.is_over.store(true, SeqCst);
        self.thread.join().expect("no panic")
    }
}

/// One byte there and back. Who is not served after three SYNs goes away.
pub(crate) fn visit(to: SocketAddr) -> std::io::Result<()> {
    let limit = Duration::from_secs(4);
    let mut stream = TcpStream::connect_timeout(&to, limit)?;
    stream.set_read_timeout(Some(limit))?;
    stream.write_all(b"x")?;
    stream.read_exact(&mut [0])
}

/// Exchanges blocks at the pace, each byte verified.
fn exchange(progress: &Progress, mut stream: TcpStream) -> Result<(), String> {
    let told = |error: std::io::Error| match error.kind() {
        ErrorKind::WouldBlock => "no answer".to_owned(),
        _ => error.to_string(),
    };
    let (pattern, mut back) = (Pattern(7), vec![0; BLOCK]);
    let mut next = Instant::now();
    let mut offset = 0;
    while !progress.is_over.load(SeqCst) {
        let mut block = vec![0; BLOCK];
        pattern.fill(offset, &mut block);
        stream.write_all(&block).map_err(told)?;
        stream.read_exact(&mut back).map_err(told)?;
        pattern.check(offset, &back);
        offset += BLOCK as u64;
        progress.blocks.fetch_add(1, SeqCst);
        next = (next + PACE).max(Instant::now() - 4 * PACE);
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    Ok(())
}
