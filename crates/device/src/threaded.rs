//! Threads of the kernel for the NAPI instances of an interface.

use crate::sys;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use std::thread;

/// Lets threads of the kernel do the work of all NAPI instances of an interface of this network
/// namespace, also of those that come later (`/sys/class/net/NAME/threaded`).
///
/// The `/sys` that the process sees may be that of another network namespace. So this mounts
/// another, at no place in the tree of files. It needs `CAP_SYS_ADMIN` in the user namespaces of
/// the network namespace and of the mount namespace, and `CAP_NET_ADMIN`. A process that has no
/// right over its mount namespace, as in `unshare -rn`, uses a thread with one of its own.
///
/// # Errors
/// The rights are missing, or the kernel is older than 5.12.
pub(crate) fn enable(interface: &str) -> rustix::io::Result<()> {
    let path = format!("class/net/{interface}/threaded");
    match write(&path) {
        Err(Errno::PERM) => {}
        done => return done,
    }
    let thread = thread::Builder::new().name("sysfs".to_owned());
    let thread = thread.spawn(move || sys::leave_mount_namespace().and_then(|()| write(&path)));
    thread.map_err(|_| Errno::AGAIN)?.join().unwrap_or(Err(Errno::IO))
}

fn write(path: &str) -> rustix::io::Result<()> {
    let sysfs = rustix::mount::fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(&sysfs)?;
    let cloexec = FsMountFlags::FSMOUNT_CLOEXEC;
    let root = rustix::mount::fsmount(&sysfs, cloexec, MountAttrFlags::empty())?;
    let mode = OFlags::WRONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(root, path, mode, Mode::empty())?;
    rustix::io::write(file, b"1").map(drop)
}
