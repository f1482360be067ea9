//! What gateways give up once they are set up: they serve, and reach nothing else.

use super::confined;
use super::folder::Folder;
use super::names::{Sandbox, ask_at, replace, resolver};
use super::namespace::{in_namespace, skip};
use super::{SERVER, in_network, run};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

/// Where what is behind the TUN asks.
const BEHIND: &str = "198.51.100.53:53";

/// `neap gateway tun` on a host whose /etc is a folder of the test. It is killed in the end.
struct Tun(Child);

impl Tun {
    fn start(etc: &Folder, options: &str) -> Self {
        let script = format!(
            "mount --bind {} /etc && exec {} gateway tun --tun gate0 --host-address 10.0.2.100/24 \
             --dns direct --log info {options}",
            etc.path().display(),
            env!("CARGO_BIN_EXE_neap"),
        );
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", &script]).stdin(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("unshare is there");
        let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        assert!(lines.any(|line| line.expect("text").contains("gateway started")), "it has ended");
        thread::spawn(move || lines.for_each(drop));
        run("ip route add 198.51.100.0/24 dev gate0");
        Self(child)
    }
}

impl Drop for Tun {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Asks while `resolv.conf` is a file of its folder, and while it is a link to a file elsewhere,
/// which the gateway must not be able to open.
fn asks_with_files_of_one_folder(etc: &Folder, mut ask: impl FnMut() -> String) {
    assert_eq!(ask(), "answer 1");
    if !confined::has_landlock() {
        return skip("this kernel has no Landlock");
    }
    let elsewhere = Folder::new("elsewhere");
    let outside = elsewhere.write("resolv.conf", &format!("nameserver {SERVER}\n"));
    let [file, link] = ["resolv.conf", "link"].map(|name| etc.path().join(name));
    symlink(Path::new(&outside), &link).expect("a link");
    fs::rename(&link, &file).expect("moved");
    assert_eq!(ask(), "failure 2", "the gateway reads files of other folders");
    replace(etc, &format!("nameserver {SERVER}\n"));
    assert_eq!(ask(), "answer 1");
}

#[test]
fn a_gateway_of_a_sandbox_has_no_rights_and_no_files() {
    in_namespace(|| {
        in_network(|| {
            let _told = resolver(SERVER, 1);
            let etc = Folder::new("etc");
            replace(&etc, &format!("nameserver {SERVER}\n"));
            let mut sandbox = Sandbox::start(&etc, "-p 80:80 --metrics 127.0.0.1:81");
            confined::check(sandbox.pid(), 0);
            asks_with_files_of_one_folder(&etc, || sandbox.ask());
        });
    });
}

#[test]
fn a_gateway_of_a_tun_has_no_rights_and_no_files() {
    in_namespace(|| {
        in_network(|| {
            let _told = resolver(SERVER, 1);
            let etc = Folder::new("etc");
            replace(&etc, &format!("nameserver {SERVER}\n"));
            let tun = Tun::start(&etc, "");
            confined::check(tun.0.id(), 0);
            asks_with_files_of_one_folder(&etc, || ask_at(BEHIND));
            // Another process opens the file. It ends with the gateway.
            let reader = run(&format!("pgrep -P {} -f resolvers", tun.0.id()));
            let reader: u32 = reader.trim().parse().expect("one process");
            confined::check(reader, 0);
            drop(tun);
            // A process that has ended has no command line.
            let line = format!("/proc/{reader}/cmdline");
            while fs::read(&line).is_ok_and(|line| !line.is_empty()) {
                thread::yield_now();
            }
            // A mark needs a right, which is the only one that stays (CAP_NET_RAW).
            let tun = Tun::start(&etc, "--mark 7");
            confined::check(tun.0.id(), 1 << 13);
            assert_eq!(ask_at(BEHIND), "answer 1");
        });
    });
}

#[test]
fn the_sockets_of_a_gateway_are_removed_and_its_command_keeps_its_rights() {
    in_namespace(|| {
        in_network(|| {
            let folder = Folder::new("sockets");
            let metrics = folder.path().join("metrics.sock");
            let option = format!("unix:{}", metrics.display());
            // A second user namespace, a program and a file of the command's own.
            let file = folder.path().join("of the command");
            let script = format!(
                "ls '{0}' && unshare -Ur true && echo here >'{0}/of the command'",
                folder.path().display()
            );
            let mut command = super::gateway(&["--metrics", &option, "--", "sh", "-c", &script]);
            command.env("XDG_RUNTIME_DIR", folder.path());
            let (status, stdout, stderr) = super::finish(command);
            assert_eq!(status, Some(0), "{stdout}{stderr}");
            assert!(stdout.contains("metrics.sock") && stdout.contains("neap"), "{stdout}");
            assert_eq!(fs::read_to_string(file).expect("it is written"), "here\n");
            assert!(!metrics.exists(), "the socket of the metrics stays");
            let left = fs::read_dir(folder.path().join("neap")).expect("a folder").count();
            assert_eq!(left, 0, "the control socket stays");
        });
    });
}
