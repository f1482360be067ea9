//! The network from its beginning to its end.

use super::api::Api;
use super::arguments::{Options, Target};
use super::descriptors::inherited;
use super::outbound::outbound;
use super::{Failure, NAME};
use crate::gateway::command::not_ignored;
use crate::gateway::confine::{Needs, confine};
use crate::gateway::ending;
use crate::gateway::shown::{Shown, control_socket};
use crate::gateway::watching;
use crate::gateway::way_out::Way;
use crate::gateway::{DeviceEnd, face, namespace, raise_file_limit, tell_of_echo};
use crate::standard_error::say;
use neap::Stack;
use neap::device::{Tun, TunQueue};
use neap_gateway::{Gateway, GatewayConfig, GatewayHandle, Policy, Resolver, ResolversFile};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::thread::CapabilitySet;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

pub(super) fn main(options: &Options) -> Result<(), Failure> {
    let take =
        |name: &str, number: Option<i32>| number.map(|number| inherited(name, number)).transpose();
    let ready = take("--ready-fd", options.ready_fd)?;
    let exit = take("--exit-fd", options.exit_fd)?;
    let outbound = outbound(options.outbound_v4.as_deref(), options.outbound_v6.as_deref())?;
    face::start_log(options.own.level().unwrap_or(face::LEVEL), tell);
    let limit = raise_file_limit().map_err(Failure::System)?;
    let mut config = config(options, limit)?;
    let of_user = |name: &str| control_socket(name, true);
    let has_dns = options.network.has_dns;
    let way = options.own.way_out.open(outbound, has_dns, &mut config, of_user)?;
    let device = device(options)?;
    let api = options.api_socket.as_deref().map(Api::listen).transpose()?;
    let signals =
        Signals::new(not_ignored(&[SIGHUP, SIGINT, SIGTERM])).map_err(system("signals"))?;
    let shown = Shown::listen(NAME, true, options.own.metrics.as_ref())?;

    let failed = |error: &dyn std::fmt::Display| Failure::System(error.to_string());
    let tap = Tun::from_queues(vec![device], Some(options.network.mtu));
    let tap = tap.map_err(|error| failed(&error))?;
    let stack = Stack::builder().interface(options.network.interface(tap.into_device()));
    config.resolvers_file = give_up(options, &config, &way, shown.folders())?;
    let (upstream, tunnel) = way.start()?;
    let stack = Arc::new(stack.build().map_err(|error| failed(&error))?);
    let mut gateway =
        Gateway::new(stack.clone(), upstream, config).map_err(system("the gateway"))?;
    if options.own.way_out.is_direct() {
        tell_of_echo(&gateway, tell);
    }

    let handle = gateway.handle();
    DeviceEnd::watch(&stack, handle.clone()).map_err(system("the device"))?;
    let (shown, rest) = shown.serve(&stack, &gateway, tunnel)?;
    let at_once = options.own.ending.by(signals, handle.clone(), rest.tunnel());
    let at_once = at_once.map_err(system("a thread"))?;
    if let Some(exit) = exit {
        watch_exit(exit, handle.clone());
    }
    let socket = api.map(|api| api.serve(handle, &options.network));
    if let Some(ready) = ready {
        // Nobody may wait for it any more.
        let _ = File::from(ready).write_all(b"1");
    }
    gateway.run().map_err(system("the gateway"))?;
    drop((gateway, socket, shown));
    rest.send(Instant::now() + ending::TIME, at_once);
    Ok(())
}

fn system(what: &'static str) -> impl Fn(io::Error) -> Failure {
    move |error| Failure::System(format!("{what}: {error}"))
}

fn tell(line: &str) {
    say(&format_args!("{NAME}: {line}"));
}

/// The settings of the gateway, with so many descriptors for flows.
fn config(options: &Options, limit: usize) -> Result<GatewayConfig, Failure> {
    let mut config = GatewayConfig::default();
    // An upstream would take what stands for the host for addresses of its own.
    let may_reach_host = !options.disable_host_loopback && options.own.way_out.is_direct();
    config.policy = if may_reach_host { Policy::default() } else { Policy::without_host() };
    options.network.restrict(&mut config.policy);
    options.own.limits.apply(&mut config, limit).map_err(Failure::Arguments)?;
    config.translations = options.network.translations();
    config.own_addresses = options.network.own_addresses().iter().map(|own| own.ip).collect();
    config.dhcp = Some(options.network.dhcp());
    Ok(config)
}

/// Gives up what is not needed, as [`confine`]. Rights belong to threads, so this is while there is
/// one.
fn give_up(
    options: &Options,
    config: &GatewayConfig,
    way: &Way,
    mut sockets_in: Vec<PathBuf>,
) -> Result<Option<Arc<dyn ResolversFile>>, Failure> {
    let mut readable = Vec::new();
    // The rights hold for all of a folder, which is too much for a sandbox.
    if !options.enable_sandbox {
        let path = options.api_socket.as_deref();
        sockets_in.extend(path.and_then(watching::folder_of));
        readable = way.folders();
    }
    // Ports are published while the network is there.
    let capabilities = CapabilitySet::NET_BIND_SERVICE;
    let resolvers = options.network.has_dns && config.resolver == Resolver::Host;
    let mut needs = Needs { capabilities, resolvers, readable, sockets_in, ..Needs::default() };
    way.add_needs(&mut needs);
    confine(&needs, tell).map_err(Failure::System)
}

/// The TAP of the guest.
fn device(options: &Options) -> Result<TunQueue, Failure> {
    use namespace::{Namespaces, Plan, carry_out};
    let (mut namespaces, interface) = match &options.target {
        Target::TapFd(number) => return inherited("FD", *number).map(TunQueue::from),
        Target::Pid { pid, tap } => (Namespaces::of_process(*pid), tap.clone()),
        Target::Path { path, tap } => {
            let network = Some(path.clone());
            (Namespaces { network, ..Namespaces::default() }, tap.clone())
        }
    };
    if let Some(path) = &options.user_namespace {
        namespaces.user = Some(path.clone());
        namespaces.user_is_optional = false;
    }
    let link = options.configure.then(|| options.network.link(options.mac));
    carry_out(&Plan { namespaces, interface, link }).map_err(Failure::System)
}

/// Ends the run when the other end of a pipe is closed.
fn watch_exit(exit: OwnedFd, handle: GatewayHandle) {
    thread::spawn(move || {
        // An end that is closed is reported without being asked for (`POLLHUP`, `POLLERR`).
        let mut polled = [PollFd::new(&exit, PollFlags::empty())];
        while let Err(rustix::io::Errno::INTR) = poll(&mut polled, None) {}
        handle.stop();
    });
}
