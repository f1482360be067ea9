//! Podman and RootlessKit as an unprivileged user, with the faces of neap in the place of theirs.
//!
//! The scripts beside this file are what the user does. The servers are in the network namespace of
//! the test.

#[path = "../common/namespace.rs"]
mod namespace;

use namespace::{in_namespace, run};
use std::env;
use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;

/// Address of the servers.
const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// Bytes of a large transfer.
const LARGE: usize = 64 << 20;

/// Says that a test cannot run here; not by `eprintln!`, which the harness swallows.
fn skip(reason: &str) {
    writeln!(std::io::stderr(), "SKIP: {reason}").expect("stderr");
}

fn has(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
    found.is_ok_and(|output| output.status.success())
}

/// What servers have, and the servers; all is gone with it.
struct Outside {
    folder: PathBuf,
    servers: Vec<Child>,
}

impl Drop for Outside {
    fn drop(&mut self) {
        for server in &mut self.servers {
            let _ = server.kill();
            let _ = server.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Outside {
    fn start() -> Self {
        run("ip link set lo up");
        run("ip link add outside type veth peer name far");
        run("ip address add 192.0.2.1/24 dev outside");
        run("ip address add 2001:db8::1/64 dev outside nodad");
        run("ip link set far up");
        run("ip link set outside up");
        let folder = env::temp_dir().join(format!("neap-clients-{}", std::process::id()));
        fs::create_dir(&folder).expect("room");
        let mut outside = Self { folder, servers: Vec::new() };
        let bytes: Vec<u8> = (0..LARGE).map(|at| (at * 7 + at / 251) as u8).collect();
        fs::write(outside.folder.join("large"), bytes).expect("room");
        fs::write(outside.folder.join("small"), "small\n").expect("room");
        let folder = outside.folder.display().to_string();
        for port in ["192.0.2.1:8000", "[2001:db8::1]:8000", "127.0.0.1:8001"] {
            outside.server(&["httpd", "-f", "-p", port, "-h", &folder]);
        }
        outside.server(&["nc", "-ll", "-p", "9000", "-e", "sha256sum"]);
        let resolver = UdpSocket::bind((SERVER, 53)).expect("a port");
        thread::spawn(move || resolve(&resolver));
        outside
    }

    fn server(&mut self, words: &[&str]) {
        let server = Command::new("busybox").args(words).stdin(Stdio::null()).spawn();
        self.servers.push(server.expect("busybox runs"));
    }
}

/// A resolver by which every name has the address of the servers.
fn resolve(socket: &UdpSocket) {
    let mut query = [0; 512];
    while let Ok((length, from)) = socket.recv_from(&mut query) {
        // A header of twelve bytes, the name with a length before each part, type and class.
        let name = &query[12.min(length)..length];
        let Some(end) = name.iter().position(|&byte| byte == 0) else { continue };
        let Some(question) = query[..length].get(12..12 + end + 5) else { continue };
        let is_v4 = question[end + 1..end + 3] == [0, 1];
        let mut answer = query[..2].to_vec();
        answer.extend([0x81, 0x80, 0, 1, 0, u8::from(is_v4), 0, 0, 0, 0]);
        answer.extend(question);
        if is_v4 {
            // The name of the question, an address of the Internet, for a minute.
            answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
            answer.extend(SERVER.octets());
        }
        let _ = socket.send_to(&answer, from);
    }
}

/// Runs a script as an unprivileged user. It must say that it came to its end.
fn client(script: &str, programs: &[&str]) {
    for program in ["busybox", "newuidmap", "setpriv", "unshare", "wget"].iter().chain(programs) {
        if !has(program) {
            return skip(&format!("{program} is not installed"));
        }
    }
    let is_root = fs::read_to_string("/proc/self/uid_map")
        .is_ok_and(|map| map.split_whitespace().eq(["0", "0", "4294967295"]));
    if !is_root {
        return skip("a user with subordinate identities can be made by root only");
    }
    let outside = Outside::start();
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/clients");
    let mut command = Command::new("unshare");
    command.args(["-mpf", "--kill-child", "--mount-proc", "sh"]).arg(folder.join("user.sh"));
    command.arg(env!("CARGO_BIN_EXE_neap")).arg(folder.join(format!("{script}.sh")));
    let output = command.env("FILES", &outside.folder).stdin(Stdio::null()).output();
    let output = output.expect("unshare runs");
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    let is_over = stdout.contains(&format!("all of {script}"));
    assert!(output.status.success() && is_over, "{script}: {}\n{stdout}{stderr}", output.status);
}

#[test]
fn podman() {
    in_namespace(|| client("podman", &["podman", "runc"]));
}

#[test]
fn rootlesskit() {
    in_namespace(|| client("rootlesskit", &["rootlesskit"]));
}
