//! `neap perf` against the real iperf3, both as client and as server, and against peers that do not
//! keep the protocol.

#[allow(dead_code, reason = "shared with tests that write files")]
#[path = "common/folder.rs"]
mod folder;
#[path = "../../neap/tests/common/processes.rs"]
mod processes;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use folder::Folder;
use serde_json::Value;

/// Longest time a program may take before a test gives it up.
const LIMIT: Duration = Duration::from_secs(30);

/// The longest that a test may take: far above what it takes.
const PATIENCE: Duration = Duration::from_secs(240);

/// A program that does not outlive its test.
struct ChildGuard {
    child: Option<Child>,
    stdout: Option<BufReader<ChildStdout>>,
    /// What was read of the output already.
    seen: String,
}

impl ChildGuard {
    fn start(command: &mut Command) -> Self {
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.expect("the program starts");
        let stdout = child.stdout.take().map(BufReader::new);
        Self { child: Some(child), stdout, seen: String::new() }
    }

    /// Waits until the program prints a line with these words.
    fn shows(&mut self, words: &str) {
        let stdout = self.stdout.as_mut().expect("not waited for yet");
        loop {
            let mut line = String::new();
            let len = stdout.read_line(&mut line).expect("text");
            self.seen.push_str(&line);
            assert!(len > 0, "no {words:?} in {:?}", self.seen);
            if line.contains(words) {
                return;
            }
        }
    }

    /// Waits for the end of the program; a program that hangs is killed and fails the test.
    fn output(mut self) -> Output {
        let mut child = self.child.take().expect("not waited for yet");
        let pid = child.id();
        let mut stdout = self.stdout.take().expect("not waited for yet");
        let mut stderr = child.stderr.take().expect("a pipe");
        let mut seen = std::mem::take(&mut self.seen).into_bytes();
        let out = thread::spawn(move || {
            seen.extend(read_all(&mut stdout));
            seen
        });
        let err = thread::spawn(move || read_all(&mut stderr));
        let begin = Instant::now();
        let status = loop {
            match child.try_wait().expect("a child can be waited for") {
                Some(status) => break status,
                None if begin.elapsed() > LIMIT => {
                    let _ = child.kill();
                    let _ = child.wait();
                    panic!(
                        "process {pid} hangs: {}",
                        String::from_utf8_lossy(&out.join().unwrap())
                    );
                }
                None => thread::sleep(Duration::from_millis(5)),
            }
        };
        Output { status, stdout: out.join().unwrap(), stderr: err.join().unwrap() }
    }

    fn interrupt(&self) {
        self.send("INT");
    }

    /// Times that threads of the program sleep and are woken in this time.
    fn wake_ups_within(&self, window: Duration) -> u64 {
        let pid = self.child.as_ref().expect("still running").id();
        let woken = || -> u64 {
            let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("a process");
            let of_thread = |thread: std::fs::DirEntry| {
                let status = std::fs::read_to_string(thread.path().join("status"));
                let status = status.expect("a thread");
                let mut lines = status.lines();
                let count = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
                count.expect("its switches").trim().parse::<u64>().expect("a number")
            };
            threads.map(|thread| of_thread(thread.expect("a thread"))).sum()
        };
        let before = woken();
        thread::sleep(window);
        woken() - before
    }

    fn send(&self, signal: &str) {
        let pid = self.child.as_ref().expect("still running").id().to_string();
        let kill = Command::new("kill").args(["-s", signal, &pid]).status();
        assert!(kill.expect("kill runs").success());
    }
}

impl Drop for ChildGuard {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn read_all(from: &mut impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = from.read_to_end(&mut bytes);
    bytes
}

/// Where neap finds iperf3: the kernel's address.
const KERNEL: &str = "10.9.0.1";
/// Where iperf3 finds neap.
const STACK: &str = "10.9.0.2";
/// The way out of neap's stack.
const WAY: [&str; 6] = ["--tun", "t0", "--address", "10.9.0.2/24", "--host-address", "10.9.0.1/24"];
/// The same over IPv6.
const WAY6: [&str; 6] =
    ["--tun", "t0", "--address", "fd00:9::2/64", "--host-address", "fd00:9::1/64"];

/// Says that a test cannot run here; not by `eprintln!`, which the harness swallows.
fn skip(reason: &str) {
    writeln!(std::io::stderr(), "SKIP: {reason}").expect("stderr");
}

/// Runs `body` as the test `name` in a network namespace of its own, which ends with it: the test
/// binary starts itself again for that. Where this machine lacks a program or the right to make
/// namespaces, says so and does nothing.
fn in_namespace(name: &str, body: impl FnOnce(&World)) {
    if std::env::var_os(processes::INSIDE).is_some() {
        body(&IPV4);
        return;
    }
    let version = |program: &str| Command::new(program).arg("--version").output();
    if let Err(error) = version("iperf3") {
        return skip(&format!("iperf3: {error}"));
    }
    let Some(flags) = ["-n", "-rn"].into_iter().find(|flags| {
        let probe = "ip tuntap add dev probe mode tun && ip tuntap del dev probe mode tun";
        let output = Command::new("unshare").args([flags, "sh", "-c", probe]).output();
        output.is_ok_and(|output| output.status.success())
    }) else {
        return skip("no right to make a network namespace with a TUN interface in it");
    };
    let own = std::env::current_exe().expect("the test knows its binary");
    let mut command = Command::new("unshare");
    command.args([flags, "sh", "-c", SETUP, "sh"]).arg(own);
    command.args(["--exact", name, "--nocapture"]);
    processes::run_inside(&mut command, PATIENCE).expect_passed(name);
}

/// Prepares a namespace and goes on as the program given.
const SETUP: &str = "ip link set lo up && exec \"$@\"";

/// A place where both programs can reach each other.
struct World {
    port: u16,
    kernel: &'static str,
    stack: &'static str,
    way: [&'static str; 6],
}

const IPV4: World = World { port: 5201, kernel: KERNEL, stack: STACK, way: WAY };
const IPV6: World = World { port: 5201, kernel: "fd00:9::1", stack: "fd00:9::2", way: WAY6 };

impl World {
    fn neap(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_neap"));
        command.arg("perf").args(args).args(self.way).arg("-p").arg(self.port.to_string());
        command
    }

    fn iperf3(&self, args: &[&str]) -> Command {
        let mut command = Command::new("iperf3");
        command.args(args).arg("-p").arg(self.port.to_string());
        command
    }

    /// Runs a client until its server listens.
    fn client(&self, command: &mut Command) -> Output {
        let begin = Instant::now();
        loop {
            let output = ChildGuard::start(command).output();
            let texts = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
            let early = ["onnection refused", "unreachable", "No route to host"];
            let early = early.iter().any(|words| texts.iter().any(|text| text.contains(words)));
            if !early || begin.elapsed() > LIMIT {
                return output;
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// A test with neap as the client; its report and iperf3's.
    fn send(&self, args: &[&str]) -> (Value, Value) {
        let server = ChildGuard::start(&mut self.iperf3(&["-s", "-1", "-J"]));
        let kernel = self.kernel;
        let client = self.client(&mut self.neap(&[&["-c", kernel, "-J"], args].concat()));
        (report(&client), report(&server.output()))
    }

    /// A test with neap as the server; its report and iperf3's.
    fn serve(&self, args: &[&str]) -> (Value, Value) {
        let server = ChildGuard::start(&mut self.neap(&["-s", "-1", "-J"]));
        let client = self.client(&mut self.iperf3(&[&["-c", self.stack, "-J"], args].concat()));
        (report(&server.output()), report(&client))
    }

    /// A test between two iperf3; the client's report and the server's.
    fn reference(&self, args: &[&str]) -> (Value, Value) {
        let server = ChildGuard::start(&mut self.iperf3(&["-s", "-1", "-J"]));
        let client = self.client(&mut self.iperf3(&[&["-c", "127.0.0.1", "-J"], args].concat()));
        (report(&client), report(&server.output()))
    }

    /// Connects to a server that is about to listen.
    fn connect(&self) -> TcpStream {
        let begin = Instant::now();
        loop {
            match TcpStream::connect((STACK, self.port)) {
                Ok(socket) => {
                    socket.set_read_timeout(Some(LIMIT)).expect("a timeout");
                    return socket;
                }
                Err(error) if begin.elapsed() > LIMIT => panic!("{error}"),
                Err(_) => thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

fn report(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| {
        panic!("{error}: {text}{}", String::from_utf8_lossy(&output.stderr))
    });
    assert_eq!(value.get("error"), None, "{value:#}");
    value
}

fn bytes(report: &Value, sum: &str) -> u64 {
    report["end"][sum]["bytes"].as_u64().unwrap_or_else(|| panic!("no {sum} in {report:#}"))
}

/// Every path of keys in a document; all elements of a list share one path.
fn keys(value: &Value, path: &str, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let path = format!("{path}.{key}");
                keys(value, &path, into);
                into.insert(path);
            }
        }
        Value::Array(list) => list.iter().for_each(|value| keys(value, &format!("{path}[]"), into)),
        _ => {}
    }
}

fn missing(theirs: &Value, ours: &Value) -> Vec<String> {
    let (mut have, mut want) = (BTreeSet::new(), BTreeSet::new());
    keys(ours, "", &mut have);
    keys(theirs, "", &mut want);
    want.difference(&have).cloned().collect()
}

#[test]
fn an_omitted_start_that_is_longer_than_the_test_keeps_no_processor_busy() {
    let name = "an_omitted_start_that_is_longer_than_the_test_keeps_no_processor_busy";
    in_namespace(name, |world| {
        let (ours, _) = world.send(&["-t", "1", "-O", "4", "-P", "2", "--fq-rate", "1M"]);
        let share = ours["end"]["cpu_utilization_percent"]["host_total"].as_f64();
        assert!(share.is_some_and(|percent| percent < 25.0), "{share:?} % of a processor");
    });
}

#[test]
fn one_stream_to_iperf3() {
    in_namespace("one_stream_to_iperf3", |world| {
        let (ours, theirs) = world.send(&["-t", "1", "-i", "0.25"]);
        assert_eq!(bytes(&ours, "sum_received"), bytes(&theirs, "sum_received"));
        assert!(bytes(&ours, "sum_sent") >= bytes(&ours, "sum_received"));
        assert!(bytes(&ours, "sum_received") > 1 << 20, "{ours:#}");
        let seconds = ours["end"]["sum_sent"]["seconds"].as_f64().unwrap();
        assert!(seconds >= 0.99, "{seconds}");
        let intervals = ours["intervals"].as_array().unwrap();
        // On a busy machine a report may come too late to be one of its own.
        assert!((1..=5).contains(&intervals.len()), "{intervals:#?}");
        let moved: u64 =
            intervals.iter().map(|interval| interval["sum"]["bytes"].as_u64().unwrap()).sum();
        assert_eq!(moved, bytes(&ours, "sum_sent"));
        assert!(ours["end"]["cpu_utilization_percent"]["remote_total"].as_f64().unwrap() > 0.0);
    });
}

#[test]
fn a_low_water_mark_bounds_what_is_unsent_and_reports_say_where_bytes_were() {
    in_namespace(
        "a_low_water_mark_bounds_what_is_unsent_and_reports_say_where_bytes_were",
        |world| {
            let args = ["-t", "1", "-i", "0.2", "-P", "2", "--notsent-lowat", "64K"];
            let (ours, _) = world.send(&args);
            let intervals = ours["intervals"].as_array().unwrap();
            for stream in intervals.iter().flat_map(|one| one["streams"].as_array().unwrap()) {
                let figure = |name: &str| stream["neap"][name].as_u64().expect(name);
                // The mark is looked at before each buffer of at most 64 KB.
                assert!(figure("unsent_bytes") <= 128 << 10, "{stream:#}");
                assert!(
                    figure("busy_us") > 0 && figure("in_flight_bytes") < 16 << 20,
                    "{stream:#}"
                );
                let limited = ["sndbuf", "rwnd", "cwnd", "small_queue", "pacing"];
                let limited: u64 =
                    limited.iter().map(|one| figure(&format!("{one}_limited_us"))).sum();
                assert!(limited <= figure("busy_us"), "{stream:#}");
            }
            let server = ChildGuard::start(&mut world.iperf3(&["-s", "-1"]));
            let client = world.client(&mut world.neap(&["-c", world.kernel, "-t", "1", "-V"]));
            let text = String::from_utf8_lossy(&client.stdout);
            assert!(text.contains("unsent ") && text.contains("; blocked by "), "{text}");
            server.output();
        },
    );
}

#[test]
fn four_streams_from_iperf3() {
    in_namespace("four_streams_from_iperf3", |world| {
        let (ours, theirs) = world.send(&["-t", "1", "-P", "4", "-R"]);
        assert_eq!(bytes(&ours, "sum_sent"), bytes(&theirs, "sum_sent"));
        assert!(bytes(&ours, "sum_received") <= bytes(&ours, "sum_sent"));
        let streams = ours["end"]["streams"].as_array().unwrap();
        assert_eq!(streams.len(), 4);
        for stream in streams {
            assert!(stream["receiver"]["bytes"].as_u64().unwrap() > 1 << 20, "{stream:#}");
        }
    });
}

#[test]
fn bytes_and_blocks_to_iperf3() {
    in_namespace("bytes_and_blocks_to_iperf3", |world| {
        for (args, expected) in [
            (&["-n", "3000001"][..], 3_000_001),
            (&["-n", "8M", "-P", "4"], 8 << 20),
            (&["-k", "7", "-l", "1000"], 7000),
        ] {
            let (ours, theirs) = world.send(args);
            assert_eq!(bytes(&ours, "sum_sent"), expected, "{args:?}");
            assert_eq!(bytes(&ours, "sum_received"), bytes(&theirs, "sum_received"), "{args:?}");
        }
        let (ours, _) = world.send(&["-n", "8M", "-R"]);
        assert!(bytes(&ours, "sum_received") >= 8 << 20);
    });
}

#[test]
fn omitted_seconds_are_not_counted() {
    in_namespace("omitted_seconds_are_not_counted", |world| {
        let (ours, _) = world.send(&["-t", "1", "-O", "1"]);
        let intervals = ours["intervals"].as_array().unwrap();
        assert_eq!(intervals[0]["sum"]["omitted"], true);
        assert_eq!(intervals[1]["sum"]["omitted"], false);
        assert_eq!(intervals[1]["sum"]["start"], 0.0);
        let counted: u64 =
            intervals[1..].iter().map(|interval| interval["sum"]["bytes"].as_u64().unwrap()).sum();
        assert_eq!(counted, bytes(&ours, "sum_sent"));
    });
}

#[test]
fn iperf3_sends_one_stream_and_four() {
    in_namespace("iperf3_sends_one_stream_and_four", |world| {
        for args in [&["-t", "1"][..], &["-t", "1", "-P", "4"], &["-n", "8M", "-P", "2"]] {
            let (ours, theirs) = world.serve(args);
            assert_eq!(bytes(&ours, "sum_received"), bytes(&theirs, "sum_received"), "{args:?}");
            assert_eq!(bytes(&ours, "sum_sent"), bytes(&theirs, "sum_sent"), "{args:?}");
            assert!(bytes(&ours, "sum_received") > 1 << 20, "{args:?}");
        }
    });
}

#[test]
fn iperf3_receives_one_stream_and_four() {
    in_namespace("iperf3_receives_one_stream_and_four", |world| {
        for args in [&["-t", "1", "-R"][..], &["-t", "1", "-P", "4", "-R"]] {
            let (ours, theirs) = world.serve(args);
            assert_eq!(bytes(&ours, "sum_sent"), bytes(&theirs, "sum_sent"), "{args:?}");
            assert!(bytes(&ours, "sum_received") > 1 << 20, "{args:?}");
        }
    });
}

#[test]
fn iperf3_receives_the_bytes_that_it_asks_for() {
    in_namespace("iperf3_receives_the_bytes_that_it_asks_for", |world| {
        for (args, expected) in [
            (&["-R", "-n", "1M"][..], 1 << 20),
            (&["-R", "-n", "3M", "-P", "4"], 3 << 20),
            (&["-R", "-k", "1", "-l", "1K"], 1 << 10),
        ] {
            let (ours, theirs) = world.serve(args);
            assert_eq!(bytes(&ours, "sum_sent"), expected, "{args:?}");
            assert_eq!(bytes(&theirs, "sum_received"), expected, "{args:?}");
        }
        // The ends omit different bytes, perhaps all of them, and the test ends all the same.
        world.serve(&["-R", "-n", "1M", "-O", "1"]);
    });
}

#[test]
fn ipv6_each_way() {
    in_namespace("ipv6_each_way", |_| {
        let (ours, theirs) = IPV6.send(&["-n", "32M"]);
        assert_eq!(bytes(&ours, "sum_sent"), 32 << 20);
        assert_eq!(bytes(&ours, "sum_received"), bytes(&theirs, "sum_received"));
        let (ours, theirs) = IPV6.send(&["-t", "1", "-R"]);
        assert_eq!(bytes(&ours, "sum_sent"), bytes(&theirs, "sum_sent"));
        assert!(bytes(&ours, "sum_received") > 1 << 20, "{ours:#}");
        let (ours, theirs) = IPV6.serve(&["-n", "32M", "-P", "4"]);
        assert_eq!(bytes(&ours, "sum_received"), bytes(&theirs, "sum_received"));
        assert!(bytes(&ours, "sum_received") > 1 << 20, "{ours:#}");
    });
}

/// Keys of iperf3's document that neap's lacks, with the reason.
const KNOWN_ABSENT: &[&str] = &[];

#[test]
fn json_has_the_keys_of_iperf3() {
    in_namespace("json_has_the_keys_of_iperf3", |world| {
        for args in [
            &["-t", "1"][..],
            &["-t", "1", "-P", "2", "-R"],
            &["-n", "64M", "-P", "4"],
            &["-t", "1", "-O", "1"],
            &["-t", "1", "-M", "1400", "-w", "100K"],
        ] {
            let (client, server) = world.reference(args);
            let (ours, _) = world.send(args);
            let absent = missing(&client, &ours);
            assert!(
                absent.iter().all(|key| KNOWN_ABSENT.contains(&key.as_str())),
                "client {args:?}: {absent:?}"
            );
            let (ours, _) = world.serve(args);
            let absent = missing(&server, &ours);
            assert!(
                absent.iter().all(|key| KNOWN_ABSENT.contains(&key.as_str())),
                "server {args:?}: {absent:?}"
            );
            for key in [
                "protocol",
                "num_streams",
                "blksize",
                "omit",
                "duration",
                "bytes",
                "blocks",
                "reverse",
            ] {
                assert_eq!(
                    ours["start"]["test_start"][key], server["start"]["test_start"][key],
                    "{args:?} {key}"
                );
            }
        }
    });
}

#[test]
fn the_report_for_people_has_a_line_per_stream_and_sums() {
    in_namespace("the_report_for_people_has_a_line_per_stream_and_sums", |world| {
        let server = ChildGuard::start(&mut world.iperf3(&["-s", "-1"]));
        let output =
            world.client(&mut world.neap(&["-c", KERNEL, "-t", "1", "-P", "2", "--nstat"]));
        let counters = String::from_utf8(output.stderr).unwrap();
        let is_sockstat = |line: &&str| line.split_whitespace().next().unwrap().ends_with(':');
        let (sockstat, lines): (Vec<_>, Vec<_>) =
            counters.lines().take_while(|line| !line.starts_with("qdisc ")).partition(is_sockstat);
        let names: Vec<_> = sockstat.iter().map(|line| line.split(':').next().unwrap()).collect();
        assert_eq!(names, ["sockets", "TCP", "UDP"], "as in /proc/net/sockstat");
        for line in lines {
            let [_, number] = line.split_whitespace().collect::<Vec<_>>()[..] else {
                panic!("{line}: a name and a number\n{counters}");
            };
            assert!(number.parse::<u64>().is_ok(), "{line}");
        }
        for name in ["TcpActiveOpens ", "t0.0.frames ", "qdisc pfifo_fast"] {
            assert!(counters.lines().any(|line| line.starts_with(name)), "{name}: {counters}");
        }
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}");
        for (end, count) in [("sender", 3), ("receiver", 3)] {
            assert_eq!(text.lines().filter(|line| line.ends_with(end)).count(), count, "{text}");
        }
        assert!(
            text.contains("[ ID] Interval           Transfer     Bitrate         Retr  Cwnd"),
            "{text}"
        );
        assert!(text.lines().filter(|line| line.starts_with("[SUM]")).count() >= 3, "{text}");
        drop(server);
    });
}

#[test]
fn a_user_namespace_has_a_thread_of_the_kernel_for_bulk() {
    if !Command::new("unshare").args(["-rn", "true"]).status().is_ok_and(|status| status.success())
    {
        return skip("no right to make a user namespace");
    }
    let mut command = Command::new("unshare");
    command.args(["-rn", env!("CARGO_BIN_EXE_neap"), "perf", "-s", "--tun", "rootless"]);
    command.args(["--address", "10.9.0.2/24", "--host-address", "10.9.0.1/24"]);
    let mut server = ChildGuard::start(&mut command);
    server.shows("listening");
    let processes = std::fs::read_dir("/proc").expect("proc").flatten();
    let names = processes.map(|process| std::fs::read_to_string(process.path().join("comm")));
    assert!(names.flatten().any(|name| name.starts_with("napi/rootless")));
}

#[test]
fn a_server_serves_again_after_tests_it_refuses() {
    in_namespace("a_server_serves_again_after_tests_it_refuses", |world| {
        let server = ChildGuard::start(&mut world.neap(&["-s"]));
        for args in [&["-u"][..], &["--bidir"], &["-R", "-b", "1M"], &["-R", "-S", "0xb8"]] {
            let output =
                world.client(&mut world.iperf3(&[&["-c", STACK, "-t", "1"], args].concat()));
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(
                !output.status.success() && text.contains("not implemented"),
                "{args:?}: {text}"
            );
        }
        let output = world.client(&mut world.iperf3(&["-c", STACK, "-t", "1", "-C", "nonesuch"]));
        assert!(!output.status.success());
        let output = world.client(&mut world.iperf3(&["-c", STACK, "-n", "1M"]));
        assert!(output.status.success(), "{output:?}");
        server.interrupt();
        let output = server.output();
        assert!(output.status.success(), "{output:?}");
        let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(complaints.contains("UDP") && complaints.contains("--bidir"), "{complaints}");
    });
}

#[test]
fn a_server_without_clients_sleeps() {
    in_namespace("a_server_without_clients_sleeps", |world| {
        // The kernel's end of the device sends nothing by itself then.
        let quiet = "net.ipv6.conf.default.disable_ipv6=1";
        assert!(Command::new("sysctl").args(["-qw", quiet]).status().expect("sysctl").success());
        // Stacks that start look into the folder of all, and ask the control sockets who is there.
        let folder = Folder::new("perf-idle");
        let mut command = world.neap(&["-s"]);
        let mut server = ChildGuard::start(command.env("XDG_RUNTIME_DIR", folder.path()));
        server.shows("listening");
        let window = Duration::from_secs(2);
        let begin = Instant::now();
        while server.wake_ups_within(window) > 0 {
            assert!(begin.elapsed() < LIMIT, "a server with nothing to do is woken");
        }
        server.interrupt();
        let output = server.output();
        assert!(output.status.success(), "{output:?}");
    });
}

#[test]
fn a_server_tells_its_counters_when_it_ends() {
    in_namespace("a_server_tells_its_counters_when_it_ends", |world| {
        let server = ChildGuard::start(&mut world.neap(&["-s", "-1", "--nstat"]));
        let output = world.client(&mut world.iperf3(&["-c", STACK, "-n", "1M"]));
        assert!(output.status.success(), "{output:?}");
        let output = server.output();
        let counters = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && counters.contains("TcpInSegs"), "{counters}");
    });
}

#[test]
fn strangers_that_say_nothing_do_not_keep_a_server_from_its_end() {
    in_namespace("strangers_that_say_nothing_do_not_keep_a_server_from_its_end", |world| {
        let server = ChildGuard::start(&mut world.neap(&["-s"]));
        let mut control = world.connect();
        let cookie = [&[b'a'; 36][..], &[0]].concat();
        let parameters = br#"{"tcp":true,"parallel":1,"time":1,"len":1000}"#;
        let length = u32::try_from(parameters.len()).expect("a short text").to_be_bytes();
        control.write_all(&[&cookie, &length[..], parameters].concat()).expect("sent");
        let mut states = [0; 2];
        control.read_exact(&mut states).expect("a server that waits for a stream");
        assert_eq!(states, [9, 10]);
        // Each may take two seconds, and all together more than the patience of this test.
        let strangers: Vec<TcpStream> = (0..20).map(|_| world.connect()).collect();
        server.interrupt();
        let output = server.output();
        assert!(output.status.success(), "{output:?}");
        drop(strangers);
    });
}

#[test]
fn a_second_client_is_told_that_the_server_is_busy() {
    in_namespace("a_second_client_is_told_that_the_server_is_busy", |world| {
        let busy = |server: &mut Command, first: &str, second: &mut Command| {
            let server = ChildGuard::start(server);
            let (mut command, port) = (Command::new("sh"), world.port);
            let client = format!("iperf3 -c {first} -p {port} -t 60 -i 0.1 --forceflush");
            let script =
                format!("trap 'kill $!; exit 7' TERM; until {client} & wait $!; do :; done");
            command.args(["-c", &script]);
            let mut first = ChildGuard::start(&mut command);
            first.shows("bits/sec");
            let output = ChildGuard::start(second).output();
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success() && text.contains("busy"), "{text}");
            first.send("TERM");
            assert_eq!(first.output().status.code(), Some(7), "it went on");
            drop(server);
        };
        busy(&mut world.neap(&["-s"]), STACK, &mut world.iperf3(&["-c", STACK]));
        busy(&mut world.iperf3(&["-s"]), "127.0.0.1", &mut world.neap(&["-c", KERNEL]));
    });
}

#[test]
fn an_interrupted_client_tells_its_server() {
    in_namespace("an_interrupted_client_tells_its_server", |world| {
        let mut server = ChildGuard::start(&mut world.iperf3(&["-s", "-1", "--forceflush"]));
        server.shows("Server listening");
        let mut client = world.neap(&["-c", KERNEL, "-t", "20", "-i", "0.1"]);
        let mut client = ChildGuard::start(&mut client);
        client.shows("bits/sec");
        client.interrupt();
        let output = client.output();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(!output.status.success() && text.contains("sender"), "{text}");
        let output = server.output();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains("terminated"), "{text}");
    });
}

#[test]
fn a_client_whose_server_does_not_answer_ends_at_the_first_signal() {
    in_namespace("a_client_whose_server_does_not_answer_ends_at_the_first_signal", |world| {
        let mut client = ChildGuard::start(&mut world.neap(&["-c", "10.9.0.99"]));
        client.shows("Connecting to host");
        client.interrupt();
        assert_eq!(client.output().status.code(), Some(130));
    });
}

#[test]
fn a_device_that_is_deleted_ends_client_and_server_with_a_message() {
    in_namespace("a_device_that_is_deleted_ends_client_and_server_with_a_message", |world| {
        let delete = || {
            let device = world.way.iter().position(|word| *word == "--tun").expect("a TUN") + 1;
            let output = Command::new("ip").args(["link", "del", world.way[device]]).output();
            assert!(output.expect("ip runs").status.success());
        };
        let is_told = |program: ChildGuard| {
            let output = program.output();
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success() && text.contains("network is down"), "{text}");
        };
        let mut server = ChildGuard::start(&mut world.neap(&["-s"]));
        server.shows("Server listening");
        delete();
        is_told(server);

        let mut server = ChildGuard::start(&mut world.iperf3(&["-s", "-1", "--forceflush"]));
        server.shows("Server listening");
        let mut client = world.neap(&["-c", KERNEL, "-t", "20", "-i", "0.1"]);
        let mut client = ChildGuard::start(&mut client);
        client.shows("bits/sec");
        delete();
        is_told(client);
    });
}

#[test]
fn a_server_survives_clients_that_do_not_keep_the_protocol() {
    in_namespace("a_server_survives_clients_that_do_not_keep_the_protocol", |world| {
        let server = ChildGuard::start(&mut world.neap(&["-s"]));
        let cookie = [&[b'a'; 36][..], &[0]].concat();
        let cases: [(&[u8], &str); 6] = [
            (b"", "closed the control connection early"),
            (b"GET / HTTP/1.0\r\n\r\n", "closed the control connection early"),
            (&[0xff; 80], "4294967295 bytes of JSON"),
            (&[&cookie[..], &[0, 0, 0, 2], b"{]"].concat(), "JSON is not what"),
            (&[&cookie[..], &[0, 0, 0, 2], b"{}"].concat(), "only TCP"),
            (&[&cookie[..], &[0, 0, 0, 12], br#"{"tcp":true}"#, &[77]].concat(), "77"),
        ];
        for (sent, _) in cases {
            let mut socket = world.connect();
            socket.write_all(sent).unwrap();
            let _ = socket.shutdown(std::net::Shutdown::Write);
            read_all(&mut socket);
        }
        server.interrupt();
        let output = server.output();
        let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{output:?}");
        let mut lines = complaints.lines();
        for (sent, words) in cases {
            let line = lines.next().unwrap_or_default();
            assert!(
                line.contains(words),
                "{:?}: {line}\n{complaints}",
                String::from_utf8_lossy(sent)
            );
        }
    });
}

#[test]
fn a_client_survives_servers_that_do_not_keep_the_protocol() {
    in_namespace("a_client_survives_servers_that_do_not_keep_the_protocol", |world| {
        let cases: [(&[u8], &str); 6] = [
            (b"", "closed the control connection early"),
            (b"HTTP/1.0 400 Bad Request\r\n", "byte 72 is no state"),
            (&[0xff], "busy with another test"),
            (&[11], "the server has ended the test"),
            (&[9, 0xfe, 0, 0, 0, 130, 0, 0, 0, 0], "socket buffers"),
            (&[9, 16], "IperfDone"),
        ];
        for (answer, words) in cases {
            // The kernel has its address only as long as neap runs.
            let listener = TcpListener::bind(("0.0.0.0", world.port)).unwrap();
            let client = ChildGuard::start(&mut world.neap(&["-c", KERNEL]));
            let (mut socket, _) = listener.accept().unwrap();
            let mut cookie = [0; 37];
            socket.read_exact(&mut cookie).unwrap();
            socket.write_all(answer).unwrap();
            socket.shutdown(std::net::Shutdown::Write).unwrap();
            let output = client.output();
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success() && text.contains(words), "{answer:?}: {text}");
            drop(socket);
        }
    });
}

#[test]
fn errors_of_the_command_line_say_what_to_do() {
    in_namespace("errors_of_the_command_line_say_what_to_do", |world| {
        for (args, hint) in [
            (&["-c", KERNEL][..], "is an iperf3 server running"),
            (&["-c", KERNEL, "--bidir"], "one test each way"),
            (&["-c", KERNEL, "-P", "1000"], "1..=128"),
            (&["-c", KERNEL, "-t", "1", "-n", "1"], "cannot be used with"),
            (&["-s", "-R"], "cannot be used with"),
            (&["-c", KERNEL, "-l", "2M"], "at most"),
            (&["-c", KERNEL, "-n", "0"], "a number above 0"),
            (&["-c", KERNEL, "-i", "100"], "0.1 to 60"),
            (&["-c", KERNEL, "--qdisc", "htb"], "there are pfifo_fast, fq"),
            (&["-c", KERNEL, "--qdisc", "fq horizon soon"], "a time, such as 5ms"),
            (&["-c", "10.200.0.1"], "is the address right, and is there a way to it?"),
            (&["-c", KERNEL, "--sysctl", "net.ipv4.tcp_congestion_control=vegas"], "cubic, bbr"),
        ] {
            let output = ChildGuard::start(&mut world.neap(args)).output();
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success() && text.contains(hint), "{args:?}: {text}");
        }
    });
}

/// What a program that fails says, without the hint to look for a server.
fn complaint(command: &mut Command) -> String {
    let output = ChildGuard::start(command).output();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && !text.contains("is an iperf3 server running"), "{text}");
    text
}

#[test]
fn hints_fit_the_cause() {
    in_namespace("hints_fit_the_cause", |world| {
        let mut server = ChildGuard::start(&mut world.iperf3(&["-s", "-1", "--forceflush"]));
        server.shows("Server listening");
        let text = complaint(&mut world.neap(&["-c", KERNEL, "-C", "vegas"]));
        assert!(text.contains("unknown congestion control \"vegas\": use one of"), "{text}");
        assert!(!text.contains("cannot connect"), "{text}");
        drop(server);

        let mut server = ChildGuard::start(&mut world.neap(&["-s"]));
        server.shows("Server listening");
        let text = complaint(&mut world.neap(&["-c", KERNEL]));
        let hint = "t0 is in use, by this process or another: choose another name";
        assert!(text.contains(hint), "{text}");
        server.interrupt();
        assert!(server.output().status.success());

        // Addresses that do not fit are named before the device is opened.
        let mut command = Command::new(env!("CARGO_BIN_EXE_neap"));
        command.args(["perf", "-c", KERNEL, "--tun", "t0", "--address", "10.9.0.1/24"]);
        let text = complaint(command.args(["--host-address", "10.9.0.1/24"]));
        assert!(text.contains("address 10.9.0.1/24: it is the host address too"), "{text}");
    });
}
