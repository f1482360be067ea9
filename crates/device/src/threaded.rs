//! Threads of the kernel for the NAPI instances of an interface.

use crate::sys;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use rustix::process::{Pid, geteuid};
use std::collections::HashSet;
use std::fs;
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

/// Threads of the kernel that serve NAPI instances of interfaces, before some of ours were made.
/// `None` where the process has no right over them.
pub(crate) struct Known(Option<HashSet<Pid>>);

impl Known {
    /// Those that there are. The superuser has the right over them, and sees them outside of
    /// containers.
    ///
    /// Cost: a file is read for each process of the machine.
    pub(crate) fn look() -> Self {
        Self(geteuid().is_root().then(|| serving().map(|(thread, _)| thread).collect()))
    }

    /// Keeps the threads that were made since for an interface of this name from taking a processor
    /// before the turn of whoever has it is over (`SCHED_BATCH`). Their share of the processors
    /// stays. Cost: that of [`look`](Self::look).
    ///
    /// Such a thread is woken for each frame. If it then interrupted the program that reads what
    /// the frame before has brought, that program would be woken again for each frame, too. As it
    /// is, the thread finds several frames, and the program much to read.
    ///
    /// Nothing happens without the right. Namespaces may have interfaces of the same name. The
    /// thread of one that is made at the same time cannot be told from ours, and does not need to.
    pub(crate) fn calm_new(&self, interface: &str) {
        let Some(known) = &self.0 else { return };
        let is_new = |thread: &Pid| !known.contains(thread);
        for thread in of_interface(interface).filter(is_new) {
            let batch = sys::scheduling(Some(thread)).map(|now| libc::sched_attr {
                sched_policy: libc::SCHED_BATCH.cast_unsigned(),
                ..now
            });
            let _ = batch.and_then(|batch| sys::set_scheduling(Some(thread), &batch));
        }
    }
}

/// The threads of the kernel that serve NAPI instances of interfaces of this name.
pub(crate) fn of_interface(interface: &str) -> impl Iterator<Item = Pid> {
    serving().filter(move |(_, served)| served == interface).map(|(thread, _)| thread)
}

/// All threads of the kernel that serve NAPI instances, each with the name of its interface. They
/// are known by their own names: the kernel does not list the NAPI instances of a TUN, which have
/// no number (`netif_napi_add_tx`).
fn serving() -> impl Iterator<Item = (Pid, String)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw)?;
        // A process that ended meanwhile has no name.
        let name = fs::read_to_string(entry.path().join("comm")).ok()?;
        let (interface, _) = name.strip_prefix("napi/")?.rsplit_once('-')?;
        Some((pid, interface.to_owned()))
    })
}
