//! The end of a namespace that was there before: of the process that it was named by, or of the
//! name.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What is watched.
#[derive(Debug)]
pub(super) enum Watch {
    /// The process ends.
    Process(OwnedFd),
    /// The name goes from its folder.
    Name { folder: OwnedFd, name: OsString },
}

impl Watch {
    /// Watches a process.
    ///
    /// # Errors
    /// There is no such process.
    pub(super) fn process(pid: u32) -> io::Result<Self> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::NotFound)?;
        Ok(Self::Process(pidfd_open(pid, PidfdFlags::empty())?))
    }

    /// Watches the name of a namespace, or its process if the name is one of `/proc`.
    ///
    /// # Errors
    /// The folder cannot be watched.
    pub(super) fn path(path: &Path) -> io::Result<Self> {
        if let Some(pid) = pid_of(path) {
            return Self::process(pid);
        }
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let watched = inotify::init(CreateFlags::CLOEXEC)?;
        inotify::add_watch(&watched, folder, WatchFlags::DELETE | WatchFlags::MOVED_FROM)?;
        Ok(Self::Name { folder: watched, name: name.to_owned() })
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// The process cannot wait.
    pub(super) fn wait(&self) -> io::Result<()> {
        match self {
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
                Watch::path(Path::new(&format!("/proc/{}/ns/net", child.id())))
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
        let watch = Watch::path(&one).expect("the folder is there");
        std::fs::remove_file(&other).expect("it is there");
        std::fs::remove_file(&one).expect("it is there");
        watch.wait().expect("waited");
        std::fs::remove_dir(&folder).expect("it is empty");
    }

    #[test]
    fn what_is_not_there_is_told() {
        assert!(Watch::process(u32::MAX).is_err());
        assert!(Watch::path(Path::new("/no/such/folder/name")).is_err());
    }
}
