//! Looking inside a running stack from outside: the socket that `neap ss` and `neap nstat` ask,
//! and the client's side of it.
//!
//! [`serve`] makes a Unix socket for a stack in the [folder](folder()) of its user, under the
//! name `PID-NAME.sock`. Only processes of the same user may ask: the folder has mode 0700, the
//! socket 0600, and the user of each peer is checked (`SO_PEERCRED`). A process that is killed
//! leaves the file, which the next [`serve`] of the same user removes.
//!
//! The socket takes one thread, which sleeps until somebody asks. It reads the figures that
//! [`Host`](crate::Host) reads. A listing locks one socket at a time, for as long as its figures
//! take, so the stack goes on meanwhile. At most 16 peers are answered at the same time; a
//! listing of n sockets takes less than 1 KiB × n for each of them.
//!
//! # Protocol
//!
//! A peer sends one line of JSON, at most 4096 bytes, within 5 seconds:
//!
//! ```json
//! {"neap":1,"get":"sockets"}
//! ```
//!
//! `neap` is the version of the protocol, and `get` is `stack`, `sockets`, `counters`, or a subject
//! of the [application](Application::lines). The answer is lines of JSON: a [`StackReport`], then a
//! [`SocketReport`] or [`CounterReport`] for each socket or counter, those of the application
//! included, or the lines of the application, and in the end `{"end":N}` with their number. A
//! request that is not understood is answered by `{"error":"..."}`. Times are nanoseconds, rates
//! are bytes per second, sizes are bytes. New fields and kinds of sockets may appear in any version
//! of neap, and whoever asks passes over fields that it does not know; a change of what is there
//! raises the version of the protocol. The peer has 30 seconds to take the answer.
//!
//! # Example
//!
//! ```no_run
//! use neap::control::{self, ControlOptions};
//!
//! # let stack = neap::Stack::builder().build()?;
//! let control = control::serve(&stack, ControlOptions::new("proxy"))?;
//! // `neap ss --name proxy` shows its sockets until `control` is dropped.
//! for endpoint in control::endpoints()? {
//!     println!("{} {}: {} sockets", endpoint.pid, endpoint.name, endpoint.sockets()?.len());
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod answer;
mod client;
mod folder;
mod report;

pub(crate) use answer::counters;
pub use client::Endpoint;
pub(crate) use folder::is_refused;
pub use folder::{folder, runtime_folder};
pub use report::{
    CounterReport, MappingReport, MemoryReport, RelayReport, SocketReport, StackReport, TcpReport,
    TimerReport,
};

use crate::serving::{Listener, Server};
use crate::workers::Stack;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;

/// Version of the protocol.
pub const VERSION: u32 = 1;

/// What the application of a stack adds to listings, counters and metrics.
///
/// The calls come from the thread of the control socket or of the metrics. They may wait for the
/// application for a short time.
pub trait Application: Send + Sync {
    /// Counters that only rise, by names for `nstat` such as `GatewayOpened`.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Values that rise and fall, by names of the same kind.
    fn gauges(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Counters and values of one kind for each of several things, such as guests.
    fn labelled(&self) -> Vec<Labelled> {
        Vec::new()
    }

    /// Lines of JSON about a subject that only the application knows, such as `wireguard`, each an
    /// object without the fields `end` and `error`; `None` for a subject that it does not know.
    fn lines(&self, _subject: &str) -> Option<Vec<String>> {
        None
    }

    /// For each connection of the stack that the application joins to another one, by its local
    /// address and its peer's: where the other one goes, and what is held in between. It is called
    /// for listings only, so what it reports may cost system calls.
    fn relays(&self) -> HashMap<(SocketAddr, SocketAddr), RelayReport> {
        HashMap::new()
    }

    /// Sockets of the application that listings have besides those of the stack, such as the
    /// mappings of datagrams. It is called for listings only, as [`relays`](Self::relays) is.
    fn sockets(&self) -> Vec<SocketReport> {
        Vec::new()
    }
}

/// A counter or a value of one of several things. `nstat` prints it by the name `NAME.OF`, and
/// Prometheus reads the name with a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Labelled {
    /// Name for `nstat`, such as `GatewayGuestBytesOut`.
    pub name: &'static str,
    /// Kind of the things, such as `guest`.
    pub label: &'static str,
    /// The thing that it is of.
    pub of: String,
    /// Its value.
    pub value: u64,
    /// Whether it may fall.
    pub gauge: bool,
}

/// What [`serve`] needs to know.
#[derive(Clone)]
#[non_exhaustive]
pub struct ControlOptions {
    /// Name of the stack, by which `neap ss --name` finds it: 1 to 32 letters, digits, `-`, `_` and
    /// `.`.
    pub name: String,
    /// What the application adds.
    pub application: Option<Arc<dyn Application>>,
}

impl ControlOptions {
    /// Returns options with a name.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), application: None }
    }
}

impl fmt::Debug for ControlOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlOptions").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Reason why there is no control socket, or no answer of one.
#[derive(Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The name cannot be part of the name of a file.
    #[error("control socket: the name {0:?} is not 1 to 32 letters, digits, '-', '_' and '.'")]
    Name(String),
    /// The folder is not one that only this user can write to.
    #[error("control socket: {} {problem}", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The system refuses.
    #[error("control socket {}: {source}", path.display())]
    System {
        /// The socket or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The other side does not speak the protocol.
    #[error("control socket {}: {problem}", path.display())]
    Protocol {
        /// The socket.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The other side says that it has no answer: it does not know what is asked for, speaks
    /// another version of the protocol, or its stack is gone.
    #[error("control socket {}: {reason}", path.display())]
    NoAnswer {
        /// The socket.
        path: PathBuf,
        /// What it says.
        reason: String,
    },
}

neap_tcp::debug_as_display!(ControlError);

impl ControlError {
    fn system(path: &Path) -> impl Fn(io::Error) -> Self {
        move |source| Self::System { path: path.to_owned(), source }
    }
}

/// A control socket. It is removed when this is dropped.
#[derive(Debug)]
pub struct Control {
    /// Ends before the file is removed.
    _server: Server,
    file: SocketFile,
}

impl Control {
    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.file.0
    }
}

/// The file of a socket.
#[derive(Debug)]
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // A sandbox may deny it by now. Then the next start of a stack removes the file.
        let _ = std::fs::remove_file(&self.0);
        if let Some(folder) = self.0.parent() {
            folder::sweep(folder);
        }
    }
}

/// A control socket that is not served yet: whoever asks waits. It is removed when this is dropped.
#[derive(Debug)]
pub struct ControlListener {
    name: String,
    listener: UnixListener,
    file: SocketFile,
}

impl ControlListener {
    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.file.0
    }

    /// Serves the figures of a stack, and those that its application adds, as [`serve`] does.
    ///
    /// # Errors
    /// The system refuses a descriptor or a thread.
    pub fn serve(
        self,
        stack: &Stack,
        application: Option<Arc<dyn Application>>,
    ) -> Result<Control, ControlError> {
        let Self { name, listener, file } = self;
        let service = answer::ControlService::new(stack.engine(), name, application);
        let server = Server::start("neap-control", Listener::Unix(listener), service);
        let server = server.map_err(ControlError::system(&file.0))?;
        Ok(Control { _server: server, file })
    }
}

/// Makes the control socket of a stack with this name, for a program that gives up the right to
/// make files before it has the stack.
///
/// # Errors
/// The name cannot be that of a file, there is no folder for the socket, or the system refuses it.
pub fn listen(name: &str) -> Result<ControlListener, ControlError> {
    let (listener, path) = folder::listen(name)?;
    Ok(ControlListener { name: name.to_owned(), listener, file: SocketFile(path) })
}

/// Serves the figures of a stack to processes of the same user, until the returned value is
/// dropped. The stack may be dropped before.
///
/// # Errors
/// The name cannot be that of a file, there is no folder for the socket, or the system refuses a
/// descriptor or a thread.
pub fn serve(stack: &Stack, options: ControlOptions) -> Result<Control, ControlError> {
    let ControlOptions { name, application } = options;
    listen(&name)?.serve(stack, application)
}

/// Returns the control sockets of this user whose processes are there, in the order of their
/// numbers.
///
/// # Errors
/// The folder cannot be read, or somebody else can write to it.
pub fn endpoints() -> Result<Vec<Endpoint>, ControlError> {
    folder::live().map(|found| {
        found.into_iter().map(|(pid, name, path)| Endpoint { pid, name, path }).collect()
    })
}
