//! Namespaces in which an unprivileged user is root.

use nix::sched::{CloneFlags, unshare};
use rustix::process::{getegid, geteuid};
use std::fs;
use std::io;

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
    fs::write(path, text).map_err(|error| not_written(path, &error))
}

/// Why a file of the new namespace cannot be written. Where nobody has rights in a namespace that
/// he has made, it is made, and the first use of a right fails.
fn not_written(path: &str, error: &io::Error) -> String {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "; this user has no rights in a user namespace of his own: the administrator gives \
             them by `sysctl kernel.apparmor_restrict_unprivileged_userns=0`, or to this program \
             alone by a profile of AppArmor with `userns`"
        }
        _ => "",
    };
    format!("no user namespace: cannot write {path}: {error}{hint}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn a_namespace_without_rights_is_told_with_what_gives_them() {
        for refused in [Errno::ACCESS, Errno::PERM] {
            let why = not_written("/proc/self/setgroups", &refused.into());
            for part in ["/proc/self/setgroups", "apparmor_restrict_unprivileged_userns=0"] {
                assert!(why.contains(part) && !why.contains('\n'), "{why}");
            }
        }
        let why = not_written("/proc/self/uid_map", &Errno::INVAL.into());
        assert!(why.contains("uid_map") && !why.contains("AppArmor"), "{why}");
    }
}
