//! Where the host has few ports: connections to several destinations share them, and one to a
//! destination that has used up all is refused and told. Where it gives few descriptors: a gateway
//! that could carry nothing does not start.

use super::namespace::in_namespace;
use super::{PROGRAM, SERVER, TARGET, finish, gateway, in_network, to};
use std::env;
use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

/// Ports that the host may connect from.
const RANGE: &str = "40000 40009";
const COUNT: usize = 10;

/// In the sandbox: uses up the ports towards each server.
pub(super) fn guest(servers: &str) {
    let mut streams = Vec::new();
    for server in servers.split(' ').map(to) {
        streams.extend((0..COUNT).map(|_| TcpStream::connect(server).expect("there are ports")));
        let error = TcpStream::connect(server).expect_err("there is no port left");
        assert_eq!(error.kind(), ErrorKind::NetworkUnreachable, "{error}");
    }
}

#[test]
fn ports_are_shared_by_destinations_and_their_end_is_told() {
    in_namespace(|| {
        in_network(|| {
            let range = "/proc/sys/net/ipv4/ip_local_port_range";
            std::fs::write(range, RANGE).expect("a setting");
            let listen = |port| TcpListener::bind((SERVER, port)).expect("a port");
            let servers = [7001, 7002, 7003].map(listen);
            let targets = servers.each_ref().map(|server| server.local_addr().expect("bound"));
            let own = env::current_exe().expect("the test knows its binary");
            let own = own.to_str().expect("a name");
            let inside = ["--log", "info", "--", own, "--exact", "inside", "--nocapture"];
            let mut command = gateway(&inside);
            let targets = targets.map(|target| target.to_string()).join(" ");
            command.env(PROGRAM, "use up ports").env(TARGET, targets);
            let (status, stdout, stderr) = finish(command);
            assert_eq!(status, Some(0), "{stdout}{stderr}");
            assert!(stderr.contains("the host has no port left"), "{stderr}");
            // A SYN that was answered by none of the ICMP errors, which are few, comes again.
            assert!(
                stderr.contains(" full=0 no_port=") && !stderr.contains("no_port=0"),
                "{stderr}"
            );
        });
    });
}

/// Descriptors that a gateway needs.
const LEAST: u32 = 80;

#[test]
fn a_gateway_with_too_few_descriptors_does_not_start_and_says_how_many_it_needs() {
    in_namespace(|| {
        in_network(|| {
            let own = env::current_exe().expect("the test knows its binary");
            let listener = TcpListener::bind((SERVER, 0)).expect("a port");
            let server = listener.local_addr().expect("an address").to_string();
            for (limit, expected) in [(20, 1), (60, 1), (LEAST - 1, 1), (LEAST, 0)] {
                let mut command = Command::new("sh");
                command.args(["-c", &format!("ulimit -n {limit}; exec \"$0\" \"$@\"")]);
                command.args([env!("CARGO_BIN_EXE_neap"), "gateway", "run", "--"]).arg(&own);
                command.args(["--exact", "inside", "--nocapture"]).stdin(Stdio::null());
                command.env(PROGRAM, "connect").env(TARGET, &server);
                let (status, stdout, stderr) = finish(command);
                assert_eq!(status, Some(expected), "{limit}: {stdout}{stderr}");
                let is_told = stderr.contains("ulimit -n") && stderr.contains(&LEAST.to_string());
                assert_eq!(is_told, limit < LEAST, "{limit}: {stderr}");
            }
        });
    });
}
