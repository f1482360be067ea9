//! Two network namespaces with a slow link between them, gone when they are dropped. The link is
//! `tbf`, or one of the lab in real time (`neap link`) in a third namespace.

use super::{Link, Sender};
use crate::netns::enter;
use rustix::fs::{MemfdFlags, memfd_create};
use std::collections::BTreeMap;
use std::error::Error;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

/// Names of all namespaces of this program begin so and end with its process.
const PREFIX: &str = "neap-compare";

/// Addresses of the sender and of the receiver, and the sender's interface.
pub(super) const SENDER: &str = "10.99.0.2";
pub(super) const RECEIVER: &str = "10.99.0.1";
pub(super) const DEVICE: &str = "vs";
/// The receiver's interface.
const RECEIVER_END: &str = "vr";

/// `CAP_NET_ADMIN`, `CAP_NET_RAW` and `CAP_SYS_ADMIN`, which namespaces and AF_PACKET need.
const CAPABILITIES: u64 = 1 << 12 | 1 << 13 | 1 << 21;

/// A file that is in no directory, where others could put one of their own in its place; and a path
/// for the programs that this one starts, while the file is open.
fn unnamed_file(text: &str) -> io::Result<(File, String)> {
    let mut file = File::from(memfd_create(PREFIX, MemfdFlags::CLOEXEC)?);
    file.write_all(text.as_bytes())?;
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    Ok((file, path))
}

/// Whether the machine lets us; what to do if not.
///
/// # Errors
/// What is missing.
pub(super) fn check() -> Result<(), Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")
        .map_err(|_| "neap lab compare needs Linux: it uses network namespaces")?;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    if effective & CAPABILITIES != CAPABILITIES {
        return Err("making network namespaces is not permitted; run it as root: \
                    sudo neap lab compare"
            .into());
    }
    let iproute2 = ["ip", "tc", "ss"].map(|program| (program, "iproute2"));
    for (program, package) in iproute2.into_iter().chain([("iperf3", "iperf3")]) {
        let option = if program == "iperf3" { "--version" } else { "-V" };
        if Command::new(program).arg(option).output().is_err() {
            let what = format!("{program} is not here; install it: apt install {package}");
            return Err(what.into());
        }
    }
    remove_leftovers()
}

/// Removes what a run left behind that was killed.
fn remove_leftovers() -> Result<(), Box<dyn Error>> {
    let listing = run(["ip", "netns", "list"])?;
    for name in listing.lines().filter_map(|line| line.split_whitespace().next()) {
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.rsplit('-').next());
        if owner.is_some_and(|id| !std::path::Path::new("/proc").join(id).exists()) {
            run(["ip", "netns", "delete", name])?;
        }
    }
    Ok(())
}

/// Runs a command; what it printed.
pub(super) fn run<S: AsRef<OsStr>>(
    words: impl IntoIterator<Item = S>,
) -> Result<String, Box<dyn Error>> {
    let words: Vec<S> = words.into_iter().collect();
    let output: Output = Command::new(&words[0]).args(&words[1..]).output()?;
    if !output.status.success() {
        let line: Vec<_> = words.iter().map(|word| word.as_ref().to_string_lossy()).collect();
        let what = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{}: {}", line.join(" "), what.trim()).into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A veth pair between two namespaces.
fn veth(from: &str, own: &str, to: &str, peer: &str) -> Result<(), Box<dyn Error>> {
    run(["ip", "-n", from, "link", "add", own, "type", "veth", "peer", "name", peer, "netns", to])
        .map(drop)
}

/// Sets sysctls of a namespace, as `NAME=VALUE`.
fn set<'a>(
    namespace: &'a str,
    settings: impl IntoIterator<Item = &'a str>,
) -> Result<(), Box<dyn Error>> {
    let words = ["ip", "netns", "exec", namespace, "sysctl", "-qw"];
    run(words.into_iter().chain(settings)).map(drop)
}

/// Waits until `neap link` has joined its ends.
fn joined(mut link: ChildGuard) -> Result<ChildGuard, Box<dyn Error>> {
    let mut line = String::new();
    let mut stderr = BufReader::new(link.0.stderr.take().ok_or("a program without output")?);
    stderr.read_line(&mut line)?;
    if line.contains("are joined") { Ok(link) } else { Err(line.trim().into()) }
}

/// A program that does not outlive its measurement.
pub(super) struct ChildGuard(pub(super) Child);

impl Drop for ChildGuard {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The namespaces.
pub(super) struct Network {
    pub(super) sender: String,
    pub(super) receiver: String,
    /// That of the link, if it has one of its own, and the program that is the link.
    middle: Option<String>,
    link: Option<ChildGuard>,
}

impl Drop for Network {
    fn drop(&mut self) {
        self.link = None;
        for name in [&self.sender, &self.receiver].into_iter().chain(&self.middle) {
            if let Err(error) = run(["ip", "netns", "delete", name]) {
                eprintln!("neap lab compare: {error}");
            }
        }
    }
}

/// Moves the calling thread into the namespace of this name.
///
/// # Errors
/// The namespace cannot be entered.
pub(super) fn enter_named(name: &str) -> Result<(), String> {
    let path = Path::new("/run/netns").join(name);
    enter(&path).map_err(|error| format!("{}: {error}", path.display()))
}

impl Network {
    /// Makes them, with `tbf` if there is a slow link. The sender's end has an address if the
    /// kernel sends.
    ///
    /// # Errors
    /// What `ip` or `tc` said.
    pub(super) fn new(link: Option<Link>, sender: Sender) -> Result<Self, Box<dyn Error>> {
        let network = Self::empty(false)?;
        let (a, b) = (network.sender.as_str(), network.receiver.as_str());
        veth(a, DEVICE, b, RECEIVER_END)?;
        run(["ip", "-n", b, "address", "add", &format!("{RECEIVER}/24"), "dev", RECEIVER_END])?;
        run(["ip", "-n", b, "link", "set", RECEIVER_END, "up"])?;
        if sender == Sender::Kernel {
            run(["ip", "-n", a, "address", "add", &format!("{SENDER}/24"), "dev", DEVICE])?;
        }
        run(["ip", "-n", a, "link", "set", DEVICE, "up"])?;
        if let Some(link) = link {
            network.slow(link, sender)?;
        }
        Ok(network)
    }

    /// Makes the sender's interface slow, by `tbf`.
    ///
    /// # Errors
    /// What `ip` or `tc` said.
    pub(super) fn slow(&self, link: Link, sender: Sender) -> Result<(), Box<dyn Error>> {
        if sender == Sender::Kernel {
            let size = link.gso_max.to_string();
            run(["ip", "-n", &self.sender, "link", "set", DEVICE, "gso_max_size", &size])?;
        }
        let (rate, burst) = (format!("{}mbit", link.mbit), link.burst.to_string());
        self.set_queue(&["tbf", "rate", &rate, "burst", &burst, "limit", "10mb"])
    }

    /// Gives the sender's interface `fq`, which paces each flow.
    ///
    /// # Errors
    /// What `tc` said: this kernel may have no fq.
    pub(super) fn fair(&self) -> Result<(), Box<dyn Error>> {
        self.set_queue(&["fq"])
    }

    fn set_queue(&self, queue: &[&str]) -> Result<(), Box<dyn Error>> {
        let words = ["tc", "-n", &self.sender, "qdisc", "replace", "dev", DEVICE, "root"];
        run(words.iter().chain(queue)).map(drop)
    }

    /// Makes them with a link of the lab between them: the one of this scenario.
    ///
    /// # Errors
    /// What `ip` or `neap link` said.
    pub(super) fn with_relay(scenario: &str, sender: Sender) -> Result<Self, Box<dyn Error>> {
        let mut network = Self::empty(true)?;
        let (a, b) = (network.sender.as_str(), network.receiver.as_str());
        let middle = network.middle.as_deref().ok_or("no namespace for the link")?;
        veth(a, DEVICE, middle, "la")?;
        veth(b, RECEIVER_END, middle, "lb")?;
        run(["ip", "-n", b, "address", "add", &format!("{RECEIVER}/24"), "dev", RECEIVER_END])?;
        if sender == Sender::Kernel {
            run(["ip", "-n", a, "address", "add", &format!("{SENDER}/24"), "dev", DEVICE])?;
        }
        for (name, device) in [(a, DEVICE), (b, RECEIVER_END), (middle, "la"), (middle, "lb")] {
            run(["ip", "-n", name, "link", "set", device, "up"])?;
        }
        let (_open, path) = unnamed_file(scenario)?;
        let program = std::env::current_exe()?;
        let program = program.display().to_string();
        let words = [&program, "link", "packet:la", "packet:lb", "--scenario", &path];
        let started = Self::start(middle, words.into_iter().chain(["--scheduling", "fifo:1"]));
        network.link = Some(started.map_err(Into::into).and_then(joined)?);
        Ok(network)
    }

    /// The namespaces, without interfaces and IPv6.
    fn empty(has_middle: bool) -> Result<Self, Box<dyn Error>> {
        let name = |role: &str| format!("{PREFIX}-{role}-{}", std::process::id());
        let middle = has_middle.then(|| name("link"));
        let (sender, receiver) = (name("sender"), name("receiver"));
        let network = Self { sender, receiver, middle, link: None };
        for name in [&network.sender, &network.receiver].into_iter().chain(&network.middle) {
            run(["ip", "netns", "add", name])?;
            let settings =
                ["net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1"];
            set(name, settings)?;
        }
        Ok(network)
    }

    /// Lets the receiver grow its buffers as in the publication of E3.
    ///
    /// # Errors
    /// What `ip` said.
    pub(super) fn allow_large_windows(&self) -> Result<(), Box<dyn Error>> {
        set(&self.receiver, ["net.ipv4.tcp_rmem=4096 262144 64000000"])
    }

    /// Sets sysctls of the sender, as `NAME=VALUE`.
    ///
    /// # Errors
    /// What `sysctl` said.
    pub(super) fn set_sender(&self, settings: &[String]) -> Result<(), Box<dyn Error>> {
        if settings.is_empty() {
            return Ok(());
        }
        set(&self.sender, settings.iter().map(String::as_str))
    }

    /// The sending kernel's counters of IP and TCP, by nstat's names.
    ///
    /// # Errors
    /// What `ip` said.
    pub(super) fn counters(&self) -> Result<BTreeMap<String, f64>, Box<dyn Error>> {
        let text = run(["ip", "netns", "exec", &self.sender, "cat", "/proc/net/snmp"])?;
        let lines: Vec<&str> = text.lines().collect();
        let mut all = BTreeMap::new();
        // A line of names, and one of numbers.
        for pair in lines.chunks_exact(2) {
            let (mut names, mut numbers) = (pair[0].split_whitespace(), pair[1].split_whitespace());
            let (Some(of), Some(_)) = (names.next(), numbers.next()) else { continue };
            for (name, number) in names.zip(numbers) {
                let name = format!("{}{name}", of.trim_end_matches(':'));
                all.insert(name, number.parse().unwrap_or(0.0));
            }
        }
        Ok(all)
    }

    /// Starts a program in a namespace.
    pub(super) fn start<S: AsRef<OsStr>>(
        name: &str,
        words: impl IntoIterator<Item = S>,
    ) -> std::io::Result<ChildGuard> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", name]).args(words);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(ChildGuard(command.spawn()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_program_reads_is_in_no_directory() {
        let (file, path) = unnamed_file("about = 1\n").expect("a file");
        let seen = Command::new("cat").arg(&path).output().expect("cat runs").stdout;
        assert_eq!(seen, b"about = 1\n");
        let target = std::fs::read_link(&path).expect("a link of /proc");
        let target = target.display().to_string();
        assert!(target.starts_with("/memfd:neap-compare"), "{target}");
        drop(file);
    }
}
