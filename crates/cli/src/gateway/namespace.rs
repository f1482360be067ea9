//! Namespaces of others: a TAP is made there, its addresses and routes are set, and this process
//! gets its descriptor.
//!
//! Only a process with one thread can join a user namespace (`setns(2)`), and it cannot leave it.
//! So the program runs itself once more, and that process ends when it has handed the device over.

use super::passing::{self, Message};
use super::routes;
use clap::Args as ClapArgs;
use neap::device::{LinkConfig, Tun, TunConfig, TunQueue, configure_link};
use nix::sched::{CloneFlags, setns};
use rustix::process::{
    DumpableBehavior, Signal, set_dumpable_behavior, set_parent_process_death_signal,
};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// Join a namespace, make a TAP there and hand it over; the standard input is the socket of the
/// other process
#[derive(ClapArgs, Clone, Debug)]
pub(crate) struct Args {
    /// What is to be done, as JSON
    plan: String,
}

/// The namespaces to join.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Namespaces {
    /// The user namespace, unless it is that of this process.
    pub(crate) user: Option<PathBuf>,
    /// The user namespace may be one that cannot be joined; then the rights of this process have to
    /// suffice.
    pub(crate) user_is_optional: bool,
    /// The network namespace; that of this process if there is none.
    pub(crate) network: Option<PathBuf>,
}

impl Namespaces {
    /// Those of a process.
    pub(crate) fn of_process(pid: u32) -> Self {
        let path = |kind: &str| Some(PathBuf::from(format!("/proc/{pid}/ns/{kind}")));
        Self { user: path("user"), user_is_optional: true, network: path("net") }
    }

    /// Joins them with the thread that calls, which is to be the only one if the user namespace is
    /// another one. Nobody in them has a right to look into this process, before it has joined them
    /// and afterwards.
    ///
    /// # Errors
    /// One line that names the namespace, or says that the process cannot be hidden.
    pub(crate) fn join(&self) -> Result<(), String> {
        // Root of a user namespace may reach the files of a process that joins it (CVE-2016-9962).
        hide()?;
        // Both are opened before: a path of /proc may not be readable from inside.
        let user = self.user.as_deref().map(open).transpose()?;
        let network = self.network.as_deref().map(open).transpose()?;
        if let (Some(user), Some(path)) = (user, &self.user)
            && !is_own(&user, "user")
        {
            match setns(user, CloneFlags::CLONE_NEWUSER) {
                Err(error) if !self.user_is_optional => {
                    return Err(format!("cannot join the user namespace {}: {error}", shown(path)));
                }
                _ => {}
            }
        }
        if let (Some(network), Some(path)) = (network, &self.network) {
            setns(network, CloneFlags::CLONE_NEWNET).map_err(|error| {
                format!("cannot join the network namespace {}: {error}", shown(path))
            })?;
        }
        // The rights of another user namespace may have set it back to `fs.suid_dumpable`.
        hide()
    }
}

/// Keeps this process, its files and its folders out of reach of those who have no rights outside
/// the user namespace of its program (`PR_SET_DUMPABLE`).
///
/// # Errors
/// One line that says so.
pub(crate) fn hide() -> Result<(), String> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|error| format!("cannot be kept from debuggers: {error}"))
}

fn open(path: &Path) -> Result<File, String> {
    File::open(path).map_err(|error| format!("cannot open the namespace {}: {error}", shown(path)))
}

fn shown(path: &Path) -> std::path::Display<'_> {
    path.display()
}

/// Whether a namespace is the one that this process is in, which cannot be joined once more.
fn is_own(namespace: &File, kind: &str) -> bool {
    let identity = |meta: fs::Metadata| (meta.dev(), meta.ino());
    let own = fs::metadata(format!("/proc/self/ns/{kind}")).map(identity);
    matches!((own, namespace.metadata().map(identity)), (Ok(own), Ok(that)) if own == that)
}

/// A TAP in a namespace, and what is set there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) namespaces: Namespaces,
    /// Name of the TAP, which is made if it is not there.
    pub(crate) interface: String,
    /// How it is set up; `None` leaves it as it is.
    pub(crate) link: Option<Link>,
}

/// The set-up of an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Link {
    /// MTU in bytes.
    pub(crate) mtu: u16,
    /// The Ethernet address; `None` leaves the one that the kernel has chosen.
    pub(crate) mac: Option<[u8; 6]>,
    /// Addresses with their prefix lengths. Those of IPv6 are left out where the kernel has no
    /// IPv6.
    pub(crate) addresses: Vec<(IpAddr, u8)>,
    /// Whether guests make addresses of IPv6 by themselves. They may use them at once: the gateway
    /// sees to it that nobody else has them.
    pub(crate) makes_v6: bool,
    /// Routers of the default routes.
    pub(crate) routers: Vec<IpAddr>,
}

/// Carries a plan out in a process of its own, and returns the TAP.
///
/// # Errors
/// One line that says what cannot be done there.
pub(crate) fn carry_out(plan: &Plan) -> Result<TunQueue, String> {
    let plan = serde_json::to_string(plan).map_err(|error| format!("a plan: {error}"))?;
    let failed = |error: io::Error| format!("the process that joins the namespace: {error}");
    let (socket, theirs) = passing::pair().map_err(failed)?;
    let mut child = Command::new("/proc/self/exe")
        // The name by which this process was called may be that of another program.
        .arg0("neap")
        .args([OsStr::new("gateway"), OsStr::new("join"), OsStr::new(&plan)])
        // Some variables are secrets of the gateway.
        .env_clear()
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .spawn()
        .map_err(failed)?;
    let answer = passing::receive(&socket);
    child.wait().map_err(failed)?;
    match answer.map_err(failed)? {
        Message::Device(device) => Ok(device),
        Message::Failed(why) => Err(why),
        _ => Err("the process that joins the namespace handed nothing over".to_owned()),
    }
}

/// What a gateway asks of its device: a TAP, or a TUN.
pub(crate) fn device(name: &str, is_tap: bool) -> TunConfig {
    TunConfig { name: Some(name.to_owned()), tap: is_tap, ..TunConfig::default() }
}

/// The process that joins the namespaces.
pub(crate) fn main(args: &Args) -> ExitCode {
    let socket = io::stdin();
    let told = match build(&args.plan) {
        Ok(device) => passing::send(&socket.as_fd(), &Message::Device(device)),
        Err(why) => passing::send(&socket.as_fd(), &Message::Failed(why)),
    };
    if told.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn build(plan: &str) -> Result<TunQueue, String> {
    let plan: Plan = serde_json::from_str(plan).map_err(|error| format!("the plan: {error}"))?;
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| format!("no signal at the end of the parent: {error}"))?;
    plan.namespaces.join()?;
    let tap = Tun::open(&device(&plan.interface, true)).map_err(|error| error.to_string())?;
    if let Some(link) = &plan.link {
        set_up(tap.name(), link)?;
    }
    Ok(tap.into_queues().remove(0))
}

/// Brings up the loopback and the interface, with its addresses and routes.
fn set_up(name: &str, link: &Link) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    configure_link("lo", &LinkConfig::default()).map_err(|error| text(&error))?;
    if let Some(mac) = link.mac {
        routes::set_mac(name, mac).map_err(|error| {
            format!("{name} does not take the Ethernet address {}: {error}", routes::show_mac(mac))
        })?;
    }
    let no_detection = format!("/proc/sys/net/ipv6/conf/{name}/accept_dad");
    let wants_v6 = link.makes_v6 || link.addresses.iter().any(|(address, _)| address.is_ipv6());
    let has_v6 = wants_v6 && fs::write(no_detection, "0").is_ok();
    let is_wanted = |address: &IpAddr| address.is_ipv4() || has_v6;
    let mut addresses = link.addresses.clone();
    addresses.retain(|(address, _)| is_wanted(address));
    let config = LinkConfig { addresses, mtu: Some(link.mtu), ..LinkConfig::default() };
    configure_link(name, &config).map_err(|error| text(&error))?;
    let index = routes::index_of(name).map_err(|error| format!("no interface {name}: {error}"))?;
    for &router in link.routers.iter().filter(|router| is_wanted(router)) {
        routes::set_default(router, index)
            .map_err(|error| format!("no route through {router}: {error}"))?;
    }
    Ok(())
}
