//! The folder /etc of a sandbox, in which the gateway is the resolver.
//!
//! A file that is mounted over the host's `resolv.conf` is lost when the host replaces its own: the
//! kernel takes mounts away from a name that is given to another file. So the whole folder is the
//! sandbox's, with links to what the host has in its own.

use super::sandbox;
use rustix::mount::{
    MountFlags, MountPropagationFlags, mount, mount_bind_recursive, mount_change, mount_move,
};
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

const FOLDER: &str = "/etc";
/// What names the resolver.
pub(super) const RESOLVER: &str = "resolv.conf";
/// Where the folder is made before it is put in its place. Nothing of it is on a disk.
const SCRATCH: &str = "/tmp";
/// The host's folder in that of the sandbox.
const OF_THE_HOST: &str = ".host";

/// Makes the gateway the resolver of the sandbox, in a mount namespace of its own.
///
/// # Errors
/// What the kernel says of mounts.
pub(super) fn use_resolver() -> io::Result<()> {
    // What is mounted here stays here.
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("tmpfs", SCRATCH, "tmpfs", flags, c"size=1m,mode=755")?;
    let scratch = Path::new(SCRATCH);
    let host = scratch.join(OF_THE_HOST);
    fs::create_dir(&host)?;
    mount_bind_recursive(FOLDER, &host)?;
    for entry in fs::read_dir(FOLDER)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == RESOLVER || name == OF_THE_HOST {
            continue;
        }
        // A link leads on from where it is, so that it is copied.
        let target = match fs::read_link(entry.path()) {
            Ok(target) => target,
            Err(_) => Path::new(OF_THE_HOST).join(&name),
        };
        symlink(target, scratch.join(&name))?;
    }
    fs::write(scratch.join(RESOLVER), format!("nameserver {}\n", sandbox::DNS.ip()))?;
    mount_move(SCRATCH, FOLDER)?;
    Ok(())
}
