//! CheckAlive: pings through the tunnel, and when each address answered last.

use bytes::{BufMut, Bytes, BytesMut};
use neap::{IcmpMessage, IcmpOptions, IcmpSocket, Stack};
use neap_wireguard::file::InterfaceSection;
use rustix::rand::{GetRandomFlags, getrandom};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What an answer may take besides the time between two pings.
const LEEWAY: Duration = Duration::from_secs(2);
/// Types of ICMP and ICMPv6.
const ECHO_REQUESTS: [u8; 2] = [8, 128];
/// Bytes behind the header of a ping.
const PAYLOAD: usize = 16;

/// The addresses of a file, each with the second since 1970 in which it answered last.
#[derive(Debug, Default)]
struct Watched {
    interval: Duration,
    answered: BTreeMap<IpAddr, u64>,
}

/// The pings, as other threads see them.
#[derive(Clone, Debug, Default)]
pub(super) struct Alive {
    shared: Arc<(Mutex<Watched>, Condvar)>,
}

impl Alive {
    /// Takes the addresses of a file. Those that stay keep their last answers.
    pub(super) fn set(&self, interface: &InterfaceSection) {
        let (mutex, changed) = &*self.shared;
        let mut inside = mutex.lock().unwrap_or_else(PoisonError::into_inner);
        inside.interval = interface.check_alive_interval;
        let answered = &inside.answered;
        let of = |ip: &IpAddr| (*ip, answered.get(ip).copied().unwrap_or(0));
        inside.answered = interface.check_alive.iter().map(of).collect();
        changed.notify_all();
    }

    /// When each address answered last, and whether all have answered in time.
    pub(super) fn answers(&self) -> (Vec<(IpAddr, u64)>, bool) {
        let inside = self.shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = now().saturating_sub((inside.interval + LEEWAY).as_secs());
        let is_alive = inside.answered.values().all(|&second| second >= oldest);
        (inside.answered.iter().map(|(&ip, &second)| (ip, second)).collect(), is_alive)
    }

    /// Pings for as long as the stack runs. There is no socket while there are no addresses.
    ///
    /// # Errors
    /// There is no thread.
    pub(super) fn watch(&self, stack: &Arc<Stack>) -> io::Result<()> {
        let (alive, stack) = (self.clone(), Arc::downgrade(stack));
        let thread = thread::Builder::new().name("alive".to_owned());
        let run = move || {
            let mut pings = None;
            loop {
                let (addresses, interval) = alive.wait();
                let Some(stack) = stack.upgrade() else { return };
                let pings = match &mut pings {
                    Some(pings) => pings,
                    None => match Pings::open(&stack) {
                        Ok(opened) => pings.insert(opened),
                        Err(_) => return,
                    },
                };
                drop(stack);
                match pings.round(&addresses, interval, |from| alive.learn(from)) {
                    Ok(()) => {}
                    // The stack is gone.
                    Err(_) => return,
                }
            }
        };
        thread.spawn(run).map(drop)
    }

    /// Waits until there are addresses.
    fn wait(&self) -> (Vec<IpAddr>, Duration) {
        let (mutex, changed) = &*self.shared;
        let inside = mutex.lock().unwrap_or_else(PoisonError::into_inner);
        let inside = changed
            .wait_while(inside, |inside| inside.answered.is_empty())
            .unwrap_or_else(PoisonError::into_inner);
        (inside.answered.keys().copied().collect(), inside.interval)
    }

    fn learn(&self, from: IpAddr) {
        let mut inside = self.shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(second) = inside.answered.get_mut(&from) {
            *second = now();
        }
    }
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// A socket for pings.
#[derive(Debug)]
struct Pings {
    socket: IcmpSocket,
    identifier: u16,
    sequence: u16,
}

impl Pings {
    fn open(stack: &Stack) -> io::Result<Self> {
        let options =
            IcmpOptions { foreign: false, own: true, transparent: false, ..IcmpOptions::default() };
        let socket = IcmpSocket::open(stack, options)?;
        let identifier = u16::from_ne_bytes(random()?);
        Ok(Self { socket, identifier, sequence: 0 })
    }

    /// Pings all addresses once, and tells of answers until the time for the next round has come.
    ///
    /// # Errors
    /// The stack is gone, or there are no random bytes.
    fn round(
        &mut self,
        addresses: &[IpAddr],
        interval: Duration,
        answered: impl Fn(IpAddr),
    ) -> io::Result<()> {
        let end = Instant::now() + interval;
        self.sequence = self.sequence.wrapping_add(1);
        let payload: [u8; PAYLOAD] = random()?;
        for &to in addresses {
            let left = end.saturating_duration_since(Instant::now());
            self.socket.set_write_timeout(Some(left.max(Duration::from_millis(1))))?;
            match self.socket.send(&self.request(to, &payload)) {
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => return Err(error),
                // It stays without an answer.
                Err(error) => tracing::debug!(%to, %error, "no ping is sent"),
                Ok(()) => {}
            }
        }
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            self.socket.set_read_timeout(Some(left))?;
            match self.socket.recv() {
                Ok(message) => {
                    let is_ours = message.echo() == Some((self.identifier, self.sequence));
                    let has_payload = message.data.get(8..) == Some(&payload);
                    if is_ours && has_payload && !message.is_echo_request() {
                        answered(message.source);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    fn request(&self, to: IpAddr, payload: &[u8]) -> IcmpMessage {
        let own: IpAddr = match to {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let mut data = BytesMut::with_capacity(8 + payload.len());
        data.put_u8(ECHO_REQUESTS[usize::from(to.is_ipv6())]);
        // Code and checksum.
        data.put_bytes(0, 3);
        data.put_u16(self.identifier);
        data.put_u16(self.sequence);
        data.put_slice(payload);
        IcmpMessage::new(own, to, Bytes::from(data))
    }
}

fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(bytes)
}
