//! Where the host has few ports: connections to several destinations share them, and one to a
//! destination that has used up all is refused and told.

use super::namespace::in_namespace;
use super::{PROGRAM, SERVER, TARGET, finish, gateway, in_network, to};
use std::env;
use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};

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
