//! The end of a namespace that was there before: of the process that it was named by, or of the
//! name.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{Access, AtFlags, CWD, FsWord, accessat, statfs};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// What is watched.
#[derive(Debug)]
pub(super) enum Watch {
    /// The process ends.
    Process(OwnedFd),
    /// The name goes from its folder.
    Name { folder: OwnedFd, name: OsString },
    /// The same, where the kernel tells nobody: the name is looked for once a second.
    Looked(PathBuf),
}

/// Time between two looks for a name.
const INTERVAL: Duration = Duration::from_secs(1);

impl Watch {
    /// Watches a process.
    ///
    /// # Errors
    /// There is no such process.
    pub(super) fn process(pid: u32) -> io::Result<Self> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::NotFound)?;
        Ok(Self::Process(pidfd_open(pid, PidfdFlags::empty())?))
    }

    /// Watches the name of a namespace, or its process if the name is one of `/proc`. Where the
    /// kernel does not tell of names, as the user has used up what is there for it, `say` is told
    /// that the name is looked for.
    ///
    /// # Errors
    /// There is no such name.
    pub(super) fn path(path: &Path, say: impl FnOnce(&dyn fmt::Display)) -> io::Result<Self> {
        if let Some(pid) = pid_of(path) {
            return Self::process(pid);
        }
        match Self::told(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(error),
            Err(error) => {
                say(&format_args!(
                    "{} cannot be watched, and is looked for once a second: {error}",
                    path.display()
                ));
                Self::looked(path)
            }
            Ok(None) => Self::looked(path),
            Ok(Some(watch)) => Ok(watch),
        }
    }

    /// Looks for the name. The path holds no folder, which could not be unmounted then.
    fn looked(path: &Path) -> io::Result<Self> {
        let path = std::path::absolute(path)?;
        if is_gone(&path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(Self::Looked(path))
    }

    /// Is told when the name goes; `None` where the kernel tells nothing, as its file systems of
    /// its own (`inotify(7)`).
    fn told(path: &Path) -> io::Result<Option<Self>> {
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        if KERNELS_OWN.contains(&statfs(folder)?.f_type) {
            return Ok(None);
        }
        let watched = inotify::init(CreateFlags::CLOEXEC)?;
        inotify::add_watch(&watched, folder, WatchFlags::DELETE | WatchFlags::MOVED_FROM)?;
        Ok(Some(Self::Name { folder: watched, name: name.to_owned() }))
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// The process cannot wait.
    pub(super) fn wait(&self) -> io::Result<()> {
        match self {
            Self::Looked(path) => {
                while !is_gone(path) {
                    thread::sleep(INTERVAL);
                }
                Ok(())
            }
            Self::Process(process) => {
                let mut sources = [PollFd::new(process, PollFlags::IN)];
                loop {
                    match poll(&mut sources, None) {
                        Ok(_) => return Ok(()),
                        Err(Errno::INTR) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
            }
            Self::Name { folder, name } => {
                let mut space = [MaybeUninit::uninit(); 4096];
                let mut events = inotify::Reader::new(folder, &mut space);
                loop {
                    match events.next() {
                        Ok(event) => {
                            let gone =
                                event.file_name().map(|gone| OsStr::from_bytes(gone.to_bytes()));
                            if gone == Some(name) {
                                return Ok(());
                            }
                        }
                        Err(Errno::INTR) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
            }
        }
    }
}

/// Magic numbers of proc, sysfs and devpts (`statfs(2)`).
const KERNELS_OWN: [FsWord; 3] = [0x9fa0, 0x6265_6572, 0x1cd1];

/// Whether a name is gone. One that cannot be seen any more is there for all that is known.
fn is_gone(path: &Path) -> bool {
    matches!(
        accessat(CWD, path, Access::EXISTS, AtFlags::empty()),
        Err(Errno::NOENT | Errno::NOTDIR)
    )
}

/// The process of `/proc/PID/...`.
fn pid_of(path: &Path) -> Option<u32> {
    path.strip_prefix("/proc").ok()?.components().next()?.as_os_str().to_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_end_of_a_process_is_seen_by_either_name() {
        for by_path in [false, true] {
            let mut child = Command::new("sleep").arg("1000").spawn().expect("a process");
            let watch = if by_path {
                Watch::path(Path::new(&format!("/proc/{}/ns/net", child.id())), |_| ())
            } else {
                Watch::process(child.id())
            };
            let watch = watch.expect("the process is there");
            child.kill().expect("it is mine");
            watch.wait().expect("waited");
            child.wait().expect("it has ended");
        }
    }

    #[test]
    fn the_end_of_a_name_is_seen_and_that_of_another_is_not() {
        let folder = std::env::temp_dir().join(format!("neap-watch-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let (one, other) = (folder.join("one"), folder.join("other"));
        for file in [&one, &other] {
            std::fs::write(file, "").expect("a file");
        }
        let told = Watch::path(&one, |_| ()).expect("the folder is there");
        assert!(matches!(told, Watch::Name { .. }), "{told:?}");
        let looked = Watch::looked(&one).expect("it is there");
        std::fs::remove_file(&other).expect("it is there");
        assert!(is_gone(&other) && !is_gone(&one));
        std::fs::remove_file(&one).expect("it is there");
        told.wait().expect("waited");
        looked.wait().expect("waited");
        std::fs::remove_dir(&folder).expect("it is empty");
    }

    #[test]
    fn names_of_the_kernel_are_looked_for() {
        for path in ["/proc/version", "/sys/kernel"] {
            let watch = Watch::path(Path::new(path), |_| ()).expect("every machine has it");
            assert!(matches!(watch, Watch::Looked(_)), "{watch:?}");
        }
    }

    #[test]
    fn what_is_not_there_is_told() {
        assert!(Watch::process(u32::MAX).is_err());
        for path in ["/no/such/folder/name", "/sys/no such name"] {
            assert!(Watch::path(Path::new(path), |_| ()).is_err(), "{path}");
        }
    }
}
