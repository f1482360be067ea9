//! `neap wireguard` on the near host.

use super::eventually;
use super::folder::Folder;
use super::running::Running;
use std::net::TcpStream;
use std::process::Command;

/// Ports of the doors that [`DOORS`] opens.
pub(super) const SOCKS: u16 = 1080;
pub(super) const HTTP: u16 = 8888;
pub(super) const TO_WEB: u16 = 8080;
pub(super) const TO_ECHO: u16 = 8007;
pub(super) const TO_IPERF3: u16 = 5202;
pub(super) const TO_GIT: u16 = 9419;
/// The same by both families.
pub(super) const TO_TELL: [u16; 2] = [8009, 8019];
/// A port of the tunnel, and the one of the near host that it leads to.
pub(super) const FROM_TUNNEL: u16 = 7000;
pub(super) const TO_NEAR: u16 = 7001;

/// Sections of a file that lead through the tunnel and out of it.
pub(super) const DOORS: &str = "
    [Socks5]
    BindAddress = 127.0.0.1:1080
    [http]
    BindAddress = 127.0.0.1:8888
    [TCPClientTunnel]
    BindAddress = 127.0.0.1:8080
    Target = www.example.test:80
    [TCPClientTunnel]
    BindAddress = 127.0.0.1:8007
    Target = 10.90.0.1:7
    [TCPClientTunnel]
    BindAddress = 127.0.0.1:5202
    Target = 10.90.0.1:5201
    [TCPClientTunnel]
    BindAddress = 127.0.0.1:9419
    Target = 10.90.0.1:9418
    [TCPServerTunnel]
    ListenPort = 7000
    Target = 127.0.0.1:7001
    [UDPProxyTunnel]
    BindAddress = 127.0.0.1:8009
    Target = 10.90.0.1:9
    InactivityTimeout = 30
    [UDPProxyTunnel]
    BindAddress = 127.0.0.1:8019
    Target = [fd00:90::1]:9
    InactivityTimeout = 30
";

/// A running `neap wireguard`.
pub(super) struct Neap(Running);

impl Neap {
    /// Starts it with a file that has [`DOORS`], and waits until they are open.
    pub(super) fn start(folder: &Folder, file: &str) -> Self {
        Self::start_by(folder, &[], file)
    }

    /// The same by a command that becomes it.
    pub(super) fn start_by(folder: &Folder, command: &[&str], file: &str) -> Self {
        let own = [env!("CARGO_BIN_EXE_neap"), "wireguard", "-c", file];
        let neap = Self(Running::start(folder, &[command, &own].concat()));
        for port in [SOCKS, HTTP, TO_WEB, TO_ECHO, TO_IPERF3] {
            eventually("an open door", || {
                neap.check();
                TcpStream::connect(("127.0.0.1", port)).ok()
            });
        }
        neap
    }

    /// It has not ended.
    pub(super) fn check(&self) {
        assert!(self.0.is_running(), "neap has ended: {}", self.0.log());
    }

    pub(super) fn pid(&self) -> u32 {
        self.0.pid()
    }

    pub(super) fn kill(&mut self) {
        self.0.kill();
    }
}

/// Runs a command line, which must succeed. Answers what it printed, byte for byte.
pub(super) fn output(line: &str) -> Vec<u8> {
    let words: Vec<_> = line.split_whitespace().collect();
    let output = Command::new(words[0]).args(&words[1..]).output().expect(line);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {} {errors}", output.status);
    output.stdout
}
