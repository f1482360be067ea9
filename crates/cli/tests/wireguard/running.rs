//! Programs that end with the test, however it ends.

use super::folder::Folder;
use super::host::Host;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// Runs a program until the standard input ends: what it prints goes into a file.
const SCRIPT: &str = r#"log=$1; shift; "$@" </dev/null >"$log" 2>&1 & echo $!
    cat >/dev/null; kill -9 $! 2>/dev/null; wait"#;

/// A running program. It is killed when its value is dropped, and when the test's process is gone.
pub(super) struct Running {
    shell: Child,
    pid: u32,
    log: PathBuf,
}

impl Running {
    /// Starts it in the namespace of this thread. The log has the name of the program.
    pub(super) fn start(folder: &Folder, words: &[&str]) -> Self {
        let name = words[0].rsplit('/').next().expect("a name");
        let log = folder.path().join(format!("{name}.log"));
        let mut shell = Command::new("sh")
            .args(["-c", SCRIPT, "sh"])
            .arg(&log)
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh runs");
        let mut line = String::new();
        let stdout = shell.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        let pid = line.trim().parse().expect("the number of a process");
        Self { shell, pid, log }
    }

    /// Starts it on a host.
    pub(super) fn start_on(host: &Host, folder: &Folder, words: &[&str]) -> Self {
        host.inside(|| Self::start(folder, words))
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// What it has printed.
    pub(super) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Whether it has not ended by itself: the shell takes its status in the end only.
    pub(super) fn is_running(&self) -> bool {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        text.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
    }

    /// Kills it by SIGKILL, and waits until it is gone.
    pub(super) fn kill(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}
