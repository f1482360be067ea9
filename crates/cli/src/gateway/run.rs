//! `neap gateway run`: a command in a sandbox whose network is this gateway. Any user may.

use super::command::exit_code;
use super::ending::{AfterCommand, AtOnce, Rest, finish};
use super::job::{self, Job, Signals};
use super::options::{MTU, Options};
use super::passing::{self, Message};
use super::ports::Ports;
use super::watching::{self, Watched, Watching};
use super::way_out::{self, Way, WayOut};
use super::{DeviceEnd, Failure, FileLimit, confine, give_up, sandbox};
use crate::until_the_end;
use clap::Args as ClapArgs;
use neap::device::{Tun, TunQueue};
use neap::{InterfaceConfig, Stack};
use neap_gateway::{Gateway, GatewayConfig, Resolver, Translation};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::SIGKILL;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// Run a command in a sandbox that reaches the network through this gateway
///
/// The command has a user and a network namespace of its own, in which it is root. It sees the
/// interface tap0 with the addresses 10.0.2.100 and fd00::100, the gateway 10.0.2.2 and the
/// resolver 10.0.2.3. Signals and the exit status are passed on.
#[derive(ClapArgs, Clone, Debug)]
pub(crate) struct Args {
    /// MTU of the sandbox
    #[arg(long, value_name = "BYTES", default_value_t = MTU)]
    #[arg(value_parser = clap::value_parser!(u16).range(1280..=65521))]
    mtu: u16,
    /// Make ports of this machine those of the sandbox: [ADDRESS:]HOST:GUEST[/udp], such as 8080:80
    /// or 8000-8010:9000-9010; may be repeated
    #[arg(short, long, value_name = "PORTS")]
    publish: Vec<Ports>,
    #[command(flatten)]
    after: AfterCommand,
    #[command(flatten)]
    way_out: WayOut,
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    watching: Watching,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(super) fn main(args: &Args) -> Result<ExitCode, Failure> {
    args.watching.start_log(false);
    let limit = FileLimit::own();
    let mut config = args.options.config()?;
    config.translations.push(Translation::resolver(sandbox::DNS));
    config.own_addresses = sandbox::gateway_addresses().iter().map(|own| own.ip).collect();
    let way = args.way_out.open(&mut config)?;
    let (socket, theirs) = passing::pair().map_err(system("a socket"))?;
    let signals = Signals::catch().map_err(system("signals"))?;
    // The host knows the names of its own domains alone.
    let search = if config.resolver == Resolver::Host { None } else { way.search() };
    let mut child = start(args, &way, search, theirs)?;
    limit.give_to(&child);
    let input = io::stdin().as_fd().try_clone_to_owned().map_err(system("the standard input"))?;
    let device = match passing::receive(&socket).map_err(system("the sandbox"))? {
        Message::Device(device) => device,
        Message::Failed(why) => {
            // It has nothing to do.
            let _ = child.wait();
            return Err(Failure::System(why));
        }
        _ => return Err(Failure::System("the sandbox did not hand over its device".to_owned())),
    };
    let served = serve(device, args, way, config, &child);
    let Served { mut gateway, has_ended, device_end, watched, rest } = match served {
        Ok(served) => served,
        Err(failure) => {
            let _ = child.kill();
            let _ = child.wait();
            return Err(failure);
        }
    };
    if args.way_out.is_direct() {
        super::tell_of_echo(&gateway, |what| tracing::warn!("{what}"));
    }
    let stop = gateway.handle();
    let engine = start_engine(move || gateway.run(), pid_of(&child)).map_err(system("a thread"))?;
    passing::send(&socket, &Message::Ready)
        .and_then(|()| passing::send(&socket, &Message::Input(input)))
        .map_err(system("the sandbox"))?;
    let at_once = AtOnce::new();
    if let Some(command) = pid_of(&child) {
        let (gateway, at_once, has_ended) = (stop.clone(), at_once.teller(), has_ended.clone());
        let end = move || {
            gateway.stop();
            // Nobody may wait for it.
            let _ = at_once.send(());
        };
        let job = Job { signals, socket, command, has_ended, end };
        job.watch().map_err(system("a thread"))?;
    }
    let status = child.wait().map_err(system("waiting for the command"))?;
    has_ended.store(true, SeqCst);
    let is_device_gone = device_end.has_come() && status.signal() == Some(SIGKILL);
    let until = Instant::now() + args.after.time();
    if is_device_gone {
        stop.stop();
    } else {
        finish(&stop, args.after.time());
    }
    // In the end it resets what is unfinished. Behind it the kernel would end the streams.
    let ended = engine.join().map_err(|_| Failure::System("the gateway ended".to_owned()))?;
    if is_device_gone {
        // The resets in a tunnel leave with the end of its stack.
        drop(rest);
        return Err(Failure::System(format!("the interface {} is gone", sandbox::INTERFACE)));
    }
    ended.map_err(|why| Failure::System(format!("the gateway: {why}")))?;
    rest.send(until, at_once);
    drop(watched);
    Ok(exit_code(status))
}

/// Runs the gateway by a thread. If it fails, the command has no network any more, and ends.
fn start_engine(
    gateway: impl FnOnce() -> io::Result<()> + Send + 'static,
    child: Option<Pid>,
) -> io::Result<JoinHandle<Result<(), String>>> {
    let run = move || {
        let ended = until_the_end::run(gateway);
        if let (Err(_), Some(child)) = (&ended, child) {
            // It may have ended meanwhile.
            let _ = kill_process(child, Signal::KILL);
        }
        ended
    };
    thread::Builder::new().name("gateway".to_owned()).spawn(run)
}

fn system(what: &'static str) -> impl Fn(io::Error) -> Failure {
    move |error| Failure::System(format!("{what}: {error}"))
}

/// Starts the other half, whose standard input is the socket. It knows no secrets of the way out.
fn start(
    args: &Args,
    way: &Way,
    search: Option<&[String]>,
    socket: OwnedFd,
) -> Result<Child, Failure> {
    let program = std::env::current_exe().map_err(system("this program"))?;
    let mut command = Command::new(program);
    for name in way.variables() {
        command.env_remove(name);
    }
    command.args(["gateway", "inside", "--mtu", &args.mtu.to_string()]);
    command.args(search.map(|domains| format!("--search={}", domains.join(" "))));
    command.arg("--").args(&args.command).stdin(Stdio::from(socket));
    job::start(&mut command).map_err(system("this program"))
}

/// A gateway on the device of the sandbox.
struct Served {
    gateway: Gateway,
    /// The command has ended.
    has_ended: Arc<AtomicBool>,
    device_end: DeviceEnd,
    watched: Watched,
    rest: Rest,
}

/// A stack on the device of the sandbox, and the gateway on it. The process has given up its rights
/// then.
fn serve(
    device: TunQueue,
    args: &Args,
    way: Way,
    mut config: GatewayConfig,
    child: &Child,
) -> Result<Served, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::System(error.to_string());
    let bind = |ports: &Ports| ports.bind(&config.outbound);
    let bound = args.publish.iter().map(bind).collect::<Result<Vec<_>, _>>()?;
    let listening = args.watching.listen(watching::NAME)?;
    let tap = Tun::from_queues(vec![device], Some(args.mtu)).map_err(|error| failed(&error))?;
    let mut interface =
        InterfaceConfig::new(tap.into_device()).any_destination(true).begin_unread();
    for address in sandbox::gateway_addresses() {
        interface = interface.address(address);
    }
    let stack = Stack::builder().interface(interface);
    let mut needs = confine::Needs {
        capabilities: confine::capabilities_of(&config.outbound),
        resolvers: config.resolver == Resolver::Host,
        sockets_in: listening.folders(),
        signals: pid_of(child),
        ..confine::Needs::default()
    };
    way.add_needs(&mut needs);
    config.resolvers_file = give_up(&needs)?;
    let (upstream, tunnel) = way.start()?;
    let stack = Arc::new(stack.build().map_err(|error| failed(&error))?);
    let mut gateway =
        Gateway::new(stack.clone(), upstream, config).map_err(|error| failed(&error))?;
    for (socket, publication) in bound.into_iter().flatten() {
        gateway.publish_socket(socket, publication).map_err(system("a published port"))?;
    }
    let (watched, rest) = way_out::serve(listening, &stack, &gateway, tunnel)?;
    let has_ended = Arc::<AtomicBool>::default();
    let device_end = end_with_device(&stack, pid_of(child), has_ended.clone());
    let device_end = device_end.map_err(system("the interface"))?;
    Ok(Served { gateway, has_ended, device_end, watched, rest })
}

/// A command whose interface is gone has no network any more, and ends. The gateway goes on until
/// then: the end of a command may end the interface, too, while its connections send the rest.
fn end_with_device(
    stack: &Stack,
    child: Option<Pid>,
    has_ended: Arc<AtomicBool>,
) -> io::Result<DeviceEnd> {
    DeviceEnd::watch_by(stack, move |end| {
        if let Some(child) = child.filter(|_| end.has_come() && !has_ended.load(SeqCst)) {
            // It may have ended meanwhile.
            let _ = kill_process(child, Signal::KILL);
        }
    })
}

fn pid_of(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_ends_with_its_gateway() {
        for panics in [false, true] {
            let mut child = Command::new("sleep").arg("1000").spawn().expect("sleep runs");
            let fails = move || match panics {
                true => panic!("a fault that a test has made"),
                false => Err(io::ErrorKind::OutOfMemory.into()),
            };
            let engine = start_engine(fails, pid_of(&child)).expect("a thread");
            let status = child.wait().expect("it ends");
            assert_eq!(status.signal(), Some(9));
            assert!(engine.join().expect("no panic").is_err());
        }
    }
}
