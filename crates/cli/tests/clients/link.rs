//! A host whose servers are on another machine, at the other end of a link that can be cut.

use super::namespace::run;
use super::outside::{Outside, PATIENCE, SERVER, SERVER_V6};
use std::fs;
use std::io::Read;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

/// The link goes and comes for each connection to here, which is closed when it is there again.
const CUTTER: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 9002);

impl Outside {
    /// As [`Self::start`], with no servers but those of files and hashes.
    pub(super) fn start_behind_a_link() -> Self {
        let mut outside = Self::host();
        let far = outside.machine().to_string();
        run(&format!("ip link set far netns {far}"));
        let there = ["nsenter", "-t", &far, "-n"];
        for line in [
            "link set lo up",
            "address add 192.0.2.254/24 dev far",
            &format!("address add {SERVER}/32 dev far"),
            "address add 2001:db8::2/64 dev far nodad",
            "address add fe80::1/64 dev far nodad",
            &format!("address add {SERVER_V6}/128 dev far nodad"),
            "link set far up",
        ] {
            run(&format!("{} ip {line}", there.join(" ")));
        }
        // Otherwise the host's address goes with the link.
        fs::write("/proc/sys/net/ipv6/conf/outside/keep_addr_on_down", "1").expect("a setting");
        Self::connect();
        outside.serve_files(&there);
        let cutter = TcpListener::bind(CUTTER).expect("a port");
        thread::spawn(move || {
            for stream in cutter.incoming() {
                let _open = stream.expect("a connection");
                cut(&far);
            }
        });
        outside
    }

    /// The process of a machine that has no network.
    fn machine(&mut self) -> u32 {
        let mut machine = Command::new("unshare");
        machine.args(["-n", "sh", "-c", "echo; exec sleep 1000"]).stdin(Stdio::null());
        let mut machine = machine.stdout(Stdio::piped()).spawn().expect("unshare runs");
        let mut line = [0];
        machine.stdout.take().expect("a pipe").read_exact(&mut line).expect("it is there");
        let process = machine.id();
        self.own(machine);
        process
    }
}

/// Takes the link away until an end of a connection has tried in vain, twice, to reach the other.
fn cut(far: &str) {
    run("ip link set outside down");
    let ends = [
        "thread-self/net/tcp",
        "thread-self/net/tcp6",
        &format!("{far}/net/tcp"),
        &format!("{far}/net/tcp6"),
    ];
    let start = Instant::now();
    loop {
        let sockets = ends.map(|list| fs::read_to_string(format!("/proc/{list}")).expect("text"));
        if sockets.iter().any(|sockets| tries_in_vain(sockets)) {
            break;
        }
        if start.elapsed() > PATIENCE {
            // The script would wait for the rest of its transfer.
            eprintln!("nobody misses the link: {}", sockets.concat());
            std::process::exit(1);
        }
        thread::yield_now();
    }
    Outside::connect();
}

/// Whether a socket of a list like `/proc/net/tcp` is open and has sent something twice in vain.
fn tries_in_vain(sockets: &str) -> bool {
    sockets.lines().skip(1).any(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let [_, _, to, state, _, _, retransmits, _, probes, ..] = words[..] else { return false };
        let tries = u32::from_str_radix(retransmits, 16).unwrap_or_default()
            + probes.parse::<u32>().unwrap_or_default();
        // Loopback connections have no part in it.
        state == "01" && tries >= 2 && !to.starts_with("0100007F")
    })
}
