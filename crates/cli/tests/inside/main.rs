//! `neap ss`, `neap nstat`, metrics and the log, with gateways that relay and the kernel's `ss` as
//! the oracle of columns.
//!
//! The program in the sandbox is a function of this test binary, which runs itself there.

#[path = "../common/namespace.rs"]
mod namespace;
mod package;

use namespace::{in_namespace, run};
use serde_json::Value;
use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Address of the server outside.
const SERVER: &str = "192.0.2.1";
/// What the sandboxed program connects to.
const TARGET: &str = "NEAP_TEST_TARGET";
/// Bytes that the sandboxed program sends.
const BYTES: usize = 100_000;
/// Says that the sandboxed program sends without end.
const ENDLESS: &str = "NEAP_TEST_ENDLESS";
/// Where the sandboxed program sends a datagram.
const DATAGRAM: &str = "NEAP_TEST_DATAGRAM";
/// Whom the sandboxed program pings.
const PING: &str = "NEAP_TEST_PING";

/// Far above what anything takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// The folder of the control sockets of a test, and what is gone with it.
struct Ground {
    folder: PathBuf,
}

impl Drop for Ground {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A gateway with a program in its sandbox.
struct Gateway {
    child: Child,
    /// A line on it ends the program.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ground {
    fn new() -> Self {
        run("ip link set lo up");
        run("ip link add outside type veth peer name far");
        run(&format!("ip address add {SERVER}/24 dev outside"));
        run("ip link set far up");
        run("ip link set outside up");
        let folder = env::temp_dir().join(format!("neap-inside-{}", std::process::id()));
        fs::create_dir(&folder).expect("a folder");
        Self { folder }
    }

    fn neap(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_neap"));
        command.args(arguments).env("XDG_RUNTIME_DIR", &self.folder).stdin(Stdio::null());
        command
    }

    /// Status, standard output and standard error of a command.
    fn finish(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let output = self.neap(arguments).output().expect("neap runs");
        let [out, err] =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        (output.status.code(), out, err)
    }

    /// What a command prints, which has to succeed.
    fn print(&self, arguments: &[&str]) -> String {
        let (status, out, err) = self.finish(arguments);
        assert_eq!(status, Some(0), "{arguments:?}: {out}{err}");
        out
    }

    /// A gateway whose program is connected to the server, both with bytes that were read.
    fn gateway(&self, options: &[&str], server: &TcpListener) -> (Gateway, TcpStream) {
        self.gateway_with(options, server, &[])
    }

    /// The same with variables that say what else the program does.
    fn gateway_with(
        &self,
        options: &[&str],
        server: &TcpListener,
        variables: &[(&str, &str)],
    ) -> (Gateway, TcpStream) {
        let own = env::current_exe().expect("the test knows its binary");
        let own = own.to_str().expect("a name");
        let inside = ["--", own, "--exact", "inside", "--nocapture"];
        let mut command = self.neap(&[&["gateway", "run"], options, &inside].concat());
        let target = server.local_addr().expect("an address").to_string();
        command
            .env(TARGET, target)
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::piped()).spawn().expect("neap runs");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let input = child.stdin.take();
        let mut gateway = Gateway { child, input, output };
        let (mut stream, _) = server.accept().expect("the gateway connects");
        stream.read_exact(&mut vec![0; BYTES]).expect("received");
        gateway.wait_for("connected");
        (gateway, stream)
    }
}

impl Gateway {
    fn wait_for(&mut self, word: &str) {
        let mut line = String::new();
        while !line.contains(word) {
            line.clear();
            assert!(self.output.read_line(&mut line).expect("a line") > 0, "no {word}");
        }
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// Lets the program end, and returns the log of the gateway.
    fn end(mut self) -> String {
        drop(self.input.take());
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).expect("its output");
        assert!(self.child.wait().expect("it ends").success(), "{rest}");
        namespace::read_all(self.child.stderr.take().expect("a pipe"))
    }
}

/// What this binary does in a sandbox.
#[test]
fn inside() {
    let Ok(target) = env::var(TARGET) else { return };
    let mut stream = TcpStream::connect(target).expect("the server accepts");
    stream.write_all(&[7; BYTES]).expect("sent");
    if let Ok(to) = env::var(DATAGRAM) {
        let socket = UdpSocket::bind("0.0.0.0:4000").expect("a port");
        socket.send_to(b"hello", to).expect("sent");
    }
    if let Ok(to) = env::var(PING) {
        run(&format!("ping -n -c 1 -W 30 {to}"));
    }
    println!("connected");
    if env::var_os(ENDLESS).is_some() {
        // It ends with the process.
        std::thread::spawn(move || while stream.write(&[7; BYTES]).is_ok() {});
    }
    // Until the test has seen enough.
    std::io::stdin().read_to_end(&mut Vec::new()).expect("the standard input");
}

fn server() -> TcpListener {
    TcpListener::bind((SERVER, 0)).expect("a port")
}

#[test]
fn the_flow_of_a_gateway_is_shown_with_its_far_address() {
    in_namespace(|| {
        let (ground, server) = (Ground::new(), server());
        let (gateway, _stream) = ground.gateway(&[], &server);
        let target = server.local_addr().expect("an address").to_string();
        let listing = ground.print(&["ss", "-tin"]);
        let mut lines = listing.lines().skip(1);
        let flow = lines.next().expect("the flow");
        assert!(flow.starts_with("ESTAB") && flow.contains(&target), "{listing}");
        assert!(flow.contains("10.0.2.100:"), "{listing}");
        let figures = lines.next().expect("its figures");
        assert!(figures.contains(&format!("far:{target}")), "{listing}");
        assert!(figures.contains(&format!("bytes_received:{BYTES}")), "{listing}");
        for place in ["blocked:", "write_queue:", "qdisc:", "device:", "wire:"] {
            assert!(figures.contains(place), "{listing}");
        }
        let port = format!(":{}", server.local_addr().expect("an address").port());
        let count =
            |filter: &[&str]| ground.print(&[&["ss", "-tnH"], filter].concat()).lines().count();
        assert_eq!(count(&["sport", "=", &port, "and", "dst", "10.0.0.0/8"]), 1);
        assert_eq!(count(&["state", "established", "( sport", "ne", &port, ")"]), 0);
        assert_eq!(count(&["state", "time-wait"]), 0);
        assert_eq!(count(&["-6"]), 0);
        let json: Value = serde_json::from_str(&ground.print(&["ss", "-tj"])).expect("JSON");
        assert_eq!(json[0]["far"], target.as_str());
        assert_eq!(json[0]["stack"], "gateway");
        assert_eq!(json[0]["tcp"]["bytes_received"], BYTES);
        gateway.end();
        let left = ground.folder.join("neap");
        assert_eq!(fs::read_dir(left).expect("a folder").count(), 0);
    });
}

/// What the one connection of a stack reports of its relay, once `is_it` is true of that.
fn relay_until(ground: &Ground, is_it: impl Fn(&Value) -> bool) -> Value {
    let start = Instant::now();
    loop {
        let listing = ground.print(&["ss", "-tj"]);
        let mut sockets: Value = serde_json::from_str(&listing).expect("JSON");
        let relay = sockets[0]["relay"].take();
        if is_it(&relay) {
            return relay;
        }
        assert!(start.elapsed() < PATIENCE, "{listing}");
    }
}

fn waits_for(relay: &Value, word: &str) -> bool {
    relay["waits_for"].as_array().is_some_and(|words| words.contains(&word.into()))
}

#[test]
fn an_upload_that_the_server_does_not_read_waits_for_the_far_side() {
    in_namespace(|| {
        let (ground, server) = (Ground::new(), server());
        let (gateway, stream) = ground.gateway_with(&[], &server, &[(ENDLESS, "1")]);
        let bytes = |relay: &Value, field: &str| relay[field].as_u64().expect("a number");
        let relay = relay_until(&ground, |relay| {
            waits_for(relay, "far")
                && bytes(relay, "held_for_far") > 0
                && bytes(relay, "not_sent") > 0
        });
        assert_eq!(relay["held_for_peer"], 0);
        assert!(!waits_for(&relay, "peer") && !waits_for(&relay, "rate"), "{relay}");
        let line = ground.print(&["ss", "-tinO"]);
        for word in [" held_for_far:", " far_write_queue:", " far_wire:", " waits_for:far"] {
            assert!(line.contains(word), "{word}: {line}");
        }
        drop(stream);
        gateway.end();
    });
}

#[test]
fn an_upload_that_is_limited_waits_for_the_rate() {
    in_namespace(|| {
        let (ground, server) = (Ground::new(), server());
        let options = ["--rate", "8mbit"];
        let (gateway, stream) = ground.gateway_with(&options, &server, &[(ENDLESS, "1")]);
        let mut from = stream.try_clone().expect("a descriptor");
        let reader = std::thread::spawn(move || std::io::copy(&mut from, &mut std::io::sink()));
        relay_until(&ground, |relay| waits_for(relay, "rate"));
        let line = ground.print(&["ss", "-tinO"]);
        assert!(line.contains(" far_write_queue:"), "{line}");
        // What is under way is for nobody.
        stream.shutdown(Shutdown::Both).expect("it is open");
        let _ = reader.join().expect("no panic");
        drop(stream);
        gateway.end();
    });
}

#[test]
fn datagrams_and_pings_are_listed_with_both_ends() {
    in_namespace(|| {
        let (ground, server) = (Ground::new(), server());
        fs::write("/proc/sys/net/ipv4/ping_group_range", "0 0").expect("a setting");
        let datagrams = UdpSocket::bind((SERVER, 0)).expect("a port");
        let to = datagrams.local_addr().expect("an address").to_string();
        let variables = [(DATAGRAM, to.as_str()), (PING, SERVER)];
        let (gateway, stream) = ground.gateway_with(&[], &server, &variables);
        let (_, outside) = datagrams.recv_from(&mut [0; 16]).expect("it has come");
        let line = ground.print(&["ss", "-uniOH"]);
        let ends = format!("0.0.0.0:{} 10.0.2.100:4000", outside.port());
        let words: Vec<_> = line.split_whitespace().collect();
        assert!(line.lines().count() == 1 && words.join(" ").contains(&ends), "{line}");
        assert!(
            line.contains(" lastused:") && line.contains(&format!(" peers:{SERVER}")),
            "{line}"
        );
        let ping = ground.print(&["ss", "-wniOH"]);
        assert!(ping.lines().count() == 1 && ping.contains(" 10.0.2.100:"), "{ping}");
        assert!(ping.contains(&format!(" peers:{SERVER}")), "{ping}");
        // Each kind by itself, and all of them with a column that tells them apart.
        assert_eq!(ground.print(&["ss", "-tnH"]).lines().count(), 1);
        let all = ground.print(&["ss", "-nH"]);
        let mut kinds: Vec<_> = all.lines().filter_map(|line| line.split(' ').next()).collect();
        kinds.sort_unstable();
        assert_eq!(kinds, ["icmp", "tcp", "udp"], "{all}");
        let from_guest = ["ss", "-unH", "dst", "10.0.2.100", "and", "dport", "=", ":4000"];
        assert_eq!(ground.print(&from_guest).lines().count(), 1);
        drop(stream);
        gateway.end();
    });
}

#[test]
fn several_stacks_are_told_apart() {
    in_namespace(|| {
        let (ground, server) = (Ground::new(), server());
        let (status, _, why) = ground.finish(&["ss"]);
        assert!(status == Some(1) && why.contains("no stack of this user is running"), "{why}");
        let (first, _one) = ground.gateway(&[], &server);
        let (second, _two) = ground.gateway(&[], &server);
        let listing = ground.print(&["ss", "-tn"]);
        for gateway in [&first, &second] {
            let title = format!("# {} gateway (neap) 10.0.2.2/24", gateway.pid());
            assert!(listing.contains(&title), "{listing}");
        }
        let listing = ground.print(&["ss", "-tnp", "--pid", &second.pid()]);
        assert_eq!(listing.lines().count(), 2, "{listing}");
        let process = format!("users:((\"neap\",pid={}))", second.pid());
        assert!(listing.contains(&process), "{listing}");
        assert_eq!(ground.print(&["ss", "-tnH", "--name", "gateway"]).lines().count(), 4);
        let (status, _, why) = ground.finish(&["ss", "--name", "perf"]);
        assert!(status == Some(1) && why.contains(&first.pid()), "{why}");
        // A gateway that is killed leaves its file alone, and nobody stumbles over it.
        let folder = ground.folder.join("neap");
        let files = || fs::read_dir(&folder).expect("a folder").count();
        let killed = first.pid();
        drop(first);
        assert_eq!(files(), 2);
        let listing = ground.print(&["ss", "-tn"]);
        assert!(!listing.contains(&killed) && listing.lines().count() == 2, "{listing}");
        let (third, _three) = ground.gateway(&[], &server);
        assert_eq!(files(), 2);
        second.end();
        third.end();
    });
}

#[test]
fn a_stack_that_does_not_answer_is_named_and_the_others_are_shown() {
    in_namespace(|| {
        let (ground, server) = (Ground::new(), server());
        let (first, _one) = ground.gateway(&[], &server);
        let (second, _two) = ground.gateway(&[], &server);
        run(&format!("kill -STOP {}", first.pid()));
        for arguments in [["ss", "-tnH"], ["nstat", "-z"]] {
            let (status, out, why) = ground.finish(&arguments);
            assert_eq!(status, Some(1), "{out}{why}");
            assert!(!out.is_empty() && why.contains(&format!("{}-gateway.sock", first.pid())));
        }
        run(&format!("kill -CONT {}", first.pid()));
        first.end();
        second.end();
    });
}

#[test]
fn a_stack_in_a_pid_namespace_answers_who_is_outside_of_it() {
    in_namespace(|| {
        let (ground, server) = (Ground::new(), server());
        let nested = ["--", env!("CARGO_BIN_EXE_neap"), "gateway", "run"];
        let (outer, _stream) = ground.gateway(&nested, &server);
        let flows = ground.print(&["ss", "-tnH", "--name", "gateway"]);
        let target = server.local_addr().expect("an address").to_string();
        assert_eq!(flows.matches(&target).count(), 2, "{flows}");
        assert_eq!(flows.matches("# ").count(), 2, "{flows}");
        let counters = ground.print(&["nstat", "-as"]);
        assert_eq!(counters.matches("GatewayOpened ").count(), 2, "{counters}");
        outer.end();
    });
}

#[test]
fn counters_are_printed_as_by_nstat() {
    in_namespace(|| {
        let (ground, server) = (Ground::new(), server());
        let (gateway, mut stream) = ground.gateway(&[], &server);
        let value = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.split(' ').next() == Some(name))?;
            let mut words = line.split_whitespace().skip(1);
            let value: u64 = words.next()?.parse().ok()?;
            assert_eq!(words.next(), Some("0.0"), "{line}");
            Some(value)
        };
        let first = ground.print(&["nstat"]);
        assert!(first.starts_with(&format!("#{} gateway\n", gateway.pid())), "{first}");
        assert_eq!(value(&first, "GatewayOpened"), Some(1));
        assert_eq!(value(&first, "TcpPassiveOpens"), Some(1));
        assert_eq!(value(&first, "TcpAttemptFails"), None, "zeros are left out");
        // Only what has risen since.
        stream.write_all(b"more").expect("sent");
        let second = ground.print(&["nstat", "-s"]);
        assert_eq!(value(&second, "GatewayOpened"), None);
        assert_eq!(value(&ground.print(&["nstat", "-z"]), "GatewayOpened"), Some(0));
        let all = ground.print(&["nstat", "-a"]);
        assert_eq!(value(&all, "GatewayOpened"), Some(1));
        assert_eq!(value(&all, "GatewayFlows"), Some(1));
        let of_guest = |name: &str| value(&all, &format!("{name}.10.0.2.100"));
        assert_eq!(of_guest("GatewayGuestConnections"), Some(1));
        assert_eq!(of_guest("GatewayGuestFlows"), Some(1));
        assert_eq!(of_guest("GatewayGuestBytesOut"), Some(BYTES as u64));
        let json: Value = serde_json::from_str(&ground.print(&["nstat", "-aj"])).expect("JSON");
        assert_eq!(json[format!("{}/gateway", gateway.pid())]["GatewayOpened"], 1);
        // Absolute values are those that the next call compares with.
        let history = ground.folder.join(format!("neap/{}-gateway.nstat", gateway.pid()));
        fs::remove_file(&history).expect("a history");
        assert_eq!(value(&ground.print(&["nstat", "-a"]), "GatewayOpened"), Some(1));
        assert_eq!(value(&ground.print(&["nstat"]), "GatewayOpened"), None);
        // With patterns nothing else is printed, and nothing else counts as seen.
        fs::remove_file(&history).expect("a history");
        let tcp = ground.print(&["nstat", "Tcp*"]);
        assert!(tcp.lines().skip(1).all(|line| line.starts_with("Tcp")), "{tcp}");
        assert_eq!(value(&tcp, "TcpPassiveOpens"), Some(1));
        let some = ground.print(&["nstat", "-a", "tcpp*", "GatewayOpen[a-e]d"]);
        assert_eq!(value(&some, "TcpPassiveOpens"), Some(1));
        assert_eq!(value(&some, "GatewayOpened"), Some(1));
        let others = ["TcpPassiveOpens", "TcpPending", "GatewayOpened"];
        let is_one = |line: &str| others.iter().any(|name| line.starts_with(name));
        assert!(some.lines().skip(1).all(is_one), "{some}");
        let rest = ground.print(&["nstat"]);
        assert_eq!(value(&rest, "TcpPassiveOpens").or(value(&rest, "GatewayOpened")), None);
        assert_eq!(value(&rest, "GatewayGuestConnections.10.0.2.100"), Some(1));
        // With an interval it ends with the last stack.
        let watching = ground.neap(&["nstat", "1"]).stdout(Stdio::null()).spawn();
        let mut watching = watching.expect("neap runs");
        gateway.end();
        watching.wait().expect("it ends");
    });
}

#[test]
fn a_stack_that_is_watched_may_be_silent_for_a_while() {
    in_namespace(|| {
        let (ground, server) = (Ground::new(), server());
        let (gateway, mut stream) = ground.gateway(&[], &server);
        let mut command = ground.neap(&["nstat", "1", "-a"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut watching = command.spawn().expect("neap runs");
        let mut out = BufReader::new(watching.stdout.take().expect("a pipe"));
        let mut errors = BufReader::new(watching.stderr.take().expect("a pipe"));
        let wait = |from: &mut dyn BufRead, words: &str| {
            let mut line = String::new();
            while !line.contains(words) {
                line.clear();
                assert!(from.read_line(&mut line).expect("a line") > 0, "no {words}");
            }
        };
        wait(&mut out, "GatewayOpened");
        run(&format!("kill -STOP {}", gateway.pid()));
        wait(&mut errors, &format!("{}-gateway.sock", gateway.pid()));
        run(&format!("kill -CONT {}", gateway.pid()));
        // No report of before has this.
        stream.write_all(b"more").expect("sent");
        wait(&mut out, "GatewayGuestBytesIn");
        // A gauge has no rate.
        wait(&mut out, "TcpConnections");
        gateway.end();
        std::io::copy(&mut out, &mut std::io::sink()).expect("the rest");
        assert!(watching.wait().expect("it ends").success());
    });
}

/// The words of a line with their numbers left out: what both programs print alike.
fn names(line: &str) -> Vec<String> {
    let words = line.split_whitespace().map(|word| word.split(':').next().unwrap_or(word));
    let is_name = |word: &&str| word.starts_with(|c: char| c.is_ascii_lowercase());
    words.filter(is_name).map(str::to_owned).collect()
}

/// The order in `own` of the words that are in `theirs`, and the other way round.
fn common(own: &[String], theirs: &[String]) -> (Vec<String>, Vec<String>) {
    let of = |one: &[String], other: &[String]| {
        one.iter().filter(|word| other.contains(word)).cloned().collect::<Vec<_>>()
    };
    (of(own, theirs), of(theirs, own))
}

#[test]
fn columns_are_those_of_iproute2() {
    in_namespace(|| {
        if Command::new("ss").arg("-V").output().is_err() {
            // The kernel's side cannot be asked.
            writeln!(std::io::stderr(), "SKIP: no ss (iproute2)").expect("stderr");
            return;
        }
        let (ground, server) = (Ground::new(), server());
        let (gateway, stream) = ground.gateway(&[], &server);
        let kernel = |options: &str| run(&format!("ss {options}"));
        let words = |line: &str| -> Vec<String> {
            line.replace("PortProcess", "Port Process")
                .split_whitespace()
                .map(str::to_owned)
                .collect()
        };
        for options in ["-tan", "-tuan", "-tn", "-an", "-tane"] {
            let (own, theirs) = (ground.print(&["ss", options]), kernel(options));
            let [own, theirs] = [&own, &theirs].map(|text| text.lines().next().expect("a header"));
            assert_eq!(words(own), words(theirs), "{options}");
        }
        let own = ground.print(&["ss", "-tn", "state", "established"]);
        let theirs = kernel("-tn state established");
        let [own, theirs] = [&own, &theirs].map(|text| text.lines().next().expect("a header"));
        assert_eq!(words(own), words(theirs));
        // The gateway's socket of the kernel has the same kind of traffic as its guest's flow.
        let port = stream.peer_addr().expect("an address").port();
        let theirs = kernel(&format!("-tinmoO sport = :{port}"));
        let theirs = theirs.lines().nth(1).expect("the socket of the kernel");
        let own = ground.print(&["ss", "-tinmoH"]);
        let own: Vec<&str> = own.lines().collect();
        assert!(own[1].starts_with("\t skmem:(r"), "{own:?}");
        let (ours, kernels) = common(&names(own[1]), &names(theirs));
        assert_eq!(ours, kernels, "{own:?}\n{theirs}");
        for name in ["skmem", "ts", "sack", "wscale", "rto", "mss", "cwnd", "segs_in", "rcv_space"]
        {
            assert!(ours.contains(&name.to_owned()), "{name}: {own:?}\n{theirs}");
        }
        // Fields of one line: as many, of the same kinds.
        let row = |line: &str| line.split_whitespace().take(5).count();
        assert_eq!(row(own[0]), row(theirs), "{own:?}\n{theirs}");
        gateway.end();
    });
}

#[test]
fn filters_choose_as_those_of_iproute2() {
    in_namespace(|| {
        if Command::new("ss").arg("-V").output().is_err() {
            namespace::skip("no ss (iproute2)");
            return;
        }
        let (ground, server) = (Ground::new(), server());
        let (gateway, _stream) = ground.gateway(&[], &server);
        // The server's end is here a socket of the kernel, and there one of the gateway.
        let local = server.local_addr().expect("an address");
        let shows = |listing: &str| {
            let at = |line: &str| line.split_whitespace().nth(3) == Some(&local.to_string());
            listing.lines().any(at)
        };
        let (is, no) = (format!("sport = :{}", local.port()), "sport = :1");
        for (filter, wanted) in [
            (format!("{is} or {no} and {no}"), false),
            (format!("{is} or {no} {no}"), false),
            (format!("{is} | {is} & {no}"), false),
            (format!("{no} and {no} or {is}"), true),
            (format!("{is} {no} or {is}"), true),
            (format!("{is} or ( {no} and {no} )"), true),
            (format!("not {no} and {is}"), true),
            ("src 192.0.2/24".to_owned(), true),
            ("src 192/8".to_owned(), true),
            ("src 192.0.2".to_owned(), false),
            ("src 0300.0.0x2.1".to_owned(), true),
            ("src 192.0.2.0/255.255.255.0".to_owned(), true),
            ("src any".to_owned(), true),
            ("src default".to_owned(), true),
            (format!("src all:{}", local.port()), true),
            ("src *:1".to_owned(), false),
            ("src localhost".to_owned(), false),
            ("not src localhost".to_owned(), true),
            ("src inet:192/8".to_owned(), true),
            ("src inet6:any".to_owned(), false),
            (format!("{is} or src inet6:any"), false),
        ] {
            let kernel = run(&format!("ss -tnH state all {filter}"));
            assert_eq!(shows(&kernel), wanted, "ss: {filter}\n{kernel}");
            let own = ground.print(&["ss", "-tnH", "state", "all", &filter]);
            assert_eq!(shows(&own), wanted, "{filter}\n{own}");
        }
        // No socket of the kernel is bound to a device.
        for (filter, wanted) in [("dev tap0", true), ("dev != tap0", false), ("dev tap1", false)] {
            let own = ground.print(&["ss", "-tnH", "state", "all", filter]);
            assert_eq!(shows(&own), wanted, "{filter}\n{own}");
        }
        let line = ground.print(&["ss", "-tinmOH"]);
        assert!(line.lines().count() == 1 && line.contains("skmem:(r"), "{line}");
        assert!(line.contains(" rto:") && line.contains(" far:"), "{line}");
        gateway.end();
    });
}

#[test]
fn the_log_tells_of_flows_and_totals_or_is_quiet() {
    in_namespace(|| {
        let (ground, server) = (Ground::new(), server());
        let (gateway, _one) = ground.gateway(&["--log", "debug"], &server);
        let log = gateway.end();
        for event in ["gateway started", "flow opened", "gateway ended", "opened=1"] {
            assert!(log.contains(event), "{event}: {log}");
        }
        assert!(
            log.contains(&format!("far={}", server.local_addr().expect("an address"))),
            "{log}"
        );
        let (gateway, _two) = ground.gateway(&["--quiet"], &server);
        assert_eq!(gateway.end(), "");
        let (status, _, why) = ground.finish(&["gateway", "run", "--log", "loud", "--", "true"]);
        assert!(status == Some(2) && why.contains("debug"), "{why}");
    });
}

#[test]
fn metrics_of_a_gateway_are_served_at_an_address() {
    in_namespace(|| {
        let (ground, server) = (Ground::new(), server());
        let address = "127.0.0.1:9100";
        let (gateway, _stream) = ground.gateway(&["--metrics", address], &server);
        let mut scraper = TcpStream::connect(address).expect("it is served");
        scraper.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").expect("sent");
        let text = namespace::read_all(&mut scraper);
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
        for line in [
            "neap_GatewayOpened_total 1",
            "neap_GatewayFlows 1",
            "neap_GatewayMappings 0",
            "neap_GatewayGuestFlows{guest=\"10.0.2.100\"} 1",
            "neap_GatewayGuestBytesOut_total{guest=\"10.0.2.100\"} 100000",
        ] {
            assert!(text.lines().any(|own| own == line), "{line}: {text}");
        }
        let nowhere = format!("unix:{}/nowhere/metrics", ground.folder.display());
        let file = ground.folder.join("file");
        fs::write(&file, "kept").expect("written");
        let file = format!("unix:{}", file.display());
        for (address, hint) in [
            (address, "is taken: choose another port, or end who has it (ss -ltnp)"),
            ("203.0.113.9:9100", "does not have the address"),
            (&nowhere, "there is no folder"),
            (&file, "choose another path"),
            ("unix:/sys/metrics", "may not put a socket into /sys"),
        ] {
            let (status, _, why) =
                ground.finish(&["gateway", "run", "--metrics", address, "--", "true"]);
            let named = why.contains(&format!("--metrics {address}: "));
            assert!(status == Some(1) && named && why.contains(hint), "{address}: {why}");
        }
        let (status, _, why) = ground.finish(&["gateway", "run", "--metrics", "x", "--", "true"]);
        assert!(status == Some(2) && why.contains("unix:PATH"), "{why}");
        gateway.end();
    });
}

#[test]
fn bad_filters_end_with_status_2_and_say_what_is_expected() {
    let neap = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_neap")).args(arguments).output();
        let output = output.expect("neap runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for (arguments, hint) in [
        (&["ss", "state", "open"] as &[&str], "established"),
        (&["ss", "dport", "=", ":nope"], "such as :80"),
        (&["ss", "fwmark", "=", "0x1"], "no mark"),
        (&["ss", "--pid", "me"], "--pid"),
        (&["nstat", "0"], "at least 1"),
        (&["nstat", "Tcp*", "1", "2"], "one interval"),
    ] {
        let (status, why) = neap(arguments);
        assert!(status == Some(2) && why.contains(hint), "{arguments:?}: {status:?} {why}");
    }
}

/// What bash offers at the end of a line, with the completions of a program.
fn completed(script: &str, program: &str, line: &str) -> String {
    let words: Vec<_> = line.split(' ').map(|word| format!("'{word}'")).collect();
    let (words, last) = (words.join(" "), words.len() - 1);
    let ask = format!(
        "{script}\nCOMP_WORDS=({words}); COMP_CWORD={last}\n\
         _{program} {program} \"${{COMP_WORDS[{last}]}}\" \"${{COMP_WORDS[{last}-1]}}\"\n\
         printf '%s\\n' \"${{COMPREPLY[@]}}\""
    );
    let output = Command::new("bash").args(["--norc", "-c", &ask]).output().expect("bash runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn manual_pages_and_completions_are_made_from_the_options() {
    let folder = env::temp_dir().join(format!("neap-man-{}", std::process::id()));
    let neap = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_neap")).args(arguments).output();
        let output = output.expect("neap runs");
        assert!(output.status.success(), "{arguments:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let page = neap(&["man"]);
    assert!(page.contains(".TH neap 1") && page.contains("neap\\-ss(1)"), "{page}");
    let bash = neap(&["completions", "bash"]);
    for (line, offers, hides) in [
        ("neap ", "nstat", ["pasta-inside", "completions"]),
        ("neap gateway ", "run", ["inside", "join"]),
        ("neap slirp4netns --", "--disable-host-loopback", ["--listening", "--nothing"]),
    ] {
        let words = completed(&bash, "neap", line);
        let has = |wanted: &str| words.lines().any(|word| word == wanted);
        assert!(has(offers) && !hides.iter().any(|hidden| has(hidden)), "{line}: {words}");
    }
    for (name, option) in [("pasta", "--map-host-loopback"), ("slirp4netns", "--api-socket")] {
        let bash = neap(&["completions", "bash", name]);
        let words = completed(&bash, name, &format!("{name} --"));
        assert!(words.lines().any(|word| word == option), "{words}");
    }
    neap(&["man", "--folder", folder.to_str().expect("a name")]);
    let page = fs::read_to_string(folder.join("neap-ss.1")).expect("a page");
    let gateway = fs::read_to_string(folder.join("neap-gateway-run.1")).expect("a page");
    let slirp4netns = fs::read_to_string(folder.join("neap-slirp4netns.1")).expect("a page");
    let of_links = ["pasta.bash", "_slirp4netns"].map(|name| folder.join("completions").join(name));
    let has_links = of_links.iter().all(|path| path.exists());
    let hidden = folder.join("neap-completions.1").exists();
    let completions = fs::read_dir(folder.join("completions")).expect("a folder").count();
    fs::remove_dir_all(&folder).expect("the folder is there");
    assert!(page.contains("\\-\\-listening") && gateway.contains("\\-\\-metrics"));
    assert!(!hidden && completions >= 5 && has_links);
    assert!(slirp4netns.contains("\\-\\-api\\-socket"), "{slirp4netns}");
}

/// The unit of the guide starts the program where the README has it installed.
#[test]
fn the_unit_of_the_guide_starts_what_the_readme_installs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |path: &str| fs::read_to_string(root.join(path)).expect(path);
    let readme = read("README.md");
    let mut installs =
        readme.lines().filter_map(|line| line.strip_prefix("sudo install target/release/neap "));
    let installed = format!("{}neap", installs.next().expect("the README installs it"));
    let guide = read("guide/src/from-wireproxy.md");
    let starts: Vec<_> = guide
        .lines()
        .filter(|line| line.starts_with("ExecStart"))
        .filter_map(|line| line.split_once('=')?.1.split(' ').next())
        .collect();
    assert_eq!(starts, [&installed; 2]);
}
