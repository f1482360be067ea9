//! The ports that somebody listens at, as the kernel tells in `/proc/net` (proc_net(5)).
//!
//! Cost: reading the tables of all sockets of a namespace in pieces of 64 KiB, which is O(sockets).

use super::ports::PortSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek};
use std::ops::RangeInclusive;

/// States of sockets that wait for others, in hexadecimal: `TCP_LISTEN`, and `TCP_CLOSE` of a UDP
/// socket that is not connected.
const LISTENING: &str = "0A";
const UNCONNECTED: &str = "07";

/// Bytes of a table that are read at once.
const PIECE: usize = 64 << 10;

/// The range of ports that the kernel gives to clients.
const CLIENT_PORTS: &str = "/proc/sys/net/ipv4/ip_local_port_range";

/// The tables of the namespace in which they were opened. They can be read when the process has
/// given up its files.
#[derive(Debug)]
pub(super) struct Tables {
    tcp: Vec<File>,
    udp: Vec<File>,
    /// The range of [`CLIENT_PORTS`].
    clients: Option<File>,
}

impl Tables {
    /// Those of the namespace that this process is in.
    pub(super) fn open() -> Self {
        // A kernel without IPv6 lacks two.
        let open = |names: [&str; 2]| {
            let paths = names.map(|name| format!("/proc/self/net/{name}"));
            paths.iter().filter_map(|path| File::open(path).ok()).collect()
        };
        let clients = File::open(CLIENT_PORTS).ok();
        Self { tcp: open(["tcp", "tcp6"]), udp: open(["udp", "udp6"]), clients }
    }

    /// Ports of listening TCP sockets.
    pub(super) fn tcp(&self) -> PortSet {
        of(&self.tcp, LISTENING)
    }

    /// Ports of UDP sockets that take datagrams of everybody, without those that the kernel gives
    /// to clients.
    pub(super) fn udp(&self) -> PortSet {
        let clients = self.clients();
        let mut ports = PortSet::default();
        let bound = of(&self.udp, UNCONNECTED);
        bound.iter().filter(|port| !clients.contains(port)).for_each(|port| ports.insert(port));
        ports
    }

    /// Ports that the kernel gives to clients.
    pub(super) fn clients(&self) -> RangeInclusive<u16> {
        range_in(self.clients.as_ref())
    }
}

/// Ports that the kernel gives to clients in the namespace that this process is in.
pub(super) fn client_ports() -> RangeInclusive<u16> {
    range_in(File::open(CLIENT_PORTS).ok().as_ref())
}

fn range_in(file: Option<&File>) -> RangeInclusive<u16> {
    let text = file.and_then(|file| text_of(file).ok()).unwrap_or_default();
    let mut numbers = text.split_whitespace().map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(first)), Some(Ok(last))) => first..=last,
        _ => 32768..=60999,
    }
}

/// What a file of the kernel says at this time.
fn text_of(mut file: &File) -> io::Result<String> {
    let mut text = String::new();
    file.rewind()?;
    file.read_to_string(&mut text)?;
    Ok(text)
}

fn of(tables: &[File], state: &str) -> PortSet {
    let mut ports = PortSet::default();
    for mut table in tables {
        // What cannot be read has no ports, or no more than those before.
        let rewound = table.rewind().map(|()| BufReader::with_capacity(PIECE, table));
        let _ = rewound.and_then(|table| read(table, state, &mut ports));
    }
    ports
}

/// Lines are `0: 0100007F:0035 00000000:0000 0A ...`: own address and port, the peer's, the state.
fn read(mut table: impl BufRead, state: &str, ports: &mut PortSet) -> io::Result<()> {
    let mut line = String::new();
    while table.read_line(&mut line)? > 0 {
        let mut words = line.split_whitespace().skip(1);
        let (own, of_socket) = (words.next(), words.nth(1));
        let port = own.and_then(|own| own.rsplit_once(':'));
        let port = port.and_then(|(_, port)| u16::from_str_radix(port, 16).ok());
        if let Some(port) = port.filter(|&port| port != 0 && of_socket == Some(state)) {
            ports.insert(port);
        }
        line.clear();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_of_the_state_are_taken() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr\n\
                     0: 0100007F:0035 00000000:0000 0A 00000000:00000000 00:00000000\n\
                     1: 0100007F:C001 0100007F:0035 01 00000000:00000000 00:00000000\n\
                     2: 00000000000000000000000000000000:1F90 \
                     00000000000000000000000000000000:0000 0A 00000000:00000000\n\
                     3: nonsense\n";
        let mut ports = PortSet::default();
        read(table.as_bytes(), LISTENING, &mut ports).expect("text");
        assert_eq!(ports.iter().collect::<Vec<_>>(), [53, 8080]);
    }

    #[test]
    fn a_listener_of_this_process_is_seen() {
        let tables = Tables::open();
        let before = tables.tcp();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        assert!(tables.tcp().contains(port) && !before.contains(port));
        drop(listener);
    }
}
