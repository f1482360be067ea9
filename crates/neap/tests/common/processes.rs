//! Processes that a test has started, and the one that the test itself is in its namespace.

use std::fs;
use std::io::Read;
use std::process::{Command, ExitStatus, Stdio, id};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Tells a test that it is in its namespace. The value marks all that the test starts.
pub(crate) const INSIDE: &str = "NEAP_TEST_NAMESPACE";

/// How long a pipe may stay open whose writers are killed: far above what it takes.
const CLOSING: Duration = Duration::from_secs(10);

/// How a test in a process of its own has ended.
pub(crate) struct Ended {
    status: ExitStatus,
    /// Why a test whose process ends well has failed nevertheless.
    fault: Option<&'static str>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ended {
    /// Panics with all that the test said, unless it has passed.
    pub(crate) fn expect_passed(&self, name: &str) {
        let Self { status, fault, out, err } = self;
        let passed = status.success() && fault.is_none() && out.contains("1 passed");
        assert!(passed, "{name} {}: {status}\n{out}{err}", fault.unwrap_or("failed"));
    }
}

/// Runs a test in a process of its own. Nothing that the test has started outlives it: programs
/// that are left would keep its output open.
pub(crate) fn run_inside(command: &mut Command, patience: Duration) -> Ended {
    static TESTS: AtomicU32 = AtomicU32::new(0);
    let mark = format!("{INSIDE}={}.{}", id(), TESTS.fetch_add(1, Relaxed));
    command.env(INSIDE, &mark[INSIDE.len() + 1..]).stdin(Stdio::null());
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program runs");
    let process = child.id();
    let (said, hears) = channel();
    read_on(child.stdout.take().expect("a pipe"), false, said.clone());
    read_on(child.stderr.take().expect("a pipe"), true, said);
    let (ended, end) = channel();
    let wait = thread::spawn(move || {
        let status = child.wait().expect("a child can be waited for");
        let _ = ended.send(());
        status
    });

    let begin = Instant::now();
    let mut fault = None;
    if end.recv_timeout(patience).is_err() {
        fault = Some("hangs");
        kill_all(process);
        kill_marked(&mark);
    }
    let status = wait.join().expect("waited for");
    let mut texts = [Vec::new(), Vec::new()];
    let mut limit = begin + patience;
    if fault.is_some() || !status.success() {
        kill_marked(&mark);
        limit = Instant::now() + CLOSING;
    }
    loop {
        match hears.recv_timeout(limit.saturating_duration_since(Instant::now())) {
            Ok((is_error, bytes)) => texts[usize::from(is_error)].extend::<Vec<u8>>(bytes),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) if fault.is_some() || !status.success() => break,
            Err(RecvTimeoutError::Timeout) => {
                fault = Some("leaves programs behind");
                kill_marked(&mark);
                limit = Instant::now() + CLOSING;
            }
        }
    }
    let [out, err] = texts.map(|text| String::from_utf8_lossy(&text).into_owned());
    Ended { status, fault, out, err }
}

/// Sends on what comes out of a pipe until all have closed it.
fn read_on(mut pipe: impl Read + Send + 'static, is_error: bool, to: Sender<(bool, Vec<u8>)>) {
    thread::spawn(move || {
        let mut buf = [0; 4096];
        while let Ok(len @ 1..) = pipe.read(&mut buf) {
            if to.send((is_error, buf[..len].to_vec())).is_err() {
                return;
            }
        }
    });
}

/// Kills a process that runs and all that it has started.
fn kill_all(process: u32) {
    let (mut all, mut next) = (vec![process.to_string()], 0);
    while let Some(parent) = all.get(next) {
        let threads = fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
        let children = threads.map(|thread| fs::read_to_string(thread.path().join("children")));
        let children = children.map(Result::unwrap_or_default).collect::<String>();
        all.extend(children.split_whitespace().map(str::to_owned));
        next += 1;
    }
    kill(&all);
}

/// Kills all processes that have this in their environment, also those whose parents have ended.
fn kill_marked(mark: &str) {
    let is_marked = |process: &String| {
        let environment = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
        environment.split(|&byte| byte == 0).any(|variable| variable == mark.as_bytes())
    };
    // Those that are killed may have started others meanwhile.
    for _ in 0..10 {
        let names = fs::read_dir("/proc").into_iter().flatten().flatten().map(|e| e.file_name());
        let names = names.filter_map(|name| name.into_string().ok());
        let numbers = names.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
        let marked: Vec<String> = numbers.filter(is_marked).collect();
        if marked.is_empty() {
            return;
        }
        kill(&marked);
    }
}

fn kill(processes: &[String]) {
    // Some may have ended meanwhile.
    let _ = Command::new("kill").arg("-KILL").args(processes).stderr(Stdio::null()).status();
}
