//! Makes a running stack: device, addresses, routes, sysctls, workers.

use crate::clock;
use crate::driver::Driver;
use crate::engine::Engine;
use crate::error::BuildError;
use crate::resolver::{Resolve, Resolver};
use crate::workers::Stack;
use core::net::{IpAddr, Ipv4Addr};
use neap_device::{LinkConfig, Tun, TunConfig, configure_link};
use neap_stack::device::Device;
use neap_stack::interface::Address;
use neap_stack::qdisc::Qdisc;
use neap_stack::qdisc::config::QdiscError;
use neap_stack::qdisc::kinds::{QdiscKinds, QdiscSetup};
use neap_stack::route::{Prefix, Route, RouteEntry};
use neap_stack::stack::{StackConfig, StackError};
use neap_tcp::config::Config;
use neap_tcp::congestion::{CongestionControl, Controllers, RegisterError};
use std::time::Duration;

/// Collects what a [`Stack`] is made of.
///
/// ```no_run
/// let stack = neap::Stack::builder()
///     .tun("neap0", "10.9.0.1/24")
///     .address("10.9.0.2/24")
///     .sysctl("net.ipv4.tcp_congestion_control", "cubic")
///     .build()?;
/// # Ok::<(), neap::BuildError>(())
/// ```
#[derive(Debug, Default)]
pub struct Builder {
    device: Option<DeviceSpec>,
    addresses: Vec<String>,
    gateways: Vec<IpAddr>,
    sysctls: Vec<(String, String)>,
    qdisc: Option<String>,
    config: Config,
    controllers: Controllers,
    qdiscs: QdiscKinds,
    /// The first registrations that were refused.
    refused: (Option<RegisterError>, Option<QdiscError>),
    seed: Option<u64>,
    spin: Duration,
    resolver: Resolver,
}

/// The device that a stack runs on.
#[derive(Debug)]
enum DeviceSpec {
    /// One that is open.
    Device(Device),
    /// A TUN to be opened, and the address of the kernel's end.
    Tun { config: TunConfig, host_address: String },
}

impl Stack {
    /// Begins to describe a stack.
    pub fn builder() -> Builder {
        Builder::default()
    }
}

impl Builder {
    /// Runs on this device; each of its queues gets a worker.
    #[must_use]
    pub fn device(mut self, device: Device) -> Self {
        self.device = Some(DeviceSpec::Device(device));
        self
    }

    /// Runs on a TUN of this name, made if it is not there; the kernel's end is brought up and gets
    /// `host_address` (with its prefix length). Needs `CAP_NET_ADMIN`.
    #[must_use]
    pub fn tun(self, name: &str, host_address: &str) -> Self {
        let config = TunConfig { name: Some(name.to_owned()), ..TunConfig::default() };
        self.tun_with(config, host_address)
    }

    /// As [`tun`](Self::tun), with every setting of the device.
    #[must_use]
    pub fn tun_with(mut self, config: TunConfig, host_address: &str) -> Self {
        self.device = Some(DeviceSpec::Tun { config, host_address: host_address.to_owned() });
        self
    }

    /// Gives the stack an address with its prefix length; may be repeated.
    #[must_use]
    pub fn address(mut self, cidr: &str) -> Self {
        self.addresses.push(cidr.to_owned());
        self
    }

    /// Sends everything beyond the prefixes of the own addresses to this router.
    #[must_use]
    pub fn gateway(mut self, router: IpAddr) -> Self {
        self.gateways.push(router);
        self
    }

    /// Sets a sysctl by Linux's name, in Linux's unit; checked by [`build`](Self::build).
    #[must_use]
    pub fn sysctl(mut self, name: &str, value: &str) -> Self {
        self.sysctls.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Puts this queueing discipline at each queue of the device instead of `pfifo_fast`, in the
    /// words of `tc`, for instance `fq quantum 3028 flow_limit 200`; checked by
    /// [`build`](Self::build). It can be replaced while the stack runs: [`Stack::set_qdisc`].
    #[must_use]
    pub fn qdisc(mut self, qdisc: &str) -> Self {
        self.qdisc = Some(qdisc.to_owned());
        self
    }

    /// Adds a queueing discipline of your own under `name`.
    ///
    /// The name is then one for [`qdisc`](Self::qdisc) and [`Stack::set_qdisc`]; it takes no
    /// parameters. `factory` makes the one for each queue of the device. The name is checked by
    /// [`build`](Self::build): it must be one word that no other kind has.
    #[must_use]
    pub fn qdisc_kind(
        mut self,
        name: &'static str,
        factory: impl Fn(&QdiscSetup<'_>) -> Box<dyn Qdisc> + Send + Sync + 'static,
    ) -> Self {
        let registered = self.qdiscs.register(name, factory);
        self.refused.1 = self.refused.1.or(registered.err());
        self
    }

    /// Adds a congestion controller of your own under `name`.
    ///
    /// Sockets choose it as any other: with `TCP_CONGESTION`, or by the sysctl
    /// `net.ipv4.tcp_congestion_control`. `factory` makes the state of one connection; it is called
    /// when a connection that chose the name opens or changes to it. The name is checked by
    /// [`build`](Self::build): it must be free, and that by which the controller calls itself.
    #[must_use]
    pub fn congestion_control(
        mut self,
        name: &'static str,
        factory: impl Fn() -> Box<dyn CongestionControl> + Send + Sync + 'static,
    ) -> Self {
        let registered = self.controllers.register(name, factory);
        self.refused.0 = self.refused.0.or(registered.err());
        self
    }

    /// Starts from this configuration instead of the default one.
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Fixes the host's randomness (sequence numbers, ports, hashes); for reproducing a run only.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Whoever drives the stack stays awake for the last part of a sleep, at most so long, and
    /// looks for packets meanwhile: paced frames then leave on time even where timers are late, for
    /// up to a whole processor. None by default.
    #[must_use]
    pub fn spin(mut self, budget: Duration) -> Self {
        self.spin = budget;
        self
    }

    /// Looks names up by `resolver` where a socket call is given one, as in
    /// `TcpStream::connect(&stack, "example.org:80")`. Without a resolver such a call fails; the
    /// stack never asks the resolver of the machine unless it is given
    /// [`SystemResolver`](crate::SystemResolver).
    #[must_use]
    pub fn resolver(mut self, resolver: impl Resolve + 'static) -> Self {
        self.resolver = Resolver::new(resolver);
        self
    }

    /// Opens the device and starts one worker thread per queue.
    ///
    /// # Errors
    /// [`BuildError`], each saying what to do.
    pub fn build(self) -> Result<Stack, BuildError> {
        match self.refused {
            (Some(refused), _) => return Err(refused.into()),
            (_, Some(refused)) => return Err(refused.into()),
            (None, None) => {}
        }
        let mut config = self.config;
        config.controllers.extend(&self.controllers)?;
        for (name, value) in &self.sysctls {
            config.set(name, value)?;
        }
        let qdisc = self.qdisc.as_deref().map(|qdisc| self.qdiscs.parse(qdisc)).transpose()?;
        let addresses =
            self.addresses.iter().map(|cidr| parse_cidr(cidr)).collect::<Result<Vec<_>, _>>()?;
        let device = match self.device.ok_or(BuildError::NoDevice)? {
            DeviceSpec::Device(device) => device,
            DeviceSpec::Tun { config, host_address } => open_tun(&config, &host_address)?,
        };
        let descriptors: Vec<Vec<_>> =
            device.queues.iter().map(|queue| queue.descriptor.iter().cloned().collect()).collect();
        let seed = match self.seed {
            Some(seed) => seed,
            None => random_seed()?,
        };
        let shards = device.queues.len();
        let settings = StackConfig { seed, config, shards };
        let stack = neap_stack::stack::Stack::new(settings)?;
        let interface = stack.add_interface(clock::now(), device, &addresses)?;
        if let Some(qdisc) = qdisc {
            stack.set_qdisc(clock::now(), interface, &qdisc).map_err(StackError::from)?;
        }
        for gateway in self.gateways {
            let any = if gateway.is_ipv4() { "0.0.0.0" } else { "::" };
            let any: IpAddr = any.parse().expect("a literal");
            let prefix = Prefix::new(any, 0).map_err(|_| BuildError::Route(any.to_string()))?;
            let route = Route { interface, gateway: Some(gateway), mtu: None, pref_src: None };
            let entry = RouteEntry { prefix, metric: 0, route };
            stack.add_route(entry).map_err(StackError::from)?;
        }
        let drivers = descriptors
            .iter()
            .enumerate()
            .map(|(shard, devices)| Driver::new(shard, devices, self.spin.into()))
            .collect::<Result<Vec<_>, _>>()?;
        for (shard, driver) in drivers.iter().enumerate() {
            stack.set_kick(shard, Some(driver.waker()));
        }
        let engine = Engine::new(stack, drivers, interface, self.qdiscs, self.resolver);
        Ok(Stack::start(engine)?)
    }
}

fn open_tun(config: &TunConfig, host_address: &str) -> Result<Device, BuildError> {
    let tun = Tun::open(config)?;
    let (ip, len) = split_cidr(host_address)?;
    let link = LinkConfig { address: Some((ip, len)), ..LinkConfig::default() };
    configure_link(tun.name(), &link)?;
    Ok(tun.into_device())
}

fn split_cidr(cidr: &str) -> Result<(IpAddr, u8), BuildError> {
    let bad = || BuildError::Address(cidr.to_owned());
    let (ip, len) = cidr.split_once('/').ok_or_else(bad)?;
    let ip: IpAddr = ip.parse().map_err(|_| bad())?;
    let len: u8 = len.parse().map_err(|_| bad())?;
    let most = if ip.is_ipv4() { 32 } else { 128 };
    let is_broadcast = ip == IpAddr::V4(Ipv4Addr::BROADCAST);
    if len > most || ip.is_unspecified() || ip.is_multicast() || is_broadcast {
        return Err(bad());
    }
    Ok((ip, len))
}

fn parse_cidr(cidr: &str) -> Result<Address, BuildError> {
    let (ip, len) = split_cidr(cidr)?;
    Address::new(ip, len).map_err(|_| BuildError::Address(cidr.to_owned()))
}

fn random_seed() -> Result<u64, BuildError> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(std::io::Error::from)?;
    Ok(u64::from_ne_bytes(bytes))
}
