//! The gateway that is attacked, as the tests see it.

use crate::common::{Family, run};
use crate::ground::DESCRIPTORS;
use crate::host::Host;
use crate::mac;
use crate::world::{self, MARK};
use neap::control::{self, Endpoint};
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

/// Ports of the servers of the world.
pub(crate) const ECHO: u16 = 7;
pub(crate) const DISCARD: u16 = 9;
pub(crate) const DAYTIME: u16 = 13;
pub(crate) const SOURCE: u16 = 19;

/// Runs a program with few descriptors.
const LIMITED: &str = "ulimit -n \"$DESCRIPTORS\" && exec \"$0\" \"$@\"";
/// Name of the guest's interface.
pub(crate) const TAP: &str = "tap0";

/// A gateway with its world. Both end when this is dropped.
pub(crate) struct Victim {
    process: Child,
    control: Endpoint,
    pub(crate) world: Host,
    _links: Option<Links>,
}

/// A link to a control socket in another folder, which goes with that.
struct Links {
    runtime: PathBuf,
    link: PathBuf,
}

impl Links {
    fn new(runtime: PathBuf, pid: u32) -> Self {
        let (name, folder) = (format!("{pid}-pasta.sock"), control::folder());
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&folder);
        made.expect("a folder of the user");
        let link = folder.join(&name);
        symlink(runtime.join("neap").join(name), &link).expect("room");
        Self { runtime, link }
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.link);
        let _ = fs::remove_dir_all(&self.runtime);
    }
}

impl Victim {
    /// Starts a gateway; `descriptors` is the most that it may have open.
    pub(crate) fn start(family: Family, descriptors: u32) -> Self {
        let world = world::make(family);
        let own = family.text("10.0.2.2", "fd00:2::2");
        let mut command = Command::new("sh");
        command
            .args(["-c", LIMITED, env!("CARGO_BIN_EXE_neap"), "gateway", "tun", "--tun", "t0"])
            .args(["--address", &family.cidr(own)])
            .args(["--host-address", &family.cidr(family.kernel())])
            .args(["--mark", MARK, "--bind", "outside", "--log", "info"])
            .args(["--dns", &world::resolver(family).to_string()]);
        Self::spawn(command, descriptors, world, None)
    }

    /// Starts a gateway as `pasta` has it, for the namespace of `guest`: behind a TAP, where it
    /// answers for all addresses. It publishes `ports`.
    pub(crate) fn of_tap(family: Family, guest: &Host, ports: &str) -> Self {
        let world = world::make(family);
        world::make_default(family);
        let mut command = Command::new("sh");
        command
            .args(["-c", LIMITED, env!("CARGO_BIN_EXE_neap"), "pasta", "--foreground"])
            .args(["--runas", "0", "--log", "info", "-M", &mac::show(mac::GATEWAY), "-I", TAP])
            .args(["-t", ports, "-u", "none", "-T", "none", "-U", "none"])
            .arg(guest.pid().to_string());
        // Such a gateway has a control socket in a folder of the user alone, and this process may
        // have none.
        let runtime = std::env::temp_dir().join(format!("neap-hard-{}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&runtime).expect("a folder");
        command.env("XDG_RUNTIME_DIR", &runtime);
        Self::spawn(command, DESCRIPTORS, world, Some(runtime))
    }

    fn spawn(
        mut command: Command,
        descriptors: u32,
        world: Host,
        runtime: Option<PathBuf>,
    ) -> Self {
        let mut process = command
            .env("DESCRIPTORS", descriptors.to_string())
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
        let links = runtime.map(|runtime| Links::new(runtime, process.id()));
        let endpoints = control::endpoints().expect("there is one");
        let control = endpoints.into_iter().find(|one| one.pid == process.id());
        Self { process, control: control.expect("the gateway's own"), world, _links: links }
    }

    /// Any gateway takes what goes to addresses of others.
    pub(crate) fn gateway(family: Family) -> Self {
        Self::start(family, DESCRIPTORS)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Descriptors of the gateway.
    pub(crate) fn descriptors(pid: u32) -> usize {
        fs::read_dir(format!("/proc/{pid}/fd")).expect("the gateway lives").count()
    }

    /// Figures of the gateway, by name; what is not there is 0. `connections` are those of its
    /// stack, `state.CLOSING` and the like those in a state, `waiting` the flows beyond one.
    pub(crate) fn report(&mut self) -> BTreeMap<String, u64> {
        let sockets = self.control.sockets().expect("it answers");
        let is_open = |state: &str| !["TIME-WAIT", "LISTEN", "UNCONN"].contains(&state);
        // Datagrams and pings are connections of no stack.
        let of_tcp = || sockets.iter().filter(|socket| socket.netid == "tcp");
        let open = of_tcp().filter(|socket| is_open(&socket.state)).count();
        let counters = self.control.counters().expect("it answers");
        let mut figures: BTreeMap<_, _> =
            counters.into_iter().map(|one| (one.name, one.value)).filter(|one| one.1 > 0).collect();
        let flows = figures.get("GatewayFlows").copied().unwrap_or_default();
        figures.insert("connections".to_owned(), open as u64);
        for socket in of_tcp() {
            *figures.entry(format!("state.{}", socket.state)).or_default() += 1;
        }
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
