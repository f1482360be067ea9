//! Options for how flows leave: by the machine itself or by a proxy, and who resolves names.

use super::Failure;
use super::confine::Needs;
use super::ending::Rest;
use super::tunnel::{self, KeptTunnel, Prepared, Settings, Shown};
use super::watching::{self, Listening, Watched};
use clap::Args;
use neap::Stack;
use neap::control::{Application, Control, ControlListener, Labelled};
use neap_gateway::proxy::{Credentials, Protocol, Proxy};
use neap_gateway::{
    DirectFrom, Gateway, GatewayConfig, Inspector, Outbound, Resolver, StackUpstream, Upstream,
};
use rustix::process::{DumpableBehavior, geteuid, set_dumpable_behavior};
use rustix::thread::CapabilitySet;
use socket2::{Domain, Socket, Type};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// A proxy has so long to answer at the start.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest file with a user and a password, bytes.
const MOST_AUTH: u64 = 1024;
/// Port of resolvers.
const RESOLVER_PORT: u16 = 53;
/// What the name of an upstream begins with that is a tunnel.
const WIREGUARD: &str = "wireguard:";

/// The upstream of flows, of all gateways.
#[derive(Args, Clone, Debug)]
struct UpstreamOptions {
    /// Where connections go: direct, socks5://HOST:PORT, http://HOST:PORT (CONNECT), or
    /// wireguard:FILE, the tunnel of a file of wg-quick. A proxy gets names, and resolves them
    #[arg(long, value_name = "URL", default_value = "direct")]
    upstream: String,
    /// File with USER:PASSWORD for the upstream, which only its owner may read
    #[arg(long, value_name = "FILE")]
    auth_file: Option<PathBuf>,
    /// Congestion control of connections in the tunnel of --upstream wireguard:FILE, such as cubic,
    /// bbr or bbr3 [default: that of the stack]
    #[arg(long, value_name = "NAME", value_parser = tunnel::congestion)]
    congestion: Option<String>,
}

/// How flows leave `neap gateway`.
#[derive(Args, Clone, Debug)]
pub(super) struct WayOut {
    #[command(flatten)]
    upstream: UpstreamOptions,
    /// Who resolves names: proxy (it gets them with the connections), direct (the nameservers of
    /// this machine), or the address of a resolver, which is asked by way of the upstream. What is
    /// sent to port 53 of any address is answered so [default: proxy with a proxy, the DNS of its
    /// file with a tunnel, else direct for what is sent to the gateway's own resolver]
    #[arg(long, value_name = "WAY", value_parser = dns)]
    dns: Option<Dns>,
    /// Interface by which everything leaves, whatever the routes say
    #[arg(long, value_name = "INTERFACE")]
    bind: Option<String>,
    /// Mark of all packets outside, for rules of `ip rule`; needs CAP_NET_ADMIN
    #[arg(long, value_name = "N", value_parser = mark)]
    mark: Option<u32>,
}

/// How flows leave the faces of other programs, beside the options of those: some have a `--dns` of
/// their own, and all say in their own words by which address or interface flows leave.
#[derive(Args, Clone, Debug)]
pub(crate) struct FaceWayOut {
    #[command(flatten)]
    upstream: UpstreamOptions,
    /// Who resolves names with --upstream: proxy (it gets them with the connections), direct (the
    /// nameservers of this machine, beside the upstream), or the address of a resolver, which is
    /// asked by way of the upstream [default: proxy with a proxy, with a tunnel the DNS of its
    /// file]
    #[arg(long, value_name = "WAY", value_parser = dns)]
    upstream_dns: Option<Dns>,
}

/// Who resolves names, by the option of this name.
#[derive(Clone, Copy, Debug)]
struct DnsOption {
    name: &'static str,
    way: Option<Dns>,
    /// Whether the gateway answers questions at all.
    is_needed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dns {
    Proxy,
    Direct,
    Server(SocketAddr),
}

fn dns(text: &str) -> Result<Dns, String> {
    let address = || text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, RESOLVER_PORT));
    match text {
        "proxy" => Ok(Dns::Proxy),
        "direct" => Ok(Dns::Direct),
        _ => text
            .parse()
            .or_else(|_| address())
            .map(Dns::Server)
            .map_err(|_| "expected proxy, direct or an address, such as 9.9.9.9".to_owned()),
    }
}

/// A number in the notations of `ip rule`.
fn mark(text: &str) -> Result<u32, String> {
    let number =
        text.strip_prefix("0x").map_or_else(|| text.parse(), |hex| u32::from_str_radix(hex, 16));
    number.map_err(|_| "expected a number of 32 bits, such as 51820 or 0xca6c".to_owned())
}

/// Where flows go, as the user names it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Url {
    Direct,
    Proxy { protocol: Protocol, host: String, port: u16 },
    Wireguard { file: PathBuf },
}

/// The way of flows, before the process gives up its rights.
pub(crate) enum Way {
    /// Sockets of the host.
    Ready(Box<dyn Upstream>),
    /// A tunnel that has no stack yet, and the control socket for that.
    Tunnel(Box<Prepared>, Option<ControlListener>),
}

/// A tunnel that runs.
pub(crate) struct Tunnelled {
    tunnel: KeptTunnel,
    /// What others see of it, and its control socket.
    shown: Shown,
    control: Option<Control>,
}

impl Way {
    /// The capabilities that it keeps, of those that this process may have.
    pub(crate) fn capabilities(&self) -> CapabilitySet {
        match self {
            Self::Ready(_) => CapabilitySet::empty(),
            Self::Tunnel(prepared, _) => prepared.needs().capabilities,
        }
    }

    /// Adds what the way keeps to what the gateway keeps.
    pub(crate) fn add_needs(&self, needs: &mut Needs) {
        if let Self::Tunnel(prepared, control) = self {
            let of_tunnel = prepared.needs();
            needs.capabilities |= of_tunnel.capabilities;
            needs.names |= of_tunnel.names;
            needs.sockets_in.extend(watching::folder(control.as_ref()));
        }
    }

    /// The folders that stay in reach of a gateway which reads the file of its tunnel again.
    pub(crate) fn folders(&self) -> Vec<PathBuf> {
        match self {
            Self::Ready(_) => Vec::new(),
            Self::Tunnel(prepared, _) => prepared.folders(),
        }
    }

    /// The environment variables that the file of a tunnel names, which are not for others.
    pub(crate) fn variables(&self) -> &[String] {
        match self {
            Self::Ready(_) => &[],
            Self::Tunnel(prepared, _) => prepared.variables(),
        }
    }

    /// The domains in which a tunnel has names looked up. `None` leaves the host's.
    pub(crate) fn search(&self) -> Option<&[String]> {
        match self {
            Self::Ready(_) => None,
            Self::Tunnel(prepared, _) => Some(prepared.search()),
        }
    }

    /// The upstream, once rights are given up, and the tunnel if it is one.
    ///
    /// # Errors
    /// The stack of the tunnel refuses a setting, or the system a thread.
    pub(crate) fn start(self) -> Result<(Box<dyn Upstream>, Option<Tunnelled>), Failure> {
        match self {
            Self::Ready(upstream) => Ok((upstream, None)),
            Self::Tunnel(prepared, control) => {
                let tunnel = prepared.start()?;
                let shown = tunnel.shown();
                let serve = |control: ControlListener| {
                    control.serve(&tunnel.stack, Some(Arc::new(shown.clone())))
                };
                let control = control.map(serve).transpose();
                let control = control.map_err(|error| Failure::System(error.to_string()))?;
                let upstream = Box::new(StackUpstream::new(tunnel.stack.clone()));
                let tunnel = KeptTunnel::new(tunnel);
                Ok((upstream, Some(Tunnelled { tunnel, shown, control })))
            }
        }
    }
}

/// What the metrics have of a gateway with a tunnel.
#[derive(Debug)]
struct Both {
    gateway: Inspector,
    tunnel: Shown,
}

impl Application for Both {
    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut all = self.gateway.counters();
        all.extend(self.tunnel.counters());
        all
    }

    fn gauges(&self) -> Vec<(&'static str, u64)> {
        self.gateway.gauges()
    }

    fn labelled(&self) -> Vec<Labelled> {
        let mut all = self.gateway.labelled();
        all.extend(self.tunnel.labelled());
        all
    }
}

/// Serves what others see of a gateway, with or without a tunnel. The tunnel has a control socket
/// of its own, and the metrics are those of both. Returns as well what the gateway leaves in the
/// end.
///
/// # Errors
/// The system refuses a descriptor or a thread.
pub(super) fn serve(
    listening: Listening,
    stack: &Stack,
    gateway: &Gateway,
    tunnel: Option<Tunnelled>,
) -> Result<(Watched, Rest), Failure> {
    let gateway = gateway.inspector();
    let shown: Arc<dyn Application> = Arc::new(gateway.clone());
    let Some(Tunnelled { tunnel, shown: of_tunnel, control }) = tunnel else {
        return Ok((listening.serve(stack, shown.clone(), shown)?, Rest::new(None)));
    };
    let both = Arc::new(Both { gateway, tunnel: of_tunnel });
    let watched = listening.serve(stack, shown, both)?.with(control);
    Ok((watched, Rest::new(Some(tunnel))))
}

impl FromStr for Url {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const EXPECTED: &str =
            "expected direct, socks5://HOST:PORT, http://HOST:PORT or wireguard:FILE";
        if text == "direct" {
            return Ok(Self::Direct);
        }
        if let Some(file) = text.strip_prefix(WIREGUARD).filter(|file| !file.is_empty()) {
            return Ok(Self::Wireguard { file: file.into() });
        }
        // It may have a password, so that it is not repeated.
        if text.contains('@') {
            return Err("a user and a password do not belong into a command line, which others \
                        can read: write USER:PASSWORD into a file and name it with --auth-file");
        }
        let (scheme, rest) = text.split_once("://").ok_or(EXPECTED)?;
        let protocol = match scheme {
            "socks5" | "socks5h" => Protocol::Socks5,
            "http" => Protocol::Http,
            _ => return Err(EXPECTED),
        };
        let (host, port) = rest.trim_end_matches('/').rsplit_once(':').ok_or(EXPECTED)?;
        let port = port.parse().ok().filter(|&port| port != 0).ok_or(EXPECTED)?;
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_name = |host: &str| !host.is_empty() && !host.contains([':', '/', '[', ']', '?']);
        let host = match bracketed {
            Some(v6) if v6.parse::<std::net::Ipv6Addr>().is_ok() => v6,
            None if is_name(host) => host,
            _ => return Err(EXPECTED),
        };
        Ok(Self::Proxy { protocol, host: host.to_owned(), port })
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Direct => f.write_str("direct"),
            Self::Wireguard { file } => write!(f, "wireguard:{}", file.display()),
            Self::Proxy { protocol, host, port } => {
                let scheme = if *protocol == Protocol::Socks5 { "socks5" } else { "http" };
                let (open, close) = if host.contains(':') { ("[", "]") } else { ("", "") };
                write!(f, "{scheme}://{open}{host}{close}:{port}")
            }
        }
    }
}

impl UpstreamOptions {
    fn url(&self) -> Result<Url, Failure> {
        let parsed = self.upstream.parse();
        parsed.map_err(|expected| Failure::Arguments(format!("--upstream: {expected}")))
    }

    /// Whether flows leave by this machine itself.
    fn is_direct(&self) -> bool {
        self.upstream == "direct"
    }

    /// Whether flows leave by a tunnel, whose file `SIGHUP` may have read again.
    fn has_tunnel(&self) -> bool {
        self.upstream.starts_with(WIREGUARD)
    }

    /// The upstream `url`, and what the engine has to know of it. A proxy is asked whether it is
    /// there. Sockets of this machine leave as `outbound` says, but for that of a tunnel, whose
    /// control socket `listen` makes by its name.
    fn open(
        &self,
        url: &Url,
        dns: DnsOption,
        outbound: Outbound,
        config: &mut GatewayConfig,
        listen: impl FnOnce(&str) -> Option<ControlListener>,
    ) -> Result<Way, Failure> {
        if let Url::Wireguard { file } = url {
            let prepared = self.open_tunnel(file, dns, config)?;
            return Ok(Way::Tunnel(Box::new(prepared), listen(&tunnel::name(file))));
        }
        if self.congestion.is_some() {
            let why = "--congestion is for a tunnel: name one with --upstream wireguard:FILE";
            return Err(Failure::Arguments(why.to_owned()));
        }
        let is_proxy = *url != Url::Direct;
        if self.auth_file.is_some() && !is_proxy {
            let why = "--auth-file is for a proxy: name one with --upstream";
            return Err(Failure::Arguments(why.to_owned()));
        }
        config.resolver = match dns.way {
            Some(Dns::Proxy) if !is_proxy => {
                let why = format!("{} proxy needs a proxy: name one with --upstream", dns.name);
                return Err(Failure::Arguments(why));
            }
            Some(Dns::Proxy) => Resolver::Names,
            None if is_proxy => Resolver::Names,
            Some(Dns::Direct) | None => Resolver::Host,
            Some(Dns::Server(server)) if is_proxy => Resolver::Through(vec![server]),
            Some(Dns::Server(server)) => Resolver::Server(server),
        };
        config.takes_all_dns = dns.is_needed && (is_proxy || dns.way.is_some());
        config.outbound = outbound.clone();
        let Url::Proxy { protocol, host, port } = url else {
            return Ok(Way::Ready(Box::new(DirectFrom(outbound))));
        };
        if *protocol == Protocol::Socks5 {
            // An association has a connection and a socket. Flows and questions need descriptors,
            // too.
            config.most_mappings /= 2;
        }
        let credentials = self.auth_file.as_deref().map(credentials).transpose()?;
        let addresses = (host.as_str(), *port).to_socket_addrs().map_err(|error| {
            Failure::System(format!("the upstream {url} has no address: {error}; check its name"))
        })?;
        let mut error = io::Error::from(io::ErrorKind::NotFound);
        for address in addresses {
            let proxy = Proxy::new(*protocol, address, credentials.clone());
            let proxy = proxy.outbound(outbound.clone());
            match proxy.probe(PATIENCE) {
                Ok(()) => return Ok(Way::Ready(Box::new(proxy))),
                Err(why) => error = why,
            }
        }
        Err(unusable(url, &error))
    }

    /// A tunnel, whose resolvers answer unless `dns` says otherwise.
    fn open_tunnel(
        &self,
        path: &Path,
        dns: DnsOption,
        config: &mut GatewayConfig,
    ) -> Result<Prepared, Failure> {
        if self.auth_file.is_some() {
            let why = "--auth-file is for a proxy: the keys of a tunnel are in its file";
            return Err(Failure::Arguments(why.to_owned()));
        }
        set_dumpable_behavior(DumpableBehavior::NotDumpable)
            .map_err(|error| Failure::System(error.to_string()))?;
        let mut file = tunnel::read(path)?;
        // Where it is read again, the current folder may be another one.
        for path in [Some(&mut file.path), file.tunnel_path.as_mut()].into_iter().flatten() {
            *path = std::path::absolute(&path)
                .map_err(|error| Failure::System(format!("{}: {error}", path.display())))?;
        }
        // Proxies and ports are for `neap wireguard`.
        file.doors.clear();
        if !file.interface.check_alive.is_empty() {
            let path = path.display();
            tracing::warn!("{path}: CheckAlive is for `neap wireguard`: nothing is pinged here");
        }
        config.resolver = match dns.way {
            Some(Dns::Proxy) => {
                return Err(Failure::Arguments(format!("{} proxy needs a proxy", dns.name)));
            }
            Some(Dns::Direct) => Resolver::Host,
            Some(Dns::Server(server)) => Resolver::Through(vec![server]),
            None if !file.interface.dns.is_empty() || !dns.is_needed => of_file(&file),
            None => {
                let why = format!(
                    "{}: [Interface] has no DNS: name a resolver there, or with {} ADDRESS",
                    path.display(),
                    dns.name
                );
                return Err(Failure::Arguments(why));
            }
        };
        config.takes_all_dns = dns.is_needed;
        let settings = Settings { congestion: self.congestion.clone(), ..Settings::default() };
        Prepared::open(file, &settings)
    }
}

impl WayOut {
    /// The upstream, and what the engine has to know of it. A proxy is asked whether it is there.
    pub(super) fn open(&self, config: &mut GatewayConfig) -> Result<Way, Failure> {
        let url = self.upstream.url()?;
        let is_tunnel = matches!(url, Url::Wireguard { .. });
        if is_tunnel && (self.bind.is_some() || self.mark.is_some()) {
            let why = "--bind and --mark are for sockets of this machine: a tunnel has FwMark";
            return Err(Failure::Arguments(why.to_owned()));
        }
        let outbound = if is_tunnel { Outbound::default() } else { self.outbound()? };
        let dns = DnsOption { name: "--dns", way: self.dns, is_needed: true };
        self.upstream.open(&url, dns, outbound, config, watching::listen)
    }

    /// Whether flows leave by this machine itself.
    pub(super) fn is_direct(&self) -> bool {
        self.upstream.is_direct()
    }

    /// Whether flows leave by a tunnel, whose file `SIGHUP` may have read again.
    pub(super) fn has_tunnel(&self) -> bool {
        self.upstream.has_tunnel()
    }

    /// The settings of sockets, tried on one.
    fn outbound(&self) -> Result<Outbound, Failure> {
        let mut outbound = Outbound::default();
        (outbound.interface, outbound.mark) = (self.bind.clone(), self.mark);
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)
            .map_err(|error| Failure::System(format!("a socket: {error}")))?;
        let Err(error) = outbound.apply(&socket) else { return Ok(outbound) };
        let why = match (&self.bind, error.raw_os_error().map(rustix::io::Errno::from_raw_os_error))
        {
            (Some(name), Some(rustix::io::Errno::NODEV)) => {
                format!("--bind {name}: there is no such interface: `ip link` lists them")
            }
            (_, Some(rustix::io::Errno::PERM)) => {
                "--bind and --mark: no right to set them: run with CAP_NET_ADMIN".to_owned()
            }
            _ => format!("--bind or --mark: {error}"),
        };
        Err(Failure::System(why))
    }
}

impl FaceWayOut {
    /// The upstream, and what the engine has to know of it. A proxy is asked whether it is there.
    /// Without one flows leave as `outbound` says. Without `has_dns` the gateway takes no
    /// questions, and guests ask whom they want, by way of the upstream. `listen` makes the control
    /// socket of a tunnel by its name.
    ///
    /// # Errors
    /// Options that make no sense together, a file that is not understood, a proxy that does not
    /// answer, or what the machine refuses.
    pub(crate) fn open(
        &self,
        outbound: Outbound,
        has_dns: bool,
        config: &mut GatewayConfig,
        listen: impl FnOnce(&str) -> Option<ControlListener>,
    ) -> Result<Way, Failure> {
        if self.is_direct() && self.upstream_dns.is_some() {
            let why = "--upstream-dns is for an upstream: name one with --upstream";
            return Err(Failure::Arguments(why.to_owned()));
        }
        let (name, way) = ("--upstream-dns", self.upstream_dns);
        let dns = DnsOption { name, way, is_needed: has_dns };
        self.upstream.open(&self.upstream.url()?, dns, outbound, config, listen)
    }

    /// Whether flows leave by this machine itself.
    pub(crate) fn is_direct(&self) -> bool {
        self.upstream.is_direct()
    }

    /// Whether flows leave by a tunnel, whose file `SIGHUP` may have read again.
    pub(crate) fn has_tunnel(&self) -> bool {
        self.upstream.has_tunnel()
    }

    /// Checks that no option leads beside an upstream: each is there or not, by its name.
    ///
    /// # Errors
    /// One line about the first that does.
    pub(crate) fn refuse(&self, options: &[(bool, &str)]) -> Result<(), String> {
        let given = options.iter().find(|(is_given, _)| *is_given && !self.is_direct());
        given.map_or(Ok(()), |(_, name)| {
            Err(format!("{name}: cannot stand beside --upstream, as nothing leaves beside that"))
        })
    }
}

/// The resolvers that the file of a tunnel names, which are asked by way of it.
fn of_file(file: &neap_wireguard::file::File) -> Resolver {
    let servers = file.interface.dns.iter().map(|&ip| SocketAddr::new(ip, RESOLVER_PORT));
    Resolver::Through(servers.collect())
}

/// One line that says why a proxy is of no use, and what to do.
fn unusable(url: &Url, error: &io::Error) -> Failure {
    let why = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            format!("the upstream {url} does not let us in: {error}; check --auth-file")
        }
        io::ErrorKind::InvalidData => {
            format!("the upstream {url} is no such proxy: {error}; check the URL")
        }
        _ => format!(
            "the upstream {url} does not answer: {error}; start it, or name another one with \
             --upstream"
        ),
    };
    Failure::System(why)
}

/// Reads USER:PASSWORD from a file.
fn credentials(path: &Path) -> Result<Credentials, Failure> {
    let bad = |why: String| Failure::Arguments(format!("--auth-file {}: {why}", path.display()));
    let file = File::open(path).map_err(|error| bad(error.to_string()))?;
    let state = file.metadata().map_err(|error| bad(error.to_string()))?;
    if state.mode() & 0o077 != 0 {
        return Err(bad("others may read it: chmod 600".to_owned()));
    }
    let owners = [geteuid().as_raw(), 0];
    if !owners.contains(&state.uid()) {
        return Err(bad("it belongs to somebody else: chown".to_owned()));
    }
    let mut text = String::new();
    file.take(MOST_AUTH).read_to_string(&mut text).map_err(|error| bad(error.to_string()))?;
    let line = text.strip_suffix('\n').unwrap_or(&text);
    let parsed = line.split_once(':').and_then(|(user, password)| Credentials::new(user, password));
    parsed
        .ok_or_else(|| bad("expected one line USER:PASSWORD, each of at most 255 bytes".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::TcpListener;

    #[test]
    fn upstreams_are_read_and_printed() {
        for text in [
            "direct",
            "socks5://10.0.0.1:1080",
            "http://[2001:db8::1]:8080",
            "wireguard:dir/wg0.conf",
        ] {
            assert_eq!(text.parse::<Url>().expect(text).to_string(), text);
        }
        let proxy = |text: &str| text.parse::<Url>().expect(text).to_string();
        assert_eq!(proxy("socks5h://tor:9050/"), "socks5://tor:9050");
        for text in [
            "",
            "socks5",
            "wireguard:",
            "socks5://",
            "socks5://host",
            "socks5://host:0",
            "socks5://host:99999",
            "socks5://:1080",
            "socks5://2001:db8::1:80",
            "socks5://[host]:80",
            "socks4://host:80",
            "https://host:80",
            "http://host:80/path",
        ] {
            let error = text.parse::<Url>().expect_err(text);
            assert!(error.contains("expected direct"), "{text}: {error}");
        }
        let error = "http://me:secret@host:80".parse::<Url>().expect_err("a password");
        assert!(error.contains("--auth-file") && !error.contains("secret"), "{error}");
    }

    #[test]
    fn mappings_that_take_two_descriptors_are_half_as_many() {
        for (scheme, expected) in [("socks5", 50), ("http", 100)] {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let server = listener.local_addr().expect("an address");
            // Without a user it says that it wants none.
            let proxy = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().expect("a connection");
                stream.write_all(&[5, 0]).expect("sent");
                let _ = stream.read(&mut [0; 10]);
            });
            let upstream = UpstreamOptions {
                upstream: format!("{scheme}://{server}"),
                auth_file: None,
                congestion: None,
            };
            let way_out = WayOut { upstream, dns: None, bind: None, mark: None };
            let mut config = GatewayConfig::default();
            config.most_mappings = 100;
            assert!(way_out.open(&mut config).is_ok(), "{scheme}");
            assert_eq!(config.most_mappings, expected, "{scheme}");
            proxy.join().expect("no panic");
        }
    }

    #[test]
    fn every_resolver_of_the_file_of_a_tunnel_is_asked() {
        let file = tunnel::tests::file("DNS = 10.0.0.53, lan.example, fd00::53", "");
        let servers = ["10.0.0.53:53", "[fd00::53]:53"];
        let servers = servers.map(|text| text.parse().expect("an address"));
        assert_eq!(of_file(&file), Resolver::Through(servers.to_vec()));
    }

    #[test]
    fn resolvers_are_read() {
        assert_eq!(dns("proxy"), Ok(Dns::Proxy));
        assert_eq!(dns("direct"), Ok(Dns::Direct));
        let server = "9.9.9.9:53".parse().expect("an address");
        assert_eq!(dns("9.9.9.9"), Ok(Dns::Server(server)));
        let server = "[2001:db8::1]:5353".parse().expect("an address");
        assert_eq!(dns("[2001:db8::1]:5353"), Ok(Dns::Server(server)));
        assert!(dns("dns.example").is_err());
        assert_eq!(mark("0xca6c"), Ok(51820));
        assert!(mark("-1").is_err());
    }
}
