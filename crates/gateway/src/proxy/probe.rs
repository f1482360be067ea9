//! A look whether a proxy answers, before anything depends on it.

use super::error::ProxyError;
use super::stream::{Dialogue, Talk};
use super::{Protocol, Proxy, socks5};
use crate::relay::End;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::time::{Duration, Instant};

pub(super) fn run(proxy: &Proxy, timeout: Duration) -> io::Result<()> {
    let dialogue = socks5::Client::greet(proxy.credentials.clone());
    let mut talk = Talk::begin(proxy, Dialogue::Socks(dialogue))?;
    let deadline = Instant::now() + timeout;
    wait(&talk, PollFlags::OUT, deadline)?;
    talk.stream.take_error()?;
    if proxy.protocol == Protocol::Http {
        return Ok(());
    }
    loop {
        match talk.advance() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                wait(&talk, PollFlags::IN, deadline)?;
            }
            result => return result.map(drop),
        }
    }
}

fn wait(talk: &Talk, events: PollFlags, deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    let left = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut entries = [PollFd::new(&talk.stream, events)];
    match poll(&mut entries, Some(&left)) {
        Ok(0) => Err(ProxyError::Silent.into()),
        Ok(_) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
