//! A process that reads `/etc/resolv.conf` for a gateway, which opens no files.
//!
//! Programs replace that file by another one of its name. Whoever reads it again needs the right to
//! read all files of its folder, since rules of Landlock are for files and folders that are there,
//! and that folder is `/etc`. So the process that talks to guests has no such right. The one that
//! has it opens one file, for whoever has the other end of its socket, and has no network.

use super::passing;
use neap_gateway::ResolversFile;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};

/// The file with the resolvers of the host.
pub(super) const FILE: &str = "/etc/resolv.conf";
/// Most bytes of it that count.
const MOST: usize = 65_536;

/// What comes before the bytes of the file, and what is there in the place of both.
const TEXT: u8 = b't';
const FAILED: u8 = b'f';

/// The process, as the gateway sees it. It ends when this is dropped, and when the gateway ends.
#[derive(Debug)]
pub(super) struct Reader {
    socket: Mutex<OwnedFd>,
    _process: Child,
}

impl Reader {
    /// Starts the process, and waits until it reads.
    ///
    /// # Errors
    /// There is no process, or it has ended.
    pub(super) fn start() -> io::Result<Self> {
        let (own, theirs) = passing::pair()?;
        let process = Command::new("/proc/self/exe")
            .arg0("neap")
            .args(["gateway", "resolvers"])
            // Some variables are secrets of the gateway.
            .env_clear()
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A signal of the terminal that ends the gateway lets it drain.
            .process_group(0)
            .spawn()?;
        let reader = Self { socket: Mutex::new(own), _process: process };
        // The file may not be there yet.
        reader.ask().map(|_| reader)
    }

    /// What the process answers.
    ///
    /// # Errors
    /// `UnexpectedEof` if it has ended.
    fn ask(&self) -> io::Result<Vec<u8>> {
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        send(&*socket, &[0], SendFlags::NOSIGNAL)?;
        let mut answer = vec![0; 1 + MOST];
        let (count, _) = recv(&*socket, &mut answer[..], RecvFlags::empty())?;
        answer.truncate(count);
        if answer.is_empty() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(answer) }
    }
}

impl ResolversFile for Reader {
    fn read(&self) -> io::Result<Vec<u8>> {
        let answer = self.ask()?;
        match answer.split_first() {
            Some((&TEXT, text)) => Ok(text.to_vec()),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

/// The process, once it has given up its rights: answers until the gateway has ended.
pub(super) fn main() -> ExitCode {
    // It ends with an error if the gateway is gone, which nobody is there to be told of.
    let _ = answer(&io::stdin());
    ExitCode::SUCCESS
}

fn answer(socket: &impl AsFd) -> io::Result<()> {
    let mut answer = Vec::with_capacity(1 + MOST);
    while recv(socket, &mut [0], RecvFlags::empty())?.0 > 0 {
        answer.clear();
        answer.push(TEXT);
        let file = File::open(FILE).map(|file| file.take(MOST as u64));
        if file.and_then(|mut file| file.read_to_end(&mut answer)).is_err() {
            answer.clear();
            answer.push(FAILED);
        }
        send(socket, &answer, SendFlags::NOSIGNAL)?;
    }
    Ok(())
}
