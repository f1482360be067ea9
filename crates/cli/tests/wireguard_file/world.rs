//! Two hosts with a veth between them, and tunnels on them.

use super::host::{Host, await_links};
use super::namespace::{read_all, run};
use neap_wireguard::PrivateKey;
use std::env;
use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};

/// Address of this host.
pub(crate) const NEAR: &str = "192.0.2.1";
/// Address of the other one.
pub(crate) const FAR: &str = "192.0.2.2";

/// Joins this host and another one.
pub(crate) fn veth(far: &Host) {
    run("ip link set lo up");
    run(&format!("ip link add near type veth peer name far netns {}", far.pid()));
    run(&format!("ip address add {NEAR}/24 dev near"));
    run("ip link set near up");
    far.inside(|| {
        run("ip link set lo up");
        run(&format!("ip address add {FAR}/24 dev far"));
        run("ip link set far up");
        await_links(&["far"]);
    });
    await_links(&["near"]);
}

/// A folder of a test, which is gone with it.
pub(crate) struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let folder = env::temp_dir().join(format!("neap-wg-{name}-{}", std::process::id()));
        fs::create_dir(&folder).expect("a folder");
        Self(folder)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file that only its owner may read, and returns its path.
    pub(crate) fn write(&self, name: &str, text: &str) -> String {
        // As editors do it: another file takes the place.
        let (new, path) = (self.path("new"), self.path(name));
        let mut options = OpenOptions::new();
        let file = options.create(true).write(true).truncate(true).mode(0o600).open(&new);
        file.and_then(|mut file| file.write_all(text.as_bytes())).expect("a file");
        fs::rename(new, &path).expect("it is there");
        path.to_str().expect("text").to_owned()
    }

    pub(crate) fn neap(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_neap"));
        command.args(arguments).env("XDG_RUNTIME_DIR", &self.0).stdin(Stdio::null());
        command
    }

    /// Status, standard output and standard error of a command.
    pub(crate) fn finish(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let output = self.neap(arguments).output().expect("neap runs");
        let [out, err] =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        (output.status.code(), out, err)
    }

    /// What a command prints, which has to succeed.
    pub(crate) fn print(&self, arguments: &[&str]) -> String {
        let (status, out, err) = self.finish(arguments);
        assert_eq!(status, Some(0), "{arguments:?}: {out}{err}");
        out
    }
}

/// Each byte of the keys: of the private ones of both hosts, of the one that they share, and of
/// another one.
const NEAR_KEY: u8 = 7;
const FAR_KEY: u8 = 9;
const SHARED_KEY: u8 = 0x11;
const OTHER_SHARED_KEY: u8 = 0x13;
const OTHER_SHARED: &str = "ExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExM=";
/// Characters of a key that show it.
const TRACE: usize = 20;

fn hex<const N: usize>(bytes: [u8; N]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The keys of two peers.
pub(crate) struct Keys {
    pub(crate) near_private: String,
    far_private: String,
    shared: String,
}

impl Keys {
    pub(crate) fn new() -> Self {
        let near_private = "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=".to_owned();
        let far_private = "CQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQk=".to_owned();
        let shared = "ERERERERERERERERERERERERERERERERERERERERERE=".to_owned();
        Self { near_private, far_private, shared }
    }

    /// A page of the configuration protocol with this host's secrets in their places.
    pub(crate) fn with_secrets(&self, page: &str) -> String {
        let page =
            page.replace("private_key=REDACTED", &format!("private_key={}", hex([NEAR_KEY; 32])));
        page.replace("preshared_key=REDACTED", &format!("preshared_key={}", hex([SHARED_KEY; 32])))
    }

    /// A text in which the secrets of this host are hidden.
    pub(crate) fn hidden(&self, text: &str) -> String {
        text.replace(&self.near_private, "(hidden)").replace(&self.shared, "(hidden)")
    }

    /// A file in which the keys that both share are others.
    pub(crate) fn exchanged(&self, text: &str) -> String {
        text.replace(&self.shared, OTHER_SHARED)
    }

    /// Where a secret shows: the beginnings of all of them in base64, in hexadecimal digits, and as
    /// numbers, as `Debug` prints bytes.
    pub(crate) fn traces(&self) -> Vec<String> {
        let texts = [&self.near_private, &self.far_private, &self.shared];
        let texts = texts.into_iter().map(String::as_str).chain([OTHER_SHARED]);
        let mut all: Vec<_> = texts.map(|text| text[..TRACE].to_owned()).collect();
        for byte in [NEAR_KEY, FAR_KEY, SHARED_KEY, OTHER_SHARED_KEY] {
            all.push(hex([byte; TRACE / 2]));
            all.push(hex([byte; TRACE / 2]).to_uppercase());
            all.push(format!("{byte}, {byte}, {byte}, {byte}, {byte}"));
        }
        all
    }

    fn public(private: &str) -> String {
        private.parse::<PrivateKey>().expect("a key").public_key().to_string()
    }

    pub(crate) fn near_public(&self) -> String {
        Self::public(&self.near_private)
    }

    pub(crate) fn far_public(&self) -> String {
        Self::public(&self.far_private)
    }

    /// The file of this host: more lines of `[Interface]`, and more sections.
    pub(crate) fn near(&self, interface: &str, sections: &str) -> String {
        format!(
            "[Interface]\nPrivateKey = {}\nAddress = 10.9.0.1\n{interface}ListenPort = 51821\n\
             [Peer]\nPublicKey = {}\nPresharedKey = {}\nAllowedIPs = 10.9.0.2\n\
             Endpoint = {FAR}:51820\nPersistentKeepalive = 25\n{sections}",
            self.near_private,
            self.far_public(),
            self.shared
        )
    }

    /// The file of the other host, which waits for this one.
    pub(crate) fn far(&self, interface: &str, sections: &str) -> String {
        format!(
            "[Interface]\nPrivateKey = {}\nAddress = 10.9.0.2\n{interface}ListenPort = 51820\n\
             [Peer]\nPublicKey = {}\nPresharedKey = {}\nAllowedIPs = 10.9.0.1\n{sections}",
            self.far_private,
            self.near_public(),
            self.shared
        )
    }
}

/// A tunnel that says when it is there, as it does to systemd.
pub(crate) struct Tunnel {
    child: Child,
    told: UnixDatagram,
    log: Option<JoinHandle<String>>,
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Tunnel {
    pub(crate) fn start(folder: &Folder, arguments: &[&str]) -> Self {
        Self::spawn(folder, folder.neap(&["wireguard"]), arguments)
    }

    /// The same with an `/etc/hosts` of its own.
    pub(crate) fn start_with_hosts(folder: &Folder, arguments: &[&str], hosts: &Path) -> Self {
        let mut command = Command::new("unshare");
        let script = "mount --bind \"$0\" /etc/hosts && exec \"$@\"";
        command.args(["-m", "sh", "-c", script]).arg(hosts);
        command.args([env!("CARGO_BIN_EXE_neap"), "wireguard"]);
        command.env("XDG_RUNTIME_DIR", &folder.0).stdin(Stdio::null());
        Self::spawn(folder, command, arguments)
    }

    /// The same of a command that `neap wireguard` and its standard streams belong to.
    pub(crate) fn spawn(folder: &Folder, mut command: Command, arguments: &[&str]) -> Self {
        let name = Path::new(arguments[1]).with_extension("notify");
        let place = folder.path(name.file_name().and_then(|name| name.to_str()).expect("text"));
        let told = UnixDatagram::bind(&place).expect("a socket");
        // Other users run it, too.
        fs::set_permissions(&place, fs::Permissions::from_mode(0o777)).expect("it is ours");
        command.args(arguments).env("NOTIFY_SOCKET", place).stderr(Stdio::piped());
        let mut child = command.spawn().expect("neap runs");
        let stderr = child.stderr.take().expect("a pipe");
        let log = Some(thread::spawn(move || read_all(stderr)));
        let mut tunnel = Self { child, told, log };
        tunnel.told.set_read_timeout(Some(std::time::Duration::from_secs(30))).expect("a timeout");
        if tunnel.heard().is_none() {
            let _ = tunnel.child.kill();
            panic!("{arguments:?}: {}", tunnel.log());
        }
        tunnel
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has told.
    fn heard(&self) -> Option<String> {
        let mut bytes = [0; 200];
        let count = self.told.recv(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes[..count]).into_owned())
    }

    /// Lets it read its file again, and waits until it has.
    pub(crate) fn reload(&self) {
        run(&format!("kill -HUP {}", self.pid()));
        let begin = self.heard().expect("it tells");
        assert!(begin.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{begin}");
        assert_eq!(self.heard().as_deref(), Some("READY=1\n"));
    }

    /// Waits until it has told that it ends.
    pub(crate) fn hears_of_its_end(&self) {
        assert_eq!(self.heard().as_deref(), Some("STOPPING=1\n"));
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("it ends")
    }

    fn log(&mut self) -> String {
        self.log.take().expect("taken once").join().expect("read")
    }

    /// Ends it by a signal, and returns its log.
    pub(crate) fn end(mut self) -> String {
        run(&format!("kill {}", self.pid()));
        assert!(self.child.wait().expect("it ends").success());
        self.log()
    }

    /// The same of one that has nothing to tell, but perhaps of small buffers.
    pub(crate) fn end_in_silence(self) {
        let log = self.end();
        assert!(but_small_buffers(&log).is_empty(), "{log}");
    }
}

/// The line about the buffers of a socket that has no right to larger ones, without the time, the
/// level and the file. There is none where the settings of the machine let everybody have them.
pub(crate) fn small_buffers() -> Option<String> {
    let is_small = |(name, wanted): &(&str, u64)| {
        // Kernels before 6.9 show no namespace but the first one.
        let most = fs::read_to_string(format!("/proc/sys/net/core/{name}"));
        let most = most.ok().and_then(|most| most.trim().parse().ok());
        most.unwrap_or(212_992) < *wanted
    };
    let buffers = [("rmem_max", 4_194_304), ("wmem_max", 524_288)];
    let settings = buffers.into_iter().filter(is_small);
    let settings: Vec<_> =
        settings.map(|(name, wanted)| format!("net.core.{name}={wanted}")).collect();
    (!settings.is_empty()).then(|| {
        format!(
            ": the host gives the UDP socket less memory than it asks for, so that fast transfers \
             are slower; for all of it, before the start, as root: sysctl -w {}",
            settings.join(" ")
        )
    })
}

/// The lines of a log but the first one that is about small buffers, which is there without the
/// right to larger ones.
pub(crate) fn but_small_buffers(log: &str) -> Vec<&str> {
    let small = small_buffers();
    let mut lines: Vec<_> = log.lines().collect();
    let is_of_them = |line: &&str| small.as_ref().is_some_and(|small| line.ends_with(small));
    if let Some(at) = lines.iter().position(is_of_them) {
        lines.remove(at);
    }
    lines
}

/// Status and body of a page.
pub(crate) fn get(address: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.write_all(format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes()).expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
    let (_, body) = text.split_once("\r\n\r\n").expect("a body");
    (status.expect("a status"), body.to_owned())
}
