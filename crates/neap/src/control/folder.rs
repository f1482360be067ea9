//! The folder of control sockets, and the names in it.

use super::ControlError;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use rustix::process::{Pid, geteuid, test_kill_process};
use std::fs::{self, DirBuilder, Metadata, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// End of the names of sockets.
const SOCKET: &str = ".sock";
/// End of the names of sockets that are not served yet.
const NEW: &str = ".new";
/// Longest name of a stack, bytes. The path has to fit into 108 bytes.
const LONGEST_NAME: usize = 32;
/// Stacks of one name in one process.
const MOST_OF_A_NAME: u32 = 1000;

/// Returns the folder of this user's control sockets: `neap` in `$XDG_RUNTIME_DIR` or in
/// `/run/user/UID`, and `/tmp/neap-UID` where neither is there.
pub fn folder() -> PathBuf {
    runtime_folder().unwrap_or_else(|| PathBuf::from(format!("/tmp/neap-{}", geteuid())))
}

/// Returns the folder of this user's control sockets, if it is in a folder that only the user has:
/// `$XDG_RUNTIME_DIR` or `/run/user/UID`.
pub fn runtime_folder() -> Option<PathBuf> {
    let user = geteuid();
    let set = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let usual = PathBuf::from(format!("/run/user/{user}"));
    let is_own = |folder: &PathBuf| {
        let of_user = |found: Metadata| found.is_dir() && found.uid() == user.as_raw();
        folder.is_absolute() && fs::metadata(folder).is_ok_and(of_user)
    };
    set.into_iter().chain([usual]).find(is_own).map(|folder| folder.join("neap"))
}

/// Makes the folder, or checks that nobody else can put anything into it.
fn prepare(folder: &Path) -> Result<(), ControlError> {
    let made = DirBuilder::new().mode(0o700).create(folder);
    match made {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(ControlError::system(folder)(error)),
    }
    check(folder)
}

fn check(folder: &Path) -> Result<(), ControlError> {
    // A link of somebody else in /tmp would lead anywhere.
    let found = fs::symlink_metadata(folder).map_err(ControlError::system(folder))?;
    let problem = if !found.is_dir() {
        "is no folder"
    } else if found.uid() != geteuid().as_raw() {
        "belongs to another user"
    } else if found.mode() & 0o077 != 0 {
        "can be read or written by other users: chmod 700 it"
    } else {
        return Ok(());
    };
    Err(ControlError::Folder { folder: folder.to_owned(), problem: problem.to_owned() })
}

/// A listener at a name of its own in the folder.
pub(super) fn listen(name: &str) -> Result<(UnixListener, PathBuf), ControlError> {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(is_fine) {
        return Err(ControlError::Name(name.to_owned()));
    }
    let folder = folder();
    prepare(&folder)?;
    sweep(&folder);
    let pid = std::process::id();
    for number in 1..=MOST_OF_A_NAME {
        let stem = match number {
            1 => format!("{pid}-{name}"),
            _ => format!("{pid}-{name}-{number}"),
        };
        let path = folder.join(format!("{stem}{SOCKET}"));
        match listen_at(&folder.join(format!("{stem}{NEW}")), &path) {
            Ok(listener) => return Ok((listener, path)),
            // Another stack of this process has it.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            Err(error) => return Err(ControlError::system(&path)(error)),
        }
    }
    Err(ControlError::Name(name.to_owned()))
}

/// Listens first and takes the name then: whoever finds a name that refuses connections knows that
/// its process is gone.
fn listen_at(new: &Path, path: &Path) -> io::Result<UnixListener> {
    let listener = UnixListener::bind(new)?;
    let named = fs::set_permissions(new, Permissions::from_mode(0o600)).and_then(|()| {
        let here = rustix::fs::CWD;
        let flags = rustix::fs::RenameFlags::NOREPLACE;
        rustix::fs::renameat_with(here, new, here, path, flags).map_err(io::Error::from)
    });
    if named.is_err() {
        // The error says more.
        let _ = fs::remove_file(new);
    }
    named.map(|()| listener)
}

/// Removes what killed processes have left.
pub(super) fn sweep(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        let is_left = if name.ends_with(SOCKET) {
            is_refused(&path)
        } else if let Some(stem) = name.strip_suffix(NEW) {
            // It refuses connections for a moment while its process lives.
            pid_of(stem).is_some_and(|pid| !is_alive(pid)) && is_refused(&path)
        } else {
            // Files beside a socket, such as what `nstat` has seen.
            let socket = path.with_extension(&SOCKET[1..]);
            pid_of(name).is_some() && !socket.exists()
        };
        if is_left {
            // Somebody else may have been faster.
            let _ = fs::remove_file(&path);
        }
    }
}

/// Whether nobody listens at a socket any more.
pub(crate) fn is_refused(path: &Path) -> bool {
    // A process that is stopped has a full queue, and must not stop others.
    connect(path, None).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

/// A connection to a socket, which waits for a place in its queue as long as `patience` says, and
/// not at all without.
pub(super) fn connect(path: &Path, patience: Option<Duration>) -> io::Result<UnixStream> {
    let flags = match patience {
        Some(_) => SocketFlags::CLOEXEC,
        None => SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
    };
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    set_socket_timeout(&socket, Timeout::Send, patience)?;
    set_socket_timeout(&socket, Timeout::Recv, patience)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(UnixStream::from(socket))
}

fn pid_of(name: &str) -> Option<u32> {
    name.split_once('-')?.0.parse().ok()
}

fn is_alive(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
}

/// Process, name and path of each socket that takes connections.
pub(super) fn live() -> Result<Vec<(u32, String, PathBuf)>, ControlError> {
    let folder = folder();
    match check(&folder) {
        Err(ControlError::System { source, .. }) if source.kind() == ErrorKind::NotFound => {
            return Ok(Vec::new());
        }
        checked => checked?,
    }
    let entries = fs::read_dir(&folder).map_err(ControlError::system(&folder))?;
    let mut found = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        let stem = path.file_name().and_then(|name| name.to_str()?.strip_suffix(SOCKET));
        let Some((pid, name)) = stem.and_then(|stem| stem.split_once('-')) else { continue };
        let Ok(pid) = pid.parse() else { continue };
        if !is_refused(&path) {
            found.push((pid, name.to_owned(), path.clone()));
        }
    }
    found.sort();
    Ok(found)
}
