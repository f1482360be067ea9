//! CheckAlive: pings through the tunnel, and when each address answered last.

use bytes::{BufMut, Bytes, BytesMut};
use neap::{Events, IcmpMessage, IcmpOptions, IcmpSocket, Poller, Stack};
use neap_wireguard::file::InterfaceSection;
use rustix::rand::{GetRandomFlags, getrandom};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
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
#[derive(Clone, Debug)]
pub(super) struct Alive(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    watched: Mutex<Watched>,
    /// Where the pings wait, for answers and for another file.
    poller: Poller,
}

impl Alive {
    /// No addresses.
    ///
    /// # Errors
    /// There is no descriptor.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(Shared { watched: Mutex::default(), poller: Poller::new()? })))
    }

    fn watched(&self) -> MutexGuard<'_, Watched> {
        self.0.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the addresses of a file. Those that stay keep their last answers.
    pub(super) fn set(&self, interface: &InterfaceSection) {
        let mut watched = self.watched();
        watched.interval = interface.check_alive_interval;
        let answered = &watched.answered;
        let of = |ip: &IpAddr| (*ip, answered.get(ip).copied().unwrap_or(0));
        watched.answered = interface.check_alive.iter().map(of).collect();
        drop(watched);
        self.0.poller.notify();
    }

    /// When each address answered last, and whether all have answered in time.
    pub(super) fn answers(&self) -> (Vec<(IpAddr, u64)>, bool) {
        let inside = self.watched();
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
        // It ends with an error when the stack is gone.
        thread.spawn(move || drop(alive.ping(&stack))).map(drop)
    }

    fn ping(&self, stack: &Weak<Stack>) -> io::Result<()> {
        let mut pings = None;
        loop {
            let (addresses, interval) = self.wanted();
            if addresses.is_empty() {
                // What comes to a socket that nobody reads would end each wait.
                pings = None;
                self.0.poller.wait(&mut Vec::new(), None)?;
                continue;
            }
            let pings = match &mut pings {
                Some(pings) => pings,
                None => {
                    let stack = stack.upgrade().ok_or(ErrorKind::ConnectionAborted)?;
                    pings.insert(Pings::open(&stack, &self.0.poller)?)
                }
            };
            let end = Instant::now() + interval;
            let payload = pings.send(&addresses, end)?;
            while self.is_current(&addresses, interval) {
                while let Some(message) = pings.receive()? {
                    if pings.is_answer(&message, &payload) {
                        self.learn(message.source);
                    }
                }
                let left = end.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                self.0.poller.wait(&mut Vec::new(), Some(left))?;
            }
        }
    }

    fn wanted(&self) -> (Vec<IpAddr>, Duration) {
        let inside = self.watched();
        (inside.answered.keys().copied().collect(), inside.interval)
    }

    /// Whether these are still the addresses and the interval of the file.
    fn is_current(&self, addresses: &[IpAddr], interval: Duration) -> bool {
        let inside = self.watched();
        inside.interval == interval && inside.answered.keys().eq(addresses)
    }

    fn learn(&self, from: IpAddr) {
        let mut inside = self.watched();
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
    fn open(stack: &Stack, poller: &Poller) -> io::Result<Self> {
        let options =
            IcmpOptions { foreign: false, own: true, transparent: false, ..IcmpOptions::default() };
        let socket = IcmpSocket::open(stack, options)?;
        poller.add(&socket, 0, Events::IN)?;
        let identifier = u16::from_ne_bytes(random()?);
        Ok(Self { socket, identifier, sequence: 0 })
    }

    /// Pings all addresses once, by `end` at the latest. What their answers carry.
    ///
    /// # Errors
    /// The stack is gone, or there are no random bytes.
    fn send(&mut self, addresses: &[IpAddr], end: Instant) -> io::Result<[u8; PAYLOAD]> {
        self.sequence = self.sequence.wrapping_add(1);
        let payload = random()?;
        self.socket.set_nonblocking(false)?;
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
        self.socket.set_nonblocking(true)?;
        Ok(payload)
    }

    /// A message that has come, if there is one.
    ///
    /// # Errors
    /// The stack is gone.
    fn receive(&self) -> io::Result<Option<IcmpMessage>> {
        match self.socket.recv() {
            Ok(message) => Ok(Some(message)),
            // Without a network the pings stay without an answer.
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NetworkDown) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether a message answers the last pings.
    fn is_answer(&self, message: &IcmpMessage, payload: &[u8; PAYLOAD]) -> bool {
        let is_ours = message.echo() == Some((self.identifier, self.sequence));
        is_ours && message.data.get(8..) == Some(payload) && !message.is_echo_request()
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

#[cfg(test)]
#[allow(dead_code, reason = "an example has a `main`")]
#[path = "../../../neap/examples/device.rs"]
mod device;

#[cfg(test)]
mod tests {
    use super::*;
    use neap_wireguard::file::File;
    use std::os::unix::net::UnixDatagram;

    /// The section of a file with these lines.
    fn section(name: &str, lines: &str) -> InterfaceSection {
        let path = std::env::temp_dir().join(format!("neap-alive-{name}-{}", std::process::id()));
        let key = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";
        let peer = format!("[Peer]\nPublicKey = {key}\nAllowedIPs = 10.0.0.0/24\n");
        let own = format!("[Interface]\nPrivateKey = {key}\nAddress = 10.0.0.2/32\n{lines}");
        let text = own + &peer;
        std::fs::write(&path, text).expect("written");
        let file = File::read(&path);
        std::fs::remove_file(&path).expect("it is there");
        file.expect("it is right").interface
    }

    #[test]
    fn without_addresses_there_is_no_socket() {
        let (own, _cable) = UnixDatagram::pair().expect("a pair");
        let device = device::device("cable", own).expect("a device");
        let stack = Stack::builder().device(device).address("10.0.0.2/32").build();
        let stack = Arc::new(stack.expect("a stack"));
        let alive = Alive::new().expect("a descriptor");
        alive.watch(&stack).expect("a thread");
        let until = Instant::now() + Duration::from_secs(60);
        for (name, lines, sockets) in [("one", "CheckAlive = 10.0.0.1\n", 1), ("none", "", 0)] {
            alive.set(&section(name, lines));
            while stack.host().usage().icmp != sockets {
                assert!(Instant::now() < until, "there are not {sockets} sockets");
                thread::yield_now();
            }
        }
    }

    #[test]
    fn addresses_of_both_families_answer() {
        let (one, other) = UnixDatagram::pair().expect("a pair");
        let stack = |end, v4: &str, v6: &str| {
            let device = device::device("cable", end).expect("a device");
            let stack = Stack::builder().device(device).address(v4).address(v6).build();
            Arc::new(stack.expect("a stack"))
        };
        let own = stack(one, "10.0.0.2/24", "fd00::2/64");
        let _far = stack(other, "10.0.0.1/24", "fd00::1/64");
        let alive = Alive::new().expect("a descriptor");
        alive.set(&section("both", "CheckAlive = 10.0.0.1, fd00::1\nCheckAliveInterval = 1\n"));
        alive.watch(&own).expect("a thread");
        let until = Instant::now() + Duration::from_secs(60);
        while alive.answers().0.iter().any(|&(_, second)| second == 0) {
            assert!(Instant::now() < until, "{:?}", alive.answers());
            thread::yield_now();
        }
        assert_eq!(alive.answers().0.len(), 2);
    }
}
