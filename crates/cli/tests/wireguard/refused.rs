//! Files that are wrong.

use super::folder::Folder;
use super::namespace::run;
use std::fs::OpenOptions;
use std::net::TcpListener;
use std::process::{Command, Output};

const KEY: &str = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";
const PEER: &str = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=";

/// Checks a file; returns the status and what was printed.
fn check(file: &str) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_neap"))
        .args(["wireguard", "--configtest", "-c", file])
        .output()
        .expect("neap runs");
    let Output { status, stderr, .. } = output;
    (status.code(), String::from_utf8_lossy(&stderr).into_owned())
}

#[test]
fn a_wrong_key_file_or_section_is_told_with_file_line_and_key() {
    let folder = Folder::new("refused");
    let interface = format!("[Interface]\nPrivateKey = {KEY}\nAddress = 10.0.0.2/32\n");
    for (text, line, hint) in [
        ("[Interface]\nPrivateKey = short\n", 2, "PrivateKey"),
        (&format!("{interface}Adress = 10.0.0.3\n"), 4, "Adress"),
        (&format!("{interface}[Pear]\n"), 4, "Pear"),
        (&format!("{interface}[Peer]\nPublicKey = {KEY}x\n"), 5, "PublicKey"),
        (&format!("{interface}[Peer]\nPublicKey = {}=\n", "A".repeat(43)), 5, "PublicKey"),
        (&format!("{interface}[Peer]\nPublicKey = {KEY}\nEndpoint = nowhere\n"), 6, "Endpoint"),
        (&format!("{interface}[Peer]\nPublicKey = {KEY}\nAllowedIPs = 10/33\n"), 6, "AllowedIPs"),
        (&format!("{interface}[Socks5]\nBindAddress = 1080x\n"), 5, "BindAddress"),
        (&format!("{interface}MTU = 67\n"), 4, "MTU"),
    ] {
        let file = folder.write("wrong.conf", text);
        let (status, errors) = check(&file);
        assert_eq!(status, Some(2), "{text}\n{errors}");
        let where_it_is = format!("{file}:{line}:");
        assert!(errors.contains(&where_it_is) && errors.contains(hint), "{text}\n{errors}");
        assert_eq!(errors.trim_end().lines().count(), 1, "{errors}");
        assert!(!errors.contains(KEY), "a key reaches an error: {errors}");
    }
    let missing = folder.path().join("missing.conf");
    let (status, errors) = check(missing.to_str().expect("a name"));
    assert!(status == Some(2) && errors.contains("missing.conf"), "{status:?} {errors}");
    let peer = format!("[Peer]\nPublicKey = {PEER}\nAllowedIPs = 0.0.0.0/0\n");
    let right = folder.write("right.conf", &format!("{interface}{peer}"));
    run(&format!("{} wireguard -n -c {right}", env!("CARGO_BIN_EXE_neap")));
    // Nobody needs to read that it is right.
    let full = OpenOptions::new().write(true).open("/dev/full").expect("Linux has it");
    let mut neap = Command::new(env!("CARGO_BIN_EXE_neap"));
    let status = neap.args(["wireguard", "-n", "-c", &right]).stdout(full).status();
    assert!(status.expect("neap runs").success());
}

#[test]
fn a_congestion_control_that_is_not_there_is_a_wrong_argument() {
    for more in [&["-n"] as &[_], &[]] {
        let mut neap = Command::new(env!("CARGO_BIN_EXE_neap"));
        neap.args(["wireguard", "-c", "missing.conf", "--congestion", "vegas"]).args(more);
        let Output { status, stderr, .. } = neap.output().expect("neap runs");
        let errors = String::from_utf8_lossy(&stderr);
        assert_eq!(status.code(), Some(2), "{errors}");
        assert!(errors.contains("--congestion") && errors.contains("cubic"), "{errors}");
    }
}

#[test]
fn a_port_that_is_taken_is_told_with_what_to_do() {
    let folder = Folder::new("taken");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = listener.local_addr().expect("an address");
    let tunnel = format!(
        "[Interface]\nPrivateKey = {KEY}\nAddress = 10.0.0.2/32\n\
         [Peer]\nPublicKey = {PEER}\nAllowedIPs = 0.0.0.0/0\n"
    );
    let door = folder.write("door.conf", &format!("{tunnel}[Socks5]\nBindAddress = {taken}\n"));
    let tunnel = folder.write("tunnel.conf", &tunnel);
    let taken = taken.to_string();
    for (arguments, what) in [
        (&["-c", &door] as &[&str], "BindAddress"),
        (&["-c", &tunnel, "--info", &taken], "--info"),
        (&["-c", &tunnel, "--metrics", &taken], "--metrics"),
    ] {
        let mut neap = Command::new(env!("CARGO_BIN_EXE_neap"));
        let output = neap.arg("wireguard").args(arguments).output().expect("neap runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        let why = format!("{what} {taken}: {taken} is taken: choose another port");
        assert!(output.status.code() == Some(1) && errors.contains(&why), "{errors}");
    }
}
