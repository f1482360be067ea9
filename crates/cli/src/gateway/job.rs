//! The half of `neap gateway run` on the host as a job of a shell: it passes signals on to the
//! command, and stops when a signal has stopped the command, so that the shell sees it.

use super::command::{STOPS, not_ignored, pass_on};
use super::passing::{self, Message};
use nix::sys::signal::{SigSet, Signal};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::Pid;
use signal_hook::consts::{
    SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGSTOP, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU, SIGUSR1,
    SIGUSR2, SIGWINCH,
};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::raise;
use signal_hook::low_level::siginfo::Origin;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;

/// Signals that the command gets, unless they are ignored.
pub(super) const FORWARDED: [i32; 11] = [
    SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGCONT, SIGTSTP, SIGTTIN, SIGTTOU,
    SIGWINCH,
];

/// Starts the other half. A terminal does not stop it before it [has handlers](has_handlers): it
/// could tell nobody that it was stopped.
///
/// From here on the threads of this process leave `SIGCONT` and `SIGTTOU` to that of a [`Job`], and
/// their [lines appear](lines_appear).
pub(super) fn start(command: &mut Command) -> io::Result<Child> {
    lines_appear()?;
    set(&[Signal::SIGTSTP, Signal::SIGTTIN]).thread_block()?;
    let child = command.spawn();
    set(&[Signal::SIGTSTP, Signal::SIGTTIN]).thread_unblock()?;
    set(&[Signal::SIGCONT]).thread_block()?;
    child
}

/// The other half has handlers for the signals by which a terminal stops processes, and gets them
/// from now on.
pub(super) fn has_handlers() -> io::Result<()> {
    Ok(set(&[Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU]).thread_unblock()?)
}

/// Lets lines of this thread appear in a terminal that takes none of a process in the background
/// (`stty tostop`). With a handler of `SIGTTOU` the kernel would begin to write again and again.
pub(super) fn lines_appear() -> io::Result<()> {
    Ok(set(&[Signal::SIGTTOU]).thread_block()?)
}

fn set(signals: &[Signal]) -> SigSet {
    signals.iter().copied().collect()
}

/// The signals of this process, from now on.
pub(super) struct Signals(SignalDelivery<UnixStream, WithOrigin>);

impl Signals {
    pub(super) fn catch() -> io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        let signals = not_ignored(&FORWARDED);
        Ok(Self(SignalDelivery::with_pipe(read, write, WithOrigin::default(), signals)?))
    }
}

/// A command that runs.
pub(super) struct Job<End> {
    pub(super) signals: Signals,
    /// The socket of the command's first process.
    pub(super) socket: OwnedFd,
    pub(super) command: Pid,
    pub(super) has_ended: Arc<AtomicBool>,
    /// What those signals do that would end this process, once the command has ended.
    pub(super) end: End,
}

impl<End: Fn() + Send + 'static> Job<End> {
    /// Passes signals on, and stops this process with the command, by a thread of its own. Once the
    /// command has ended, signals are those of this process.
    pub(super) fn watch(self) -> io::Result<()> {
        let watch = move || {
            // What was said before this process was continued is read after that is known, as no
            // other thread gets the signal.
            let _ = set(&[Signal::SIGCONT, Signal::SIGTTOU]).thread_unblock();
            let Self { signals: Signals(mut signals), socket, command, has_ended, end } = self;
            let mut told = Told { socket: Some(socket), is_old: false };
            loop {
                let is_told = wait(&signals, told.socket.as_ref());
                let mut came: Vec<Origin> = signals.pending().collect();
                if came.iter().any(|signal| signal.signal == SIGCONT) {
                    told.is_old = true;
                    // What has stopped this process has stopped the command, and is over.
                    came.retain(|signal| !STOPS.contains(&signal.signal));
                }
                for signal in came {
                    match signal.signal {
                        _ if !has_ended.load(SeqCst) => pass_on(&signal, command),
                        SIGCONT | SIGWINCH => {}
                        stop if STOPS.contains(&stop) => stop_here(),
                        _ => end(),
                    }
                }
                if is_told {
                    told.receive();
                }
            }
        };
        thread::Builder::new().name("signals".to_owned()).spawn(watch).map(drop)
    }
}

/// What the first process of the command tells.
struct Told {
    /// `None` when it has ended.
    socket: Option<OwnedFd>,
    /// Whether it is of the time before this process was continued: the first process has not
    /// answered that yet.
    is_old: bool,
}

impl Told {
    fn receive(&mut self) {
        let Some(socket) = &self.socket else { return };
        match passing::receive(socket) {
            Ok(Message::Stopped) if self.is_old => {}
            Ok(Message::Stopped) => stop_here(),
            Ok(Message::Continued) => self.is_old = false,
            _ => self.socket = None,
        }
    }
}

/// Waits for a signal or for a message. Whether there may be a message.
fn wait(signals: &SignalDelivery<UnixStream, WithOrigin>, socket: Option<&OwnedFd>) -> bool {
    let mut entries = vec![PollFd::new(signals.get_read(), PollFlags::IN)];
    entries.extend(socket.map(|socket| PollFd::new(socket, PollFlags::IN)));
    // A signal that interrupts it is one that it waits for.
    let _ = poll(&mut entries, None);
    entries.get(1).is_some_and(|entry| !entry.revents().is_empty())
}

fn stop_here() {
    // It fails for no signal that exists.
    let _ = raise(SIGSTOP);
}
