//! The other half of the face as this one sees it: a process in the namespace.

use super::arguments::Args;
use super::channel::{self, Channel};
use super::inside::{Answer, OWN_PROGRAM, Request, Setup};
use super::ports::PortSet;
use super::supply::{Source, Sources};
use neap::device::TunQueue;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// The process in the namespace. It ends when this is dropped, unless a command runs there.
#[derive(Debug)]
pub(super) struct Agent {
    channel: Channel,
}

/// The network that it has made.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) device: TunQueue,
    pub(super) mtu: u16,
    /// One line about what the namespace does not take.
    pub(super) left_out: Option<String>,
}

impl Agent {
    /// Starts it, without environment variables that are `secret`. The process is a child of the
    /// thread that calls, and dies with that thread.
    ///
    /// # Errors
    /// One line.
    pub(super) fn start(args: &Args, secret: &[String]) -> Result<(Self, Child), String> {
        let failed = |error: io::Error| format!("the process for the namespace: {error}");
        let (channel, theirs) = channel::pair().map_err(failed)?;
        let mut command = Command::new(OWN_PROGRAM);
        for name in secret {
            command.env_remove(name);
        }
        // The name by which this program was called is that of a face.
        command.arg0("neap").arg("pasta-inside").stdin(Stdio::from(theirs));
        if args.runs_command() {
            command.arg("--").args(&args.target);
        } else {
            // Whoever waits for the end of what this program writes does not wait for that one.
            command.stdout(Stdio::null()).stderr(Stdio::null());
        }
        let child = command.spawn().map_err(failed)?;
        Ok((Self { channel }, child))
    }

    fn ask(&mut self, request: &Request) -> io::Result<(Answer, Vec<OwnedFd>)> {
        self.channel.send(request, &[])?;
        self.channel.receive()
    }

    /// Makes the network of the namespace.
    ///
    /// # Errors
    /// One line that says what cannot be done there.
    pub(super) fn set_up(&mut self, setup: Setup) -> Result<Made, String> {
        match self.ask(&Request::Setup(setup)) {
            Ok((Answer::Device { has_bulk_thread, mtu, left_out }, descriptors)) => {
                let mut descriptors = descriptors.into_iter();
                let main = descriptors.next().ok_or("the device has no descriptor")?;
                let device = TunQueue { main, bulk: descriptors.next(), has_bulk_thread };
                Ok(Made { device, mtu, left_out })
            }
            Ok((Answer::Failed(why), _)) => Err(why),
            Ok(_) => Err("the process in the namespace has handed no device over".to_owned()),
            Err(error) => Err(format!("the process in the namespace: {error}")),
        }
    }

    /// Runs the command.
    ///
    /// # Errors
    /// The process is gone.
    pub(super) fn run(&mut self) -> io::Result<()> {
        let input = io::stdin();
        self.channel.send(&Request::Run, &[input.as_fd()])?;
        self.channel.receive::<Answer>().map(|_| ())
    }

    /// The TCP and UDP ports at which somebody listens in the namespace.
    ///
    /// # Errors
    /// The process is gone.
    pub(super) fn listening(&mut self) -> io::Result<(PortSet, PortSet)> {
        match self.ask(&Request::Scan)? {
            (Answer::Ports { tcp, udp }, _) => Ok((PortSet::of(&tcp), PortSet::of(&udp))),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Has queues filled with sockets of the namespace, as they are taken.
    ///
    /// # Errors
    /// The process is gone.
    pub(super) fn fill(&mut self, sources: Sources) -> io::Result<()> {
        for Source { end, is_tcp, is_v6 } in sources.0 {
            self.channel.send(&Request::Fill { is_tcp, is_v6 }, &[end.as_fd()])?;
            self.channel.receive::<Answer>()?;
        }
        Ok(())
    }

    /// A socket in the namespace, bound to a port, which listens if it is one of TCP.
    ///
    /// # Errors
    /// What the kernel says there, or the process is gone.
    pub(super) fn bind(&mut self, is_tcp: bool, address: SocketAddr) -> io::Result<OwnedFd> {
        match self.ask(&Request::Bind { is_tcp, address })? {
            (Answer::Done, mut socket) if !socket.is_empty() => Ok(socket.remove(0)),
            (Answer::Failed(why), _) => Err(io::Error::other(why)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}
