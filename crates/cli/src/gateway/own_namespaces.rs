//! Namespaces in which an unprivileged user is root.

use nix::sched::{CloneFlags, unshare};
use rustix::process::{getegid, geteuid};
use std::fs;

/// Makes namespaces of users, networks, mounts and processes, and those of `more`, and enters
/// them; that of processes is entered by the next child. The user is root in them, and nobody else
/// is there.
///
/// # Errors
/// What the machine refuses, and what its administrator can do about it.
pub(crate) fn make(more: CloneFlags) -> Result<(), String> {
    let (user, group) = (geteuid(), getegid());
    let flags = CloneFlags::CLONE_NEWUSER
        | CloneFlags::CLONE_NEWNET
        | CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWPID;
    unshare(flags | more).map_err(|error| {
        format!(
            "no user namespace: {error}; the administrator allows them by \
             `sysctl user.max_user_namespaces=10000`, and where there is \
             `kernel.unprivileged_userns_clone` by setting it to 1"
        )
    })?;
    // Supplementary groups could otherwise be given up, and with them what they forbid.
    write("/proc/self/setgroups", "deny")?;
    write("/proc/self/uid_map", &format!("0 {} 1", user.as_raw()))?;
    write("/proc/self/gid_map", &format!("0 {} 1", group.as_raw()))
}

fn write(path: &str, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("cannot write {path}: {error}"))
}
