//! A tunnel from its beginning to its end.

use super::alive::Alive;
use super::doors::{self, AllDoors, Streams};
use super::health::Health;
use super::inspector::Inspector;
use super::notify::Notifier;
use super::{Args, Failure};
use crate::background::Waiting;
use crate::gateway::tunnel::{self, Prepared, Settings, Tunnel};
use crate::gateway::watching::Watched;
use crate::gateway::{confine, raise_file_limit, refused};
use neap::control::Application;
use neap::metrics::{self, Metrics, MetricsAddress, MetricsListener};
use neap_gateway::Transport;
use neap_wireguard::file::{DoorKind, File, HostPort};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Where wireproxy looks for its file.
const DEFAULT_FILE: &str = "/etc/wireproxy/wireproxy.conf";
/// The same in the home of the user.
const FILE_AT_HOME: &str = ".config/wireproxy.conf";

fn failed(error: &dyn std::fmt::Display) -> Failure {
    Failure::System(error.to_string())
}

pub(super) fn main(args: &Args) -> Result<ExitCode, Failure> {
    // Before there are keys in memory.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(|error| failed(&error))?;
    args.watching.start_log(args.silent);
    let file = read(&path(args)?)?;
    // Before anything is opened, as with `-n`.
    doors::check(&file).map_err(Failure::Arguments)?;
    if args.configtest {
        // The status says the same where nobody reads it.
        let _ = writeln!(std::io::stdout(), "Config OK");
        return Ok(ExitCode::SUCCESS);
    }
    let waiting = args.in_background.then(Waiting::new).transpose();
    let waiting = waiting.map_err(|error| failed(&error))?;
    let signals = Signals::new([SIGHUP, SIGINT, SIGTERM, SIGQUIT]);
    let signals = signals.map_err(|error| failed(&error))?;
    let notifier = Notifier::new();
    let (running, served) = Running::start(args, file, signals.handle())?;
    if let Some(waiting) = waiting {
        waiting.tell().map_err(|error| failed(&error))?;
    }
    notifier.ready();
    let done = running.run(signals, Duration::from_secs(args.drain.into()), &notifier);
    tracing::info!("the tunnel has ended");
    drop(served);
    done
}

/// The path of the file.
fn path(args: &Args) -> Result<PathBuf, Failure> {
    if let Some(path) = &args.config {
        return Ok(path.clone());
    }
    let at_home = std::env::var_os("HOME").map(|home| Path::new(&home).join(FILE_AT_HOME));
    let usual = [Some(PathBuf::from(DEFAULT_FILE)), at_home];
    usual.into_iter().flatten().find(|path| path.exists()).ok_or_else(|| {
        Failure::Arguments(format!("there is no {DEFAULT_FILE}: name a file with -c FILE"))
    })
}

/// Reads a file with doors, and tells of what the user should know.
fn read(path: &Path) -> Result<File, Failure> {
    let file = tunnel::read(path)?;
    if file.interface.dns.is_empty() {
        warn_of_names(&file);
    }
    Ok(file)
}

/// Tells of the names in a file that have no address without DNS. That is not so of targets in the
/// network of this machine.
fn warn_of_names(file: &File) {
    let is_proxy = |kind: &DoorKind| {
        matches!(kind, DoorKind::Socks5 { .. } | DoorKind::Http { .. } | DoorKind::Sni { .. })
    };
    if file.doors.iter().any(|door| is_proxy(&door.kind)) {
        let path = file.tunnel_path.as_ref().unwrap_or(&file.path).display();
        tracing::warn!("{path}: [Interface] DNS: without it no name has an address in the tunnel");
    }
    for door in &file.doors {
        let (DoorKind::Client { target, .. }
        | DoorKind::Stdio { target }
        | DoorKind::Udp { target, .. }) = &door.kind
        else {
            continue;
        };
        if doors::needs_resolver(target) {
            let place = doors::place_of(file, (door.line, door.name));
            let why = "has no address without DNS in [Interface]";
            tracing::warn!("{place} Target: {target} {why}");
        }
    }
}

/// What is served for others, until it is dropped.
type Served = (Watched, Option<Metrics>);

/// A tunnel with its doors.
struct Running {
    tunnel: Tunnel,
    alive: Alive,
    doors: AllDoors,
    /// Why the doors have failed.
    failure: Arc<Mutex<Option<String>>>,
}

impl Running {
    /// Starts everything, and gives up what is not needed. `signals` ends the wait for signals.
    fn start(args: &Args, file: File, signals: Handle) -> Result<(Self, Served), Failure> {
        let listening = args.watching.listen(&tunnel::name(&file.path))?;
        let pages = args.info.as_ref().map(listen_for_pages).transpose()?;
        let limit = raise_file_limit().map_err(Failure::System)?;
        doors::warn_of_targets(&file);
        let settings = Settings {
            congestion: args.congestion.clone(),
            sealers: args.sealers,
            // Files of wireproxy have marks, which it ignores.
            may_lack_mark: true,
            warns_of_buffers: true,
        };
        let prepared = Prepared::open(file, &settings)?;
        let mut needs = prepared.needs();
        needs.readable = prepared.folders();
        needs.sockets_in = listening.folders();
        confine::confine(&needs, |what| tracing::warn!("{what}")).map_err(Failure::System)?;
        let tunnel = prepared.start()?;
        let failure = Arc::<Mutex<Option<String>>>::default();
        let told = failure.clone();
        let ended = move |done: Result<(), String>| {
            *told.lock().unwrap_or_else(PoisonError::into_inner) = done.err();
            signals.close();
        };
        let doors = AllDoors::start(tunnel.stack.clone(), limit / 4 * 3, Box::new(ended));
        let mut doors = doors.map_err(Failure::System)?;
        let streams = if args.in_background { Streams::LeftOut } else { Streams::Free };
        doors.serve(&tunnel.file, streams).map_err(|lines| Failure::System(lines.join("\n")))?;
        let alive = Alive::new().map_err(|error| failed(&error))?;
        alive.set(&tunnel.file.interface);
        alive.watch(&tunnel.stack).map_err(|error| failed(&error))?;
        let inspector = Inspector { tunnel: tunnel.shown(), doors: doors.inspector() };
        let inspector: Arc<dyn Application> = Arc::new(inspector);
        let watched = listening.serve(&tunnel.stack, inspector.clone(), inspector)?;
        let health = Health { handle: tunnel.handle.clone(), alive: alive.clone() };
        let pages = pages.map(|pages| pages.serve_pages(Arc::new(health)));
        let pages = pages.transpose().map_err(|error| failed(&error))?;
        let port = tunnel.handle.status().listen_port;
        tracing::info!(port, peers = tunnel.file.peers.len(), "the tunnel is there");
        Ok((Self { tunnel, alive, doors, failure }, (watched, pages)))
    }

    /// Waits for signals: a new file, or the end.
    fn run(
        mut self,
        mut signals: Signals,
        drain: Duration,
        notifier: &Notifier,
    ) -> Result<ExitCode, Failure> {
        while let Some(signal) = signals.forever().next() {
            if signal != SIGHUP {
                break;
            }
            notifier.reloading();
            match self.reload() {
                Ok(()) => tracing::info!("the file was read again"),
                Err(why) => tracing::error!("{why}"),
            }
            notifier.ready();
        }
        notifier.stopping();
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(why) = failure {
            let doors = &self.tunnel.file.doors;
            let is_alone = matches!(doors.as_slice(), [door] if doors::is_stdio(&door.kind));
            let what = if is_alone { "[STDIOTunnel]" } else { "the doors" };
            self.end();
            return Err(Failure::System(format!("{what}: {why}")));
        }
        if drain.is_zero() || signals.is_closed() {
            self.end();
            return Ok(ExitCode::SUCCESS);
        }
        self.doors.drain(drain);
        let handle = self.doors.handle();
        thread::spawn(move || {
            if signals.forever().any(|signal| signal != SIGHUP) {
                handle.stop();
            }
        });
        self.doors.join();
        Ok(ExitCode::SUCCESS)
    }

    /// Resets all connections.
    fn end(self) {
        self.doors.handle().stop();
        self.doors.join();
    }

    /// Reads the file again. What it has not changed goes on.
    ///
    /// # Errors
    /// What is wrong with the file, and then nothing has changed; or lines about what cannot be as
    /// the file says, while all else is.
    fn reload(&mut self) -> Result<(), String> {
        let file = self.tunnel.accept(read(&self.tunnel.file.path))?;
        let port = file.interface.listen_port;
        if port != self.tunnel.file.interface.listen_port {
            self.doors.give_up(port);
        }
        let changed = self.tunnel.change(file);
        self.alive.set(&self.tunnel.file.interface);
        let served = self.doors.serve(&self.tunnel.file, Streams::LeftOut);
        let failures: Vec<_> = [changed, served].into_iter().filter_map(Result::err).collect();
        if failures.is_empty() { Ok(()) } else { Err(failures.concat().join("\n")) }
    }
}

/// A socket for the pages of `-i`.
fn listen_for_pages(address: &HostPort) -> Result<MetricsListener, Failure> {
    let wrong = |why: String| Failure::System(format!("--info {address}: {why}"));
    let place = doors::listen(address).map_err(wrong)?;
    metrics::listen(&MetricsAddress::Tcp(place))
        .map_err(|error| wrong(refused::port(Transport::Tcp, place, &error)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use neap_wireguard::PrivateKey;
    use std::net::UdpSocket;

    /// UDP ports that nobody has.
    fn free_ports<const N: usize>() -> [u16; N] {
        let sockets = [(); N].map(|()| UdpSocket::bind("0.0.0.0:0").expect("a port"));
        sockets.map(|socket| socket.local_addr().expect("an address").port())
    }

    fn is_free(port: u16) -> bool {
        UdpSocket::bind(("127.0.0.1", port)).is_ok()
    }

    /// Writes a file of a tunnel at a UDP port, with a door at each of others.
    fn write(path: &Path, listen_port: u16, doors: &[u16]) {
        let other = PrivateKey::from([2; 32]).public_key();
        let own = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";
        let doors = doors.iter().map(|port| {
            format!("[UDPProxyTunnel]\nBindAddress = 127.0.0.1:{port}\nTarget = 10.0.0.2:53\n")
        });
        let text = format!(
            "[Interface]\nPrivateKey = {own}\nAddress = 10.0.0.1\nListenPort = {listen_port}\n\
             [Peer]\nPublicKey = {other}\nAllowedIPs = 10.0.0.2/32\n{}",
            doors.collect::<String>()
        );
        std::fs::write(path, text).expect("a file");
    }

    fn start(path: &Path) -> Running {
        let file = File::read(path).expect("a file that is understood");
        let tunnel = Prepared::open(file, &Settings::default()).and_then(Prepared::start);
        let tunnel = tunnel.unwrap_or_else(|_| panic!("a tunnel"));
        let doors = AllDoors::start(tunnel.stack.clone(), 10, Box::new(|_| ()));
        let mut doors = doors.expect("a thread");
        doors.serve(&tunnel.file, Streams::LeftOut).expect("doors");
        Running { tunnel, alive: Alive::new().expect("a poller"), doors, failure: Arc::default() }
    }

    #[test]
    fn doors_and_the_interface_take_ports_of_each_other() {
        let path = std::env::temp_dir().join(format!("neap-trade-{}", std::process::id()));
        let [a, b, c] = free_ports();
        write(&path, a, &[b]);
        let mut running = start(&path);
        let port = |running: &Running| running.tunnel.handle.status().listen_port;
        for (listen_port, doors, free) in
            [(b, &[a][..], c), (a, &[b], c), (b, &[c], a), (c, &[], a), (b, &[a, c], 0)]
        {
            write(&path, listen_port, doors);
            assert_eq!(running.reload(), Ok(()), "{listen_port} {doors:?}");
            assert_eq!(port(&running), listen_port);
            assert!(doors.iter().all(|&port| !is_free(port)), "{listen_port} {doors:?}");
            assert!(free == 0 || is_free(free), "{listen_port} {doors:?}");
        }
        // Somebody else has the port of a door at another address.
        let taken = UdpSocket::bind(("127.0.0.2", a)).expect("a port");
        write(&path, a, &[b, c]);
        let why = running.reload().expect_err("the port is taken");
        assert!(why.contains("[Interface] ListenPort"), "{why}");
        assert_eq!(port(&running), b);
        assert!(!is_free(a) && !is_free(c), "the door is as it was: {why}");
        drop(taken);
        assert_eq!(running.reload(), Ok(()));
        assert_eq!(port(&running), a);
        assert!(!is_free(b) && !is_free(c));
        // A door that cannot be is none, also where its place was given up for the interface.
        write(&path, c, &[b]);
        let text = std::fs::read_to_string(&path).expect("a file");
        let text = text.replace("127.0.0.1:", "[fe80::1%nosuch]:");
        std::fs::write(&path, text).expect("a file");
        running.reload().expect_err("there is no such link");
        assert_eq!(port(&running), c);
        write(&path, a, &[b, c]);
        assert_eq!(running.reload(), Ok(()));
        assert!(!is_free(b) && !is_free(c));
        std::fs::remove_file(&path).expect("it was there");
        running.end();
    }
}
