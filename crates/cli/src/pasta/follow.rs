//! Ports that are followed: what somebody listens at on one side is forwarded from the other one.
//!
//! The kernel tells nobody that a socket has begun to listen, so the tables are read once a second.
//! Nothing is read if no option says `auto`.
//!
//! Whoever listens in the namespace chooses ports of the host. So the number of followed ports has
//! a bound, and their sockets leave the descriptors that no guest may have. Ports that the kernel
//! of the host gives to clients are followed by TCP alone: programs that publish a port of a
//! container choose it among them, and the bound leaves clients enough.

use super::agent::Agent;
use super::arguments::{AllPorts, Args};
use super::listening::Tables;
use super::log::Log;
use super::network::Network;
use super::ports::{Place, PortSet, Ports};
use super::publish::{Binder, Bound, not_given};
use neap_gateway::{GatewayHandle, Policy, PublishedId, Transport, admit_descriptor};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// Time between two looks at the tables.
const INTERVAL: Duration = Duration::from_secs(1);
/// Ports of one table that are tried again in one look, as somebody else had them.
const AGAIN: usize = 16;
/// Ports of one table that are followed at the same time.
const MOST: usize = 1024;

/// Ports of one side that are those of the other.
#[derive(Debug, Default)]
struct Followed {
    /// The ports with their sockets; a port that could not be had is there without.
    ports: BTreeMap<u16, Vec<PublishedId>>,
    /// The last port that was tried again.
    last: u16,
    /// Ports that are not followed, as there are too many.
    left_out: usize,
    /// Whether it was said that there are too many.
    has_told: bool,
}

impl Followed {
    /// Whether the port is one of the other side.
    fn has(&self, port: u16) -> bool {
        self.ports.get(&port).is_some_and(|ids| !ids.is_empty())
    }

    /// Notes what a port came to, and lets one be told of that could not be had for the first time.
    ///
    /// # Errors
    /// The gateway has ended.
    fn note(
        &mut self,
        port: u16,
        opened: io::Result<Vec<PublishedId>>,
        tell: impl FnOnce(io::Error),
    ) -> io::Result<()> {
        let ids = match opened {
            Ok(ids) => ids,
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Err(error),
            Err(error) => {
                if !self.ports.contains_key(&port) {
                    tell(error);
                }
                Vec::new()
            }
        };
        self.ports.insert(port, ids);
        Ok(())
    }

    /// What is to be tried now: ports that are new, and some of those that could not be had.
    fn due(&mut self, wanted: &[u16]) -> Vec<u16> {
        let known = self.ports.iter();
        let mut again: Vec<_> =
            known.filter(|(_, ids)| ids.is_empty()).map(|(&port, _)| port).collect();
        let first = again.partition_point(|&port| port <= self.last);
        again.rotate_left(first);
        again.truncate(AGAIN);
        self.last = again.last().copied().unwrap_or(self.last);
        let new = || wanted.iter().filter(|port| !self.ports.contains_key(port));
        let room = MOST.saturating_sub(self.ports.len());
        again.extend(new().take(room));
        self.left_out = new().count().saturating_sub(room);
        again
    }
}

/// What follows the ports.
pub(super) struct Follower {
    pub(super) args: Args,
    pub(super) network: Network,
    pub(super) ports: AllPorts,
    pub(super) agent: Agent,
    pub(super) gateway: GatewayHandle,
    log: Arc<Log>,
    /// What the user keeps from the namespace. That no address of it stands for the loopback of the
    /// host does not matter here.
    policy: Policy,
    /// The ports of the host.
    tables: Tables,
    /// Ports of the host that are those of the namespace.
    tcp_in: Followed,
    udp_in: Followed,
    /// Ports of the namespace's loopback that are those of the host.
    tcp_out: Followed,
    udp_out: Followed,
}

impl Follower {
    pub(super) fn new(
        args: Args,
        network: Network,
        ports: AllPorts,
        agent: Agent,
        gateway: GatewayHandle,
        log: Arc<Log>,
        tables: Tables,
    ) -> Self {
        let [tcp_in, udp_in, tcp_out, udp_out] = [(); 4].map(|()| Followed::default());
        let mut policy = Policy::default();
        args.own.limits.add_to(&mut policy);
        Self {
            args,
            network,
            ports,
            agent,
            gateway,
            log,
            policy,
            tables,
            tcp_in,
            udp_in,
            tcp_out,
            udp_out,
        }
    }

    /// Whether there is anything to follow.
    pub(super) fn is_needed(&self) -> bool {
        self.ports.are_followed()
    }

    /// Makes the listed ports of the namespace those of the host.
    ///
    /// # Errors
    /// One line for the first that the namespace does not give.
    pub(super) fn open_listed(&mut self) -> Result<(), String> {
        for (transport, ports) in [
            (Transport::Tcp, self.ports.tcp_out.clone()),
            (Transport::Udp, self.ports.udp_out.clone()),
        ] {
            let Ports::Listed { ports, may_fail } = ports else { continue };
            for ((_, port), target) in ports {
                let opened = self.cross(transport, port, target);
                let lacks = opened.as_ref().err().map(ToString::to_string);
                let ids = opened.unwrap_or_default();
                if ids.is_empty() && !may_fail {
                    let option = option_out(transport);
                    let why = if self.loopbacks().next().is_none() {
                        "--deny keeps the namespace from the loopback addresses of the host"
                    } else {
                        lacks.as_deref().unwrap_or("the namespace does not give the port")
                    };
                    return Err(format!("{option}: port {port}: {why}"));
                }
                self.out(transport).ports.insert(port, ids);
            }
        }
        Ok(())
    }

    fn out(&mut self, transport: Transport) -> &mut Followed {
        match transport {
            Transport::Tcp => &mut self.tcp_out,
            Transport::Udp => &mut self.udp_out,
        }
    }

    /// Follows until the other side of `stop` is gone, or the namespace.
    pub(super) fn run(&mut self, stop: &Receiver<()>) {
        while stop.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
            let Err(error) = self.look() else { continue };
            // That of a command ends with it, and a gateway that ends needs no word.
            if !self.args.runs_command() && self.gateway.published().is_ok() {
                self.log.info(&format_args!("ports are followed no longer: {error}"));
            }
            return;
        }
    }

    /// Follows what has changed.
    ///
    /// # Errors
    /// The process in the namespace is gone, or the gateway.
    pub(super) fn look(&mut self) -> io::Result<()> {
        if self.ports.tcp_in == Ports::Auto || self.ports.udp_in == Ports::Auto {
            let listening = self.agent.listening()?;
            // What this program has opened in the namespace is the host's already.
            let is_own = |transport, port| match transport {
                Transport::Tcp => self.tcp_out.has(port),
                Transport::Udp => self.udp_out.has(port),
            };
            let wanted = wanted(listening, is_own, &self.tables.clients());
            for (transport, wanted) in wanted {
                self.follow_namespace(transport, &wanted)?;
            }
        }
        if self.ports.tcp_out == Ports::Auto || self.ports.udp_out == Ports::Auto {
            let listening = (self.tables.tcp(), self.tables.udp());
            // What this program has opened on the host is the namespace's already.
            let [tcp, udp] = [&self.ports.tcp_in, &self.ports.udp_in].map(listed);
            let is_own = |transport, port| match transport {
                Transport::Tcp => self.tcp_in.has(port) || tcp.contains(port),
                Transport::Udp => self.udp_in.has(port) || udp.contains(port),
            };
            let wanted = wanted(listening, is_own, &self.tables.clients());
            for (transport, wanted) in wanted {
                self.follow_host(transport, &wanted)?;
            }
        }
        Ok(())
    }

    /// Ports of the host become those of the namespace where somebody listens there.
    fn follow_namespace(&mut self, transport: Transport, wanted: &[u16]) -> io::Result<()> {
        let option = match transport {
            Transport::Tcp => &self.ports.tcp_in,
            Transport::Udp => &self.ports.udp_in,
        };
        if *option != Ports::Auto {
            return Ok(());
        }
        let mut known = std::mem::take(match transport {
            Transport::Tcp => &mut self.tcp_in,
            Transport::Udp => &mut self.udp_in,
        });
        self.forget(&mut known, wanted)?;
        let mut refused = Vec::new();
        for port in known.due(wanted) {
            let binder = Binder { args: &self.args, network: &self.network };
            let bound = binder.bind(transport, &Place::default(), port, port);
            let publish = |(socket, publication): Bound| {
                admit_descriptor(&socket)?;
                self.gateway.publish_socket(socket, publication)
            };
            let close = |id| self.gateway.unpublish(id);
            let opened = bound.and_then(|bound| all_or_none(bound, publish, close));
            // What another program of the host has is the namespace's as soon as it is free.
            let refused = |error| refused.push(not_given("host", transport, port, &error));
            known.note(port, opened, refused)?;
        }
        self.say(&refused);
        let (option, followed) = match transport {
            Transport::Tcp => ("--tcp-ports", &mut self.tcp_in),
            Transport::Udp => ("--udp-ports", &mut self.udp_in),
        };
        tell_of_too_many(&self.log, &mut known, option, ["namespace", "host"]);
        *followed = known;
        Ok(())
    }

    /// Ports of the namespace's loopback become those of the host where somebody listens there.
    fn follow_host(&mut self, transport: Transport, wanted: &[u16]) -> io::Result<()> {
        let option = match transport {
            Transport::Tcp => &self.ports.tcp_out,
            Transport::Udp => &self.ports.udp_out,
        };
        if *option != Ports::Auto {
            return Ok(());
        }
        let mut known = std::mem::take(self.out(transport));
        self.forget(&mut known, wanted)?;
        let mut refused = Vec::new();
        for port in known.due(wanted) {
            let opened = self.cross(transport, port, port);
            let refused = |error| refused.push(not_given("namespace", transport, port, &error));
            known.note(port, opened, refused)?;
        }
        self.say(&refused);
        let option = option_out(transport);
        tell_of_too_many(&self.log, &mut known, option, ["host", "namespace"]);
        *self.out(transport) = known;
        Ok(())
    }

    /// Says which ports could not be had, in one line: the namespace can bring about many.
    fn say(&self, refused: &[String]) {
        let Some((first, others)) = refused.split_first() else { return };
        let others = match others.len() {
            0 => String::new(),
            number => format!(" (and {number} more)"),
        };
        self.log.info(&format_args!("{first}; it is tried again{others}"));
    }

    /// Closes what nobody listens behind any more.
    fn forget(&self, known: &mut Followed, wanted: &[u16]) -> io::Result<()> {
        let known = &mut known.ports;
        let gone: Vec<_> =
            known.keys().copied().filter(|port| wanted.binary_search(port).is_err()).collect();
        for port in gone {
            for id in known.remove(&port).unwrap_or_default() {
                self.gateway.unpublish(id)?;
            }
        }
        Ok(())
    }

    /// The loopback addresses of the families that the namespace has, without those of the host
    /// that the user keeps it from.
    fn loopbacks(&self) -> impl Iterator<Item = IpAddr> {
        let v4 = self.network.v4.is_some().then_some(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let v6 = self.network.v6.is_some().then_some(IpAddr::V6(Ipv6Addr::LOCALHOST));
        v4.into_iter().chain(v6).filter(|&address| self.policy.allows(address))
    }

    /// Joins a port of the namespace's loopback addresses with one of the host's. None if somebody
    /// else in the namespace has the port, or the user keeps the namespace from these addresses.
    ///
    /// # Errors
    /// There are too few descriptors.
    fn cross(
        &mut self,
        transport: Transport,
        port: u16,
        target: u16,
    ) -> io::Result<Vec<PublishedId>> {
        let is_tcp = transport == Transport::Tcp;
        if if is_tcp { self.args.no_tcp } else { self.args.no_udp } {
            return Ok(Vec::new());
        }
        let mut sockets = Vec::new();
        for address in self.loopbacks().collect::<Vec<_>>() {
            let socket = self.agent.bind(is_tcp, SocketAddr::new(address, port));
            sockets.extend(socket.ok().map(|socket| (socket, SocketAddr::new(address, target))));
        }
        let join = |(socket, to): (OwnedFd, SocketAddr)| {
            admit_descriptor(&socket)?;
            self.gateway.cross(transport, socket, to)
        };
        all_or_none(sockets, join, |id| self.gateway.unpublish(id))
    }
}

/// The ports of one side that are to be those of the other one, of each transport: those that
/// others than this program listen at. A server of both protocols is often one, so TCP ports of
/// others are UDP ports too. UDP leaves out those that the kernel gives to `clients`.
fn wanted(
    (tcp, udp): (PortSet, PortSet),
    is_own: impl Fn(Transport, u16) -> bool,
    clients: &RangeInclusive<u16>,
) -> [(Transport, Vec<u16>); 2] {
    let tcp: Vec<_> = tcp.iter().filter(|&port| !is_own(Transport::Tcp, port)).collect();
    let mut both = udp;
    tcp.iter().for_each(|&port| both.insert(port));
    let is_wanted = |&port: &u16| !is_own(Transport::Udp, port) && !clients.contains(&port);
    [(Transport::Tcp, tcp), (Transport::Udp, both.iter().filter(is_wanted).collect())]
}

/// The ports that an option names, on the side where they are opened.
fn listed(ports: &Ports) -> PortSet {
    let mut set = PortSet::default();
    if let Ports::Listed { ports, .. } = ports {
        ports.keys().for_each(|&(_, port)| set.insert(port));
    }
    set
}

/// The option for ports of the namespace's loopback.
fn option_out(transport: Transport) -> &'static str {
    match transport {
        Transport::Tcp => "--tcp-ns",
        Transport::Udp => "--udp-ns",
    }
}

/// Says once of an option that ports are left out, and how many they are at this time.
fn tell_of_too_many(log: &Log, known: &mut Followed, option: &str, sides: [&str; 2]) {
    if known.left_out > 0 && !std::mem::replace(&mut known.has_told, true) {
        log.info(&too_many(option, known.left_out, sides));
    }
}

/// One line about ports of one side that are not those of the other.
fn too_many(option: &str, number: usize, [there, here]: [&str; 2]) -> String {
    format!(
        "{option} auto: somebody listens at {number} more ports of the {there} than the {MOST} \
         that it opens: they are closed on the {here}; name the ports that are needed ({option} \
         LIST)"
    )
}

/// Opens the sockets of a port. If there is no descriptor for one of them, none is open, and the
/// port is tried again as a whole: one that has one family only would stay so.
fn all_or_none<S>(
    sockets: Vec<S>,
    mut open: impl FnMut(S) -> io::Result<PublishedId>,
    mut close: impl FnMut(PublishedId) -> io::Result<()>,
) -> io::Result<Vec<PublishedId>> {
    let mut ids = Vec::new();
    for socket in sockets {
        match open(socket) {
            Ok(id) => ids.push(id),
            Err(error) => {
                ids.into_iter().try_for_each(&mut close)?;
                return Err(error);
            }
        }
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn udp_follows_tcp_ports_of_others_and_neither_own_ones_nor_those_of_clients() {
        let listening = || (PortSet::of(&[80, 443, 5432, 40_000]), PortSet::of(&[53, 443, 7000]));
        let own = [(Transport::Tcp, 443), (Transport::Tcp, 5432), (Transport::Udp, 7000)];
        let wanted =
            |own: &[_]| wanted(listening(), |of, at| own.contains(&(of, at)), &(32768..=60999));
        let [tcp, udp] = wanted(&own);
        assert_eq!(tcp, (Transport::Tcp, vec![80, 40_000]));
        // The UDP socket of 443 is somebody else's, whoever has the TCP port.
        assert_eq!(udp, (Transport::Udp, vec![53, 80, 443]));
        let [_, udp] = wanted(&[(Transport::Udp, 80)]);
        assert_eq!(udp, (Transport::Udp, vec![53, 443, 5432, 7000]));
    }

    #[test]
    fn no_more_ports_are_followed_than_the_bound_allows() {
        let mut followed = Followed::default();
        let wanted: Vec<u16> = (1..=2000).collect();
        let due = followed.due(&wanted);
        assert_eq!((due.len(), followed.left_out), (MOST, 2000 - MOST));
        followed.ports = due.iter().map(|&port| (port, vec![PublishedId::from(1)])).collect();
        assert_eq!((followed.due(&wanted), followed.left_out), (Vec::new(), 2000 - MOST));
        followed.ports.remove(&7);
        assert_eq!((followed.due(&wanted), followed.left_out), (vec![7], 2000 - MOST));
    }

    #[test]
    fn ports_beyond_the_bound_are_told_once_for_each_option_with_what_to_do() {
        let path = std::env::temp_dir().join(format!("neap-too-many-{}", std::process::id()));
        let log = Log::new(false, Some(&path), 1 << 20).expect("a file");
        let mut followed = [(); 2].map(|()| Followed { left_out: 3, ..Followed::default() });
        let sides = [("--tcp-ports", ["namespace", "host"]), ("--udp-ns", ["host", "namespace"])];
        for _ in 0..2 {
            for (known, (option, sides)) in followed.iter_mut().zip(sides) {
                tell_of_too_many(&log, known, option, sides);
            }
        }
        let told = std::fs::read_to_string(&path).expect("a file");
        std::fs::remove_file(&path).expect("it is there");
        for (line, hints) in told.lines().zip([
            ["--tcp-ports auto", "3 more ports of the namespace", "host", "(--tcp-ports LIST)"],
            ["--udp-ns auto", "3 more ports of the host", "namespace", "(--udp-ns LIST)"],
        ]) {
            assert!(hints.iter().all(|hint| line.contains(hint)), "{line}");
        }
        assert_eq!(told.lines().count(), 2, "{told}");
    }

    #[test]
    fn a_port_that_has_a_descriptor_for_one_family_only_is_told_of_and_tried_again() {
        let (mut followed, mut closed, mut told) = (Followed::default(), Vec::new(), 0);
        for _ in 0..2 {
            assert_eq!(followed.due(&[80]), [80]);
            let open = |id: u64| match id {
                1 => Ok(PublishedId::from(id)),
                _ => Err(rustix::io::Errno::MFILE.into()),
            };
            let close = |id| {
                closed.push(id);
                Ok(())
            };
            let opened = all_or_none(vec![1, 2], open, close);
            followed.note(80, opened, |_| told += 1).expect("the gateway runs");
        }
        assert_eq!((closed, told), (vec![PublishedId::from(1); 2], 1));
        let opened = all_or_none(vec![1, 2], |id| Ok(PublishedId::from(id)), |_| Ok(()));
        followed.note(80, opened, |_| told += 1).expect("the gateway runs");
        assert!(followed.has(80) && followed.due(&[80]).is_empty());
    }

    #[test]
    fn ports_that_could_not_be_had_are_tried_again_in_turn_and_new_ones_at_once() {
        let mut followed = Followed::default();
        let wanted: Vec<u16> = (1..=40).collect();
        assert_eq!(followed.due(&wanted), wanted);
        followed.ports = wanted.iter().map(|&port| (port, Vec::new())).collect();
        followed.ports.insert(7, vec![PublishedId::from(1)]);
        let mut tried: Vec<u16> = (0..3).flat_map(|_| followed.due(&wanted)).collect();
        assert_eq!(tried.len(), 3 * AGAIN);
        tried.sort_unstable();
        tried.dedup();
        assert_eq!(tried, wanted.iter().copied().filter(|&port| port != 7).collect::<Vec<_>>());
    }
}
