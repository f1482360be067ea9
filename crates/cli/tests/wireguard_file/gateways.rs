//! Gateways whose upstream is a tunnel, while its file changes.

use super::host::Host;
use super::namespace::{in_namespace, read_all, run};
use super::world::{Folder, Keys, Tunnel, veth};
use super::{SERVER, confined, echo, say};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, Command, Stdio};

/// A gateway, which ends with the test, also where that fails.
struct Gateway {
    child: Child,
    log: BufReader<ChildStderr>,
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Gateway {
    fn start(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().expect("neap runs");
        let log = BufReader::new(child.stderr.take().expect("a pipe"));
        Self { child, log }
    }

    /// It has not ended.
    fn check(&mut self) {
        if self.child.try_wait().expect("a child").is_some() {
            panic!("it has ended: {}", read_all(&mut self.log));
        }
    }

    /// Has the file of its tunnel read again, and waits for this line of its log.
    fn reload(&mut self, expected: &str) -> String {
        run(&format!("kill -HUP {}", self.child.id()));
        let mut lines = String::new();
        loop {
            let mut line = String::new();
            let is_over = self.log.read_line(&mut line).expect("text") == 0;
            assert!(!is_over, "it has ended: {lines}");
            lines += &line;
            if line.contains(expected) {
                return lines;
            }
        }
    }

    fn end(mut self) {
        run(&format!("kill {}", self.child.id()));
        assert!(self.child.wait().expect("it ends").success());
    }
}

/// The line of a file that was read again.
const DONE: &str = "the file was read again";

/// A file with another keepalive than [`Keys::near`], and what is shown of it.
fn changed(keys: &Keys, dns: &str) -> (String, String) {
    let text = keys.near(dns, "").replace("Keepalive = 25", "Keepalive = 20");
    (text, format!("{}\t20\n", keys.far_public()))
}

#[test]
fn flows_of_a_tun_go_on_while_the_file_of_its_tunnel_changes() {
    in_namespace(|| {
        let folder = Folder::new("tun-reload");
        let far_host = Host::new(false);
        veth(&far_host);
        let (keys, dns) = (Keys::new(), "DNS = 10.9.0.2\n");
        let far = folder.write("far.conf", &keys.far("", SERVER));
        let (_far, _echo) = far_host.inside(|| (Tunnel::start(&folder, &["-c", &far]), echo()));
        folder.write("near.conf", &keys.near(dns, ""));
        let tun = ["gateway", "tun", "--tun", "gate0", "--host-address", "10.0.2.100/24"];
        let through = ["--upstream", "wireguard:near.conf", "--log", "info"];
        let mut command = folder.neap(&[&tun[..], &through].concat());
        command.current_dir(folder.path(""));
        let mut gateway = Gateway::start(command);
        // Its control socket is there once it takes connections. Before, the stack resets them.
        while folder.finish(&["ss", "--name", "gateway"]).0 != Some(0) {
            gateway.check();
        }
        run("ip route add 10.9.0.0/24 dev gate0");
        let stream = TcpStream::connect("10.9.0.2:80").expect("a way");
        say(&stream, "before");

        let (text, shown) = changed(&keys, dns);
        folder.write("near.conf", &text);
        gateway.reload(DONE);
        assert_eq!(folder.print(&["wg", "show", "near", "persistent-keepalive"]), shown);
        say(&stream, "after");

        folder.write("near.conf", &text.replace("[Peer]", "[Pear]"));
        let log = gateway.reload("nothing has changed: ");
        assert!(log.contains("near.conf:6: [Pear]: unknown section"), "{log}");
        say(&stream, "still");

        folder.write("near.conf", &text.replace(dns, "DNS = 10.9.0.3\n"));
        let log = gateway.reload(DONE);
        assert!(log.contains("near.conf: [Interface] DNS is that of the start"), "{log}");
        say(&stream, "with the resolver of the start");
        gateway.end();
    });
}

#[test]
fn faces_of_other_programs_read_the_file_of_their_tunnel_again() {
    in_namespace(|| {
        let (folder, keys) = (Folder::new("face-reload"), Keys::new());
        let [far_host, guest] = [false, true].map(Host::new);
        veth(&far_host);
        let (pid, pid_file) = (guest.pid().to_string(), folder.path("pid"));
        let upstream = format!("wireguard:{}", folder.path("near.conf").display());
        let through = ["--upstream", &upstream, "--log", "info"];
        let pid_of_pasta = pid_file.to_str().expect("text");
        let slirp4netns = ["slirp4netns", "-c", "-r", "1"];
        let pasta = ["pasta", "-f", "--config-net", "--netns-only", "--runas", "0"];
        let no_ports = ["-t", "none", "-u", "none", "-T", "none", "-U", "none"];
        let guest = [&pid, "tap0"];
        for (arguments, is_in_reach) in [
            ([&slirp4netns[..], &through, &guest].concat(), true),
            (
                [&slirp4netns[..], &["--enable-sandbox"], &through, &guest].concat(),
                !confined::has_landlock(),
            ),
            ([&pasta[..], &no_ports, &through, &["-P", pid_of_pasta, &pid]].concat(), true),
        ] {
            let (text, shown) = changed(&keys, "DNS = 10.9.0.2\n");
            folder.write("near.conf", &keys.near("DNS = 10.9.0.2\n", ""));
            let mut command = folder.neap(&arguments);
            command.stdout(Stdio::piped());
            let mut gateway = Gateway::start(command);
            if arguments[0] == "pasta" {
                while fs::read(&pid_file).unwrap_or_default().is_empty() {
                    gateway.check();
                }
            } else {
                let ready = gateway.child.stdout.as_mut().expect("a pipe");
                ready.read_exact(&mut [0]).expect("it says when it is ready");
            }
            folder.write("near.conf", &text);
            let log = gateway.reload(if is_in_reach { DONE } else { "nothing has changed: " });
            assert!(is_in_reach || log.contains("near.conf: cannot be read: "), "{log}");
            let now = folder.print(&["wg", "show", "near", "persistent-keepalive"]);
            assert_eq!(now == shown, is_in_reach, "{arguments:?}: {now}");
            gateway.end();
        }
    });
}
