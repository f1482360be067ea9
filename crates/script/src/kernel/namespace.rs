//! The network namespace of this process, prepared for a script.

use crate::cursor::SyntaxError;
use crate::host::HostFailure;
use crate::report::Failure;
use crate::settings::Settings;
use core::fmt::Display;
use neap_tcp::config::Config;
use std::process::Command;

/// The interface of the script.
pub(super) const INTERFACE: &str = "tun0";

/// The sysctl that is not set: a namespace may not have every controller as its default.
const CONGESTION_SYSCTL: &str = "net.ipv4.tcp_congestion_control";

pub(super) fn failure(what: &str, error: impl Display) -> HostFailure {
    HostFailure(format!("{what}: {error}"))
}

/// Runs a program with arguments that have no blanks in them. The error is what it said.
fn run(program: &str, arguments: &str) -> Result<(), HostFailure> {
    let output = Command::new(program)
        .args(arguments.split(' '))
        .output()
        .map_err(|error| failure(program, error))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(failure(arguments, String::from_utf8_lossy(&output.stderr).trim())),
    }
}

fn write_sysctl(name: &str, value: &str) -> std::io::Result<()> {
    std::fs::write(format!("/proc/sys/{}", name.replace('.', "/")), value)
}

/// Gives the namespace the settings that neap has, as far as it has its own, and the script's.
fn set_sysctls(settings: &Settings) -> Result<(), Failure> {
    let config = Config::default();
    for name in
        Config::sysctls().iter().map(|sysctl| sysctl.name).filter(|name| name.starts_with("net."))
    {
        if let Some(value) = config.get(name) {
            // What belongs to the machine, not to a namespace, cannot be set here.
            let _ = write_sysctl(name, &value);
        }
    }
    write_sysctl("net.ipv4.tcp_no_metrics_save", "1").map_err(|error| failure("sysctl", error))?;
    let without_v6 = if settings.is_v6 || settings.is_mapped { "0" } else { "1" };
    // A kernel without IPv6 has nothing to turn off.
    let _ = write_sysctl("net.ipv6.conf.all.disable_ipv6", without_v6);
    let is_linux = |name: &str| name.starts_with("net.") && name != CONGESTION_SYSCTL;
    for sysctl in settings.sysctls.iter().filter(|sysctl| is_linux(&sysctl.name)) {
        let bad = |error| SyntaxError { at: sysctl.at, what: format!("{}: {error}", sysctl.name) };
        write_sysctl(&sysctl.name, &sysctl.value).map_err(bad)?;
    }
    Ok(())
}

/// Sets sysctls, and brings up the loopback and the interface of the script, which is there
/// already.
///
/// # Errors
/// [`Failure::Syntax`] for a sysctl that the system refuses, [`Failure::Host`] for anything else
/// that it refuses.
pub(super) fn prepare(settings: &Settings) -> Result<(), Failure> {
    set_sysctls(settings)?;
    run("ip", "link set lo up")?;
    run("ip", &format!("link set {INTERFACE} mtu {} up", settings.mtu))?;
    if let Some(qdisc) = &settings.qdisc_words {
        run("tc", &format!("qdisc replace dev {INTERFACE} root {qdisc}"))?;
    }
    let prefix = if settings.is_v6 { "64 nodad" } else { "16" };
    run("ip", &format!("address add {}/{prefix} dev {INTERFACE}", settings.local_ip))?;
    let family = if settings.is_v6 { "-6" } else { "-4" };
    run("ip", &format!("{family} route add default dev {INTERFACE}"))?;
    Ok(())
}

/// The congestion control that each socket of the script is told to use.
pub(super) fn congestion_control(settings: &Settings) -> String {
    match settings.sysctls.iter().rfind(|one| one.name == CONGESTION_SYSCTL) {
        Some(sysctl) => sysctl.value.clone(),
        None => Config::default().tcp_congestion_control,
    }
}

/// What a script needs and this kernel does not have, found out in the namespace of this process.
///
/// # Errors
/// [`HostFailure`] if it cannot be found out.
pub(super) fn what_is_missing(settings: &Settings) -> Result<Option<String>, HostFailure> {
    let Some(qdisc) = &settings.qdisc_words else { return Ok(None) };
    match run("tc", &format!("qdisc replace dev lo root {qdisc}")) {
        Ok(()) => Ok(None),
        // What the kernel says, and what tc says of a kernel that says no more than ENOENT.
        Err(HostFailure(said))
            if said.contains("qdisc kind is unknown") || said.contains("No such file") =>
        {
            Ok(Some(format!("this kernel has no qdisc {qdisc}")))
        }
        Err(failure) => Err(failure),
    }
}
