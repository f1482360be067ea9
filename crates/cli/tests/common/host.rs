//! Network namespaces as hosts of a test.

use super::namespace::run;
use rustix::fd::AsFd;
use rustix::fs::{Mode, OFlags};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The longest that a link may take to come up: far above what it takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A host: a network namespace that lives as long as a process in it.
pub(crate) struct Host(Child);

impl Host {
    /// `ipv6` is off where kernels must send nothing by themselves.
    pub(crate) fn new(ipv6: bool) -> Self {
        let own = std::fs::read_link("/proc/self/ns/net").expect("a namespace");
        // The shell speaks when it is there, and ends with this process, however that one ends.
        let mut child = Command::new("unshare")
            .args(["-n", "sh", "-c", "echo; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare runs");
        let mut line = String::new();
        let stdout = child.stdout.as_mut().expect("a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        let host = Self(child);
        let theirs = std::fs::read_link(host.path()).expect("a namespace");
        assert_ne!(own, theirs);
        if !ipv6 {
            let of = "net.ipv6.conf.default.disable_ipv6=1 net.ipv6.conf.all.disable_ipv6=1";
            host.inside(|| run(&format!("sysctl -qw {of}")));
        }
        host
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.pid())
    }

    /// Runs `what` on this host: its sockets, and the programs that it starts, stay there.
    pub(crate) fn inside<T: Send>(&self, what: impl FnOnce() -> T + Send) -> T {
        let path = self.path();
        thread::scope(|scope| {
            let inside = scope.spawn(move || {
                let flags = OFlags::RDONLY | OFlags::CLOEXEC;
                let file = rustix::fs::open(path, flags, Mode::empty()).expect("the namespace");
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                    .expect("the namespace lets us in");
                what()
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

/// Waits until interfaces in the namespace of this thread pass packets. The kernel drops what is
/// sent before it has taken notice that a link is there, which takes a busy machine a while.
pub(crate) fn await_links(names: &[&str]) {
    let begin = Instant::now();
    for name in names {
        while !run(&format!("ip -o link show {name}")).contains(" state UP ") {
            assert!(begin.elapsed() < PATIENCE, "{name} does not come up");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
