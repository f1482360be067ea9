//! What passes an interface, by tcpdump.

use super::folder::Folder;
use super::namespace::run;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;

/// The packets of an interface.
pub(crate) struct Capture {
    child: Child,
    file: PathBuf,
}

impl Capture {
    pub(crate) fn start(folder: &Folder, interface: &str) -> Self {
        let file = folder.path().join("packets");
        let mut child = Command::new("tcpdump")
            .args(["-i", interface, "-n", "-U", "--immediate-mode", "-Z", "root", "-w"])
            .arg(&file)
            .stderr(Stdio::piped())
            .spawn()
            .expect("tcpdump is there");
        let mut said = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let listens = |line: std::io::Result<String>| line.expect("text").contains("listening on");
        assert!(said.any(listens), "tcpdump has ended");
        thread::spawn(move || said.for_each(drop));
        Self { child, file }
    }

    /// Ends the capture. Returns how many packets there were, and those that `beside` is true for.
    pub(crate) fn finish(mut self, beside: &str) -> (usize, String) {
        run(&format!("kill -INT {}", self.child.id()));
        self.child.wait().expect("it ends");
        let read = |filter: &str| {
            let output = Command::new("tcpdump")
                .args(["-n", "-r"])
                .arg(&self.file)
                .arg(filter)
                .stderr(Stdio::null())
                .output()
                .expect("tcpdump is there");
            assert!(output.status.success(), "{filter}");
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        // Neighbours of the link find each other without any gateway.
        let is_traffic = "(ip or ip6) and not icmp6 and not ip6 multicast";
        let all = read(is_traffic).lines().count();
        (all, read(&format!("{is_traffic} and not ({beside})")))
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
