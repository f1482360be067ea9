//! Network namespaces as hosts, and the link between two of them.

#[path = "../common/host.rs"]
mod host;
#[path = "../common/namespace.rs"]
mod namespace;

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use host::await_links;
use serde_json::Value;

pub(crate) use host::Host;
pub(crate) use namespace::{in_namespace, run};

/// The longest that something may take: far above what it takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running `neap link`.
pub(crate) struct Link(Option<Child>, Option<BufReader<ChildStderr>>);

impl Link {
    /// Starts it and waits until both ends are joined.
    pub(crate) fn start(arguments: &str) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_neap"))
            .args(["link", "--json"])
            .args(arguments.split_whitespace())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("neap starts");
        let mut stderr = BufReader::new(child.stderr.take().expect("a pipe"));
        let mut line = String::new();
        stderr.read_line(&mut line).expect("a line");
        assert!(line.contains("are joined"), "{arguments}: {line}");
        Self(Some(child), Some(stderr))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.as_ref().expect("not ended yet").id()
    }

    /// Waits until it has slept and woken twice, so that it has gone around once after this call.
    pub(crate) fn goes_around(&self) {
        let path = format!("/proc/{}/status", self.pid());
        let count = || {
            let text = std::fs::read_to_string(&path).expect("a process");
            let count = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            count.expect("a count").trim().parse::<u64>().expect("a number")
        };
        let before = count();
        eventually(|| (count() >= before + 2).then_some(()));
    }

    /// Waits until it ends by itself; returns its status and what it said.
    pub(crate) fn wait(mut self) -> (Option<i32>, String) {
        let child = self.0.take().expect("not ended yet");
        let output = child.wait_with_output().expect("the output");
        (output.status.code(), namespace::read_all(self.1.take().expect("not read yet")))
    }

    /// Ends it by a signal; returns what it counted.
    pub(crate) fn end(mut self) -> Counts {
        let child = self.0.take().expect("not ended yet");
        run(&format!("kill -INT {}", child.id()));
        let output = child.wait_with_output().expect("the output");
        let errors = namespace::read_all(self.1.take().expect("not read yet"));
        assert!(output.status.success(), "{}: {errors}", output.status);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let counts = Counts(serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}")));
        counts.check();
        counts
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What a link counted.
#[derive(Debug)]
pub(crate) struct Counts(Value);

impl Counts {
    /// A counter of the direction that begins at an end.
    pub(crate) fn of(&self, end: usize, name: &str) -> u64 {
        self.0["directions"][end][name].as_u64().unwrap_or_else(|| panic!("{name}: {}", self.0))
    }

    pub(crate) fn seconds(&self) -> f64 {
        self.0["seconds"].as_f64().expect("a number")
    }

    /// Each packet is counted where it ended.
    fn check(&self) {
        for end in [0, 1] {
            let sum = |names: &[&str]| names.iter().map(|name| self.of(end, name)).sum::<u64>();
            let come = sum(&["packets_in", "duplicated", "answered"]);
            let gone = sum(&[
                "packets_out",
                "lost",
                "dropped_by_queue",
                "dropped_by_aqm",
                "policed",
                "too_big",
                "overflow",
                "in_flight",
            ]);
            assert_eq!(come, gone, "{}", self.0);
            assert_eq!(self.of(end, "unreadable"), 0, "{}", self.0);
            let late = &self.0["directions"][end]["lateness"];
            assert!(late["packets"].as_u64() <= Some(self.of(end, "packets_out")), "{}", self.0);
        }
    }
}

/// Two hosts and the link between them.
pub(crate) struct Network {
    pub(crate) a: Host,
    pub(crate) b: Host,
    /// The host of the link, if it has interfaces of its own.
    middle: Option<Host>,
    pub(crate) link: Option<Link>,
}

/// Addresses of the two hosts.
pub(crate) const A: [&str; 2] = ["10.1.0.1", "fd00:1::1"];
pub(crate) const B: [&str; 2] = ["10.1.0.2", "fd00:1::2"];

impl Network {
    /// Hosts at TUNs.
    pub(crate) fn tuns(words: &str) -> Self {
        Self::at_tuns(words, true)
    }

    /// Hosts at TUNs without IPv6, so that nothing is sent that the test does not send.
    pub(crate) fn quiet_tuns(words: &str) -> Self {
        Self::at_tuns(words, false)
    }

    fn at_tuns(words: &str, ipv6: bool) -> Self {
        let (a, b) = (Host::new(ipv6), Host::new(ipv6));
        let address = |which: &str, addresses: [&str; 2]| {
            let v6 = format!("--address-{which} {}/64", addresses[1]);
            format!("--address-{which} {}/24 {}", addresses[0], if ipv6 { &v6 } else { "" })
        };
        let arguments = format!(
            "tun0@{} tun0@{} {words} {} {}",
            a.pid(),
            b.pid(),
            address("a", A),
            address("b", B)
        );
        let link = Some(Link::start(&arguments));
        Self { a, b, middle: None, link }
    }

    /// Hosts at veth pairs, whose other ends are on a third host, where the link joins them. The
    /// first host has no address if `has_kernel` is false.
    pub(crate) fn veths(words: &str, has_kernel: bool) -> Self {
        let (a, b, middle) = (Host::new(true), Host::new(true), Host::new(false));
        for (host, own, peer, addresses) in [(&a, "a0", "la", A), (&b, "b0", "lb", B)] {
            host.inside(|| {
                run(&format!(
                    "ip link add {own} type veth peer name {peer} netns {}",
                    middle.pid()
                ));
                if has_kernel || own == "b0" {
                    run(&format!("ip address add {}/24 dev {own}", addresses[0]));
                    run(&format!("ip address add {}/64 dev {own} nodad", addresses[1]));
                }
                run(&format!("ip link set {own} up"));
            });
            middle.inside(|| run(&format!("ip link set {peer} up")));
        }
        a.inside(|| await_links(&["a0"]));
        b.inside(|| await_links(&["b0"]));
        middle.inside(|| await_links(&["la", "lb"]));
        let (at, ends) = (middle.pid(), ["la", "lb"]);
        let link = Link::start(&format!("{}@{at} packet:{}@{at} {words}", ends[0], ends[1]));
        Self { a, b, middle: Some(middle), link: Some(link) }
    }

    /// Does something on the host of the link, which has interfaces of its own.
    pub(crate) fn in_the_middle<R: Send>(&self, what: impl FnOnce() -> R + Send) -> R {
        self.middle.as_ref().expect("a host of the link").inside(what)
    }

    /// Ends the link; returns what it counted.
    pub(crate) fn end(&mut self) -> Counts {
        let counts = self.link.take().expect("not ended yet").end();
        for end in [0, 1] {
            assert_eq!(counts.of(end, "rx_dropped"), 0, "{counts:?}");
        }
        counts
    }
}

/// Waits for something that nobody tells of.
pub(crate) fn eventually<T>(what: impl Fn() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = what() {
            return found;
        }
        assert!(begin.elapsed() < PATIENCE, "it never comes");
        thread::sleep(Duration::from_millis(2));
    }
}
