//! The gateway that is attacked, as the tests see it.

use crate::common::{Family, run};
use crate::ground::DESCRIPTORS;
use crate::host::Host;
use crate::world::{self, MARK};
use neap::control::{self, Endpoint};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

/// Ports of the servers of the world.
pub(crate) const ECHO: u16 = 7;
pub(crate) const DISCARD: u16 = 9;
pub(crate) const DAYTIME: u16 = 13;
pub(crate) const SOURCE: u16 = 19;

/// A gateway with its world. Both end when this is dropped.
pub(crate) struct Victim {
    process: Child,
    control: Endpoint,
    _world: Host,
}

impl Victim {
    /// Starts a gateway; `descriptors` is the most that it may have open.
    pub(crate) fn start(family: Family, descriptors: u32) -> Self {
        let world = world::make(family);
        let own = family.text("10.0.2.2", "fd00:2::2");
        let limited = format!("ulimit -n {descriptors} && exec \"$0\" \"$@\"");
        let mut process = Command::new("sh")
            .args(["-c", &limited, env!("CARGO_BIN_EXE_neap"), "gateway", "tun", "--tun", "t0"])
            .args(["--address", &family.cidr(own)])
            .args(["--host-address", &family.cidr(family.kernel())])
            .args(["--mark", MARK, "--bind", "outside", "--log", "info"])
            .args(["--dns", &world::resolver(family).to_string()])
            // Memory that is free goes back to the system at once, so that it can be measured:
            // buffers of data are mapped each for itself, and leave no holes in the heap.
            .env("MALLOC_ARENA_MAX", "1")
            .env("MALLOC_TRIM_THRESHOLD_", "65536")
            .env("MALLOC_MMAP_THRESHOLD_", "16384")
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("neap runs");
        let mut log = BufReader::new(process.stderr.take().expect("a pipe")).lines();
        assert!(log.any(|line| line.expect("text").contains("gateway started")), "it has ended");
        thread::spawn(move || log.for_each(drop));
        let endpoints = control::endpoints().expect("there is one");
        let control = endpoints.into_iter().find(|one| one.pid == process.id());
        Self { process, control: control.expect("the gateway's own"), _world: world }
    }

    /// Any gateway takes what goes to addresses of others.
    pub(crate) fn gateway(family: Family) -> Self {
        Self::start(family, DESCRIPTORS)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Figures of the gateway, by name; what is not there is 0. `connections` are those of its
    /// stack, `waiting` the flows beyond one.
    pub(crate) fn report(&mut self) -> BTreeMap<String, u64> {
        let sockets = self.control.sockets().expect("it answers");
        let is_open = |state: &str| !["TIME-WAIT", "LISTEN", "UNCONN"].contains(&state);
        // Datagrams and pings are connections of no stack.
        let of_tcp = sockets.iter().filter(|socket| socket.netid == "tcp");
        let open = of_tcp.filter(|socket| is_open(&socket.state)).count();
        let counters = self.control.counters().expect("it answers");
        let mut figures: BTreeMap<_, _> =
            counters.into_iter().map(|one| (one.name, one.value)).filter(|one| one.1 > 0).collect();
        let flows = figures.get("GatewayFlows").copied().unwrap_or_default();
        figures.insert("connections".to_owned(), open as u64);
        figures.insert("waiting".to_owned(), flows.saturating_sub(1));
        figures
    }

    /// Time that the processor has worked for the gateway, its system calls included.
    pub(crate) fn cpu(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()));
        let stat = stat.expect("the gateway lives");
        // The name may hold blanks; it ends with the last parenthesis.
        let (_, fields) = stat.rsplit_once(')').expect("a name");
        let ticks = fields.split_whitespace().skip(11).take(2);
        let ticks: u64 = ticks.map(|field| field.parse::<u64>().expect("a number")).sum();
        Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // So it removes its socket.
        run(&format!("kill -TERM {}", self.pid()));
        let _ = self.process.wait();
    }
}
