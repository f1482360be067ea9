//! WireGuard of others: programs over a TUN, and `wg`.

use super::folder::Folder;
use super::host::Host;
use super::namespace::{run, skip};
use super::running::Running;
use super::{eventually, world};
use std::env;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Where programs in user space take their settings from `wg`.
const SETTINGS: &str = "/var/run/wireguard";
/// boringtun as a program, from crates.io.
const BORINGTUN: &str = "0.7.1";

/// A key pair, made by `wg`.
pub(super) struct Keys {
    pub(super) private: String,
    pub(super) public: String,
}

impl Keys {
    pub(super) fn new() -> Self {
        let private = run("wg genkey").trim().to_owned();
        let public = public_key(&private);
        Self { private, public }
    }
}

/// What `wg` says is the public key.
fn public_key(private: &str) -> String {
    let mut child = Command::new("wg")
        .arg("pubkey")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("wg runs");
    child.stdin.take().expect("a pipe").write_all(private.as_bytes()).expect("written");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "wg pubkey");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// A program that is WireGuard over a TUN.
#[derive(Clone, Debug)]
pub(super) enum Program {
    WireguardGo,
    Boringtun(PathBuf),
}

impl Program {
    /// Debian's wireguard-go.
    pub(super) fn wireguard_go() -> Option<Self> {
        can_run(&["wireguard-go", "wg", "tcpdump"]).then_some(Self::WireguardGo)
    }

    /// boringtun-cli, which is built once for each target folder. The first call must not be in a
    /// namespace, as those have no network. It skips if it cannot be built.
    pub(super) fn boringtun() -> Option<Self> {
        if !can_run(&["wg", "tcpdump"]) {
            return None;
        }
        match built() {
            Ok(path) => Some(Self::Boringtun(path)),
            Err(error) => {
                skip(&format!("boringtun-cli cannot be built: {error}"));
                None
            }
        }
    }

    fn words<'a>(&'a self, interface: &'a str) -> Vec<&'a str> {
        match self {
            Self::WireguardGo => vec!["wireguard-go", "-f", interface],
            Self::Boringtun(path) => {
                let path = path.to_str().expect("a name");
                vec![path, "-f", "--disable-drop-privileges", "-v", "error", interface]
            }
        }
    }
}

/// Says that a test cannot run, if a program is missing, or the right to take settings from `wg`.
pub(super) fn can_run(programs: &[&str]) -> bool {
    for program in programs {
        let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
        if !found.is_ok_and(|output| output.status.success()) {
            skip(&format!("no {program} here"));
            return false;
        }
    }
    let is_ours = fs::create_dir_all(SETTINGS).is_ok()
        && fs::metadata(SETTINGS).is_ok_and(|folder| !folder.permissions().readonly())
        && rustix::fs::access(SETTINGS, rustix::fs::Access::WRITE_OK).is_ok();
    if !is_ours {
        skip(&format!("no right to write to {SETTINGS}, where wg looks for programs"));
    }
    is_ours
}

/// The program, which one test makes while the others wait.
fn built() -> Result<PathBuf, String> {
    let parent = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let root = parent.join(format!("boringtun-cli-{BORINGTUN}"));
    let program = root.join("bin/boringtun-cli");
    if program.exists() {
        return Ok(program);
    }
    fs::create_dir_all(parent).map_err(|error| error.to_string())?;
    let lock = File::create(parent.join("boringtun-cli.lock")).map_err(|e| e.to_string())?;
    lock.lock().map_err(|error| error.to_string())?;
    if program.exists() {
        return Ok(program);
    }
    let folder = parent.join("boringtun-cli.build");
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // The cipher is in assembler in each profile.
    let output = Command::new(cargo)
        .args(["install", "boringtun-cli", "--version", BORINGTUN, "--locked", "--debug", "-q"])
        .arg("--root")
        .arg(&root)
        .arg("--target-dir")
        .arg(&folder)
        .output()
        .map_err(|error| error.to_string())?;
    let _ = fs::remove_dir_all(folder);
    let Output { status, stderr, .. } = output;
    if status.success() {
        return Ok(program);
    }
    let text = String::from_utf8_lossy(&stderr).into_owned();
    Err(format!("{status}, {}", text.lines().last().unwrap_or_default()))
}

/// A running program over a TUN, with its settings. It ends with its value.
pub(super) struct Peer {
    program: Running,
    interface: String,
    is_killed: bool,
}

impl Peer {
    /// Starts it on `host`, with the far side's addresses of the tunnel, and `theirs` as its peer,
    /// with which it has the secret `shared`.
    pub(super) fn start(
        program: &Program,
        host: &Host,
        folder: &Folder,
        own: &Keys,
        theirs: &str,
        shared: &str,
    ) -> Self {
        let interface = format!("wt{}", std::process::id());
        // What a killed one has left.
        let _ = fs::remove_file(socket(&interface));
        let key = folder.write("far.key", &own.private);
        let shared = folder.write("shared.key", shared);
        let running = Running::start_on(host, folder, &program.words(&interface));
        let peer = Self { program: running, interface, is_killed: false };
        let interface = &peer.interface;
        eventually("a program that takes settings", || {
            assert!(peer.program.is_running(), "{}", peer.program.log());
            // `wg` asks the kernel where nobody listens yet.
            UnixStream::connect(socket(interface)).ok()
        });
        let [v4, v6] = world::NEAR_INSIDE;
        host.inside(|| {
            run(&format!(
                "wg set {interface} private-key {key} listen-port {} peer {theirs} \
                 preshared-key {shared} allowed-ips {v4}/32,{v6}/128",
                world::PORT
            ));
            let [own_v4, own_v6] = world::FAR_INSIDE;
            run(&format!("ip address add {own_v4}/24 dev {interface}"));
            run(&format!("ip address add {own_v6}/64 dev {interface} nodad"));
            run(&format!("ip link set {interface} mtu 1420 up"));
        });
        peer
    }

    /// Kills the program. Its TUN is gone, too. A socket that it leaves would not be that of the
    /// next one, which ends when its socket is removed.
    pub(super) fn kill(&mut self) {
        if !self.is_killed {
            self.program.kill();
            let _ = fs::remove_file(socket(&self.interface));
        }
        self.is_killed = true;
    }

    pub(super) fn set(&self, words: &str) {
        run(&format!("wg set {} {words}", self.interface));
    }

    /// Bytes that came from its only peer, and bytes that went to it.
    pub(super) fn transfer(&self) -> (u64, u64) {
        let text = run(&format!("wg show {} transfer", self.interface));
        let mut words = text.split_whitespace().skip(1).map(|word| word.parse().expect("a count"));
        let mut next = || words.next().expect("two counts");
        (next(), next())
    }

    /// Where its only peer is.
    pub(super) fn endpoint(&self) -> String {
        let text = run(&format!("wg show {} endpoints", self.interface));
        text.split_whitespace().nth(1).expect("an endpoint").to_owned()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.kill();
    }
}

fn socket(interface: &str) -> PathBuf {
    Path::new(SETTINGS).join(format!("{interface}.sock"))
}
