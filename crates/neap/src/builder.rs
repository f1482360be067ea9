//! Makes a running stack: device, addresses, routes, sysctls, workers.

use crate::driver::Driver;
use crate::engine::Engine;
use crate::error::BuildError;
use crate::interfaces::InterfaceConfig;
use crate::machine;
use crate::resolver::{Resolve, Resolver};
use crate::scheduling::Scheduling;
use crate::sleeper::{First, Vigil};
use crate::workers::Stack;
use core::fmt::{self, Debug};
use core::net::IpAddr;
use neap_device::{LinkConfig, Tun, TunConfig, configure_link};
use neap_stack::device::Device;
use neap_stack::interface::{Address, check_addresses};
use neap_stack::qdisc::Qdisc;
use neap_stack::qdisc::kinds::{QdiscKinds, QdiscSetup};
use neap_stack::route::Prefix;
use neap_stack::stack::{StackConfig, StackError};
use neap_tcp::config::Config;
use neap_tcp::congestion::{CongestionControl, Controllers};
use std::sync::Arc;
use std::time::Duration;

/// Settings of a stack that is to be made: device, addresses, routes, sysctls, parts of your own.
///
/// [`Stack::builder`] begins one, and [`build`](Self::build) checks it and starts the stack.
///
/// ```no_run
/// let stack = neap::Stack::builder()
///     .tun("neap0")
///     .host_address("10.9.0.1/24")
///     .address("10.9.0.2/24")
///     .sysctl("net.ipv4.tcp_congestion_control", "cubic")
///     .build()?;
/// # Ok::<(), neap::BuildError>(())
/// ```
#[derive(Debug, Default)]
pub struct Builder {
    device: Option<DeviceSpec>,
    /// The first setting that was refused.
    refused: Option<BuildError>,
    addresses: Vec<Address>,
    host_addresses: Vec<Address>,
    /// Where each route leads, and the router that takes its packets.
    routes: Vec<(Prefix, IpAddr)>,
    sysctls: Vec<(String, String)>,
    qdisc: Option<String>,
    interfaces: Vec<InterfaceConfig>,
    config: Option<Config>,
    controllers: Controllers,
    qdiscs: QdiscKinds,
    seed: Option<u64>,
    any_destination: bool,
    spin: Duration,
    /// `None`: as long as it pays.
    busy_poll: Option<Duration>,
    scheduling: Vec<Scheduling>,
    resolver: Resolver,
}

/// The device that a stack runs on.
#[derive(Debug)]
enum DeviceSpec {
    /// One that is open.
    Device(Device),
    /// A TUN to be opened.
    Tun(TunConfig),
}

impl Stack {
    /// Returns a builder, which collects what the stack is made of.
    ///
    /// It reads how much memory the machine has (`/proc/meminfo`, and the limit of the cgroup), for
    /// `net.ipv4.tcp_mem` and `net.ipv4.udp_mem`. A program that gives up its files does so later.
    pub fn builder() -> Builder {
        Builder { config: Some(machine::config()), ..Builder::default() }
    }
}

impl Builder {
    /// Runs the stack on this device. Each queue of the device gets a worker thread.
    ///
    /// A stack has one such device; more come by [`interface`](Self::interface).
    #[must_use]
    pub fn device(self, device: Device) -> Self {
        let argument = format!("device {:?}", device.name);
        self.runs_on(argument, DeviceSpec::Device(device))
    }

    /// Runs the stack on the TUN device of this name. [`build`](Self::build) makes the device if
    /// there is none, and brings the kernel's end up. It needs `CAP_NET_ADMIN`.
    ///
    /// [`host_address`](Self::host_address) gives the kernel's end its addresses.
    #[must_use]
    pub fn tun(self, name: &str) -> Self {
        self.tun_with(TunConfig { name: Some(name.to_owned()), ..TunConfig::default() })
    }

    /// Runs the stack on a TUN as [`tun`](Self::tun) does, with every setting of the device.
    #[must_use]
    pub fn tun_with(self, config: TunConfig) -> Self {
        let argument = format!("tun {:?}", config.name.as_deref().unwrap_or_default());
        self.runs_on(argument, DeviceSpec::Tun(config))
    }

    fn runs_on(mut self, argument: String, device: DeviceSpec) -> Self {
        if self.device.is_some() {
            let problem = "there is a device already; add a second one with Builder::interface";
            self.refuse(argument, problem.to_owned());
        }
        self.device = Some(device);
        self
    }

    /// Adds an interface with addresses, routers and settings of its own, besides the device that
    /// [`device`](Self::device) or [`tun`](Self::tun) names, or instead of it. It may be called for
    /// several; [`Stack::add_interface`] adds more while the stack runs. There are as many workers
    /// as the device with the most queues has queues.
    ///
    /// Addresses, routes and the queueing discipline that the builder is given are those of its
    /// device. [`build`](Self::build) refuses them where it has none.
    #[must_use]
    pub fn interface(mut self, interface: InterfaceConfig) -> Self {
        self.interfaces.push(interface);
        self
    }

    /// Gives the kernel's end of the TUN an address with its prefix length. Repeat it for IPv4 and
    /// IPv6.
    ///
    /// It takes what [`address`](Self::address) takes.
    #[must_use]
    pub fn host_address<A>(mut self, address: A) -> Self
    where
        A: TryInto<Address> + Debug,
        A::Error: fmt::Display,
    {
        if let Some(address) = self.read("host address", HOST_EXAMPLE, address) {
            self.host_addresses.push(address);
        }
        self
    }

    /// Gives the stack an address with its prefix length. Repeat it for more addresses.
    ///
    /// It takes text such as `"10.9.0.2/24"`, an `IpNet` of the crate `ipnet`, a pair of `IpAddr`
    /// and prefix length, or an [`Address`]. [`build`](Self::build) refuses an address that no host
    /// can have, one that was given twice, and one that the kernel has in the network namespace of
    /// the device. The kernel cannot be asked about a device of another namespace (`Tun::from_fd`,
    /// `Packet::from_fd`): then the address must be known to be free.
    #[must_use]
    pub fn address<A>(mut self, address: A) -> Self
    where
        A: TryInto<Address> + Debug,
        A::Error: fmt::Display,
    {
        if let Some(address) = self.read("address", EXAMPLE, address) {
            self.addresses.push(address);
        }
        self
    }

    /// Adds a default route: packets that no other route takes go to this router. Repeat it for
    /// IPv4 and IPv6.
    ///
    /// The router must be in the network of an own address, or be a
    /// [`host_address`](Self::host_address).
    #[must_use]
    pub fn gateway(mut self, router: impl ToIp) -> Self {
        if let Some(via) = self.read_ip("gateway", router) {
            self.routes.push((Prefix::of_all(via), via));
        }
        self
    }

    /// Adds a route: packets to the network `prefix` go to the router `via`
    /// (`ip route add PREFIX via VIA`).
    ///
    /// The prefix is given in one of the forms of an [`address`](Self::address). Bits behind the
    /// prefix are cleared: 10.20.0.1/16 is the network 10.20.0.0/16. Linux refuses such a network
    /// of IPv4, and clears the bits of one of IPv6.
    #[must_use]
    pub fn route<P>(mut self, prefix: P, via: impl ToIp) -> Self
    where
        P: TryInto<Prefix> + Debug,
        P::Error: fmt::Display,
    {
        let prefix = self.read("route", "give a network, for instance 192.0.2.0/24", prefix);
        let via = self.read_ip("gateway", via);
        self.routes.extend(prefix.zip(via));
        self
    }

    /// Takes packets to any address at the device of the stack, see
    /// [`InterfaceConfig::any_destination`].
    #[must_use]
    pub fn any_destination(mut self, on: bool) -> Self {
        self.any_destination = on;
        self
    }

    /// Sets a sysctl by Linux's name, in Linux's unit. [`build`](Self::build) checks both.
    /// [`Stack::set_sysctl`] changes it while the stack runs.
    #[must_use]
    pub fn sysctl(mut self, name: &str, value: &str) -> Self {
        self.sysctls.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the queueing discipline of each queue of the device, in the words of `tc`, for instance
    /// `fq quantum 3028 flow_limit 200`. Without this it is `pfifo_fast`. [`build`](Self::build)
    /// checks the words. [`Stack::set_qdisc`] replaces it while the stack runs.
    #[must_use]
    pub fn qdisc(mut self, qdisc: &str) -> Self {
        self.qdisc = Some(qdisc.to_owned());
        self
    }

    /// Adds a queueing discipline of your own under `name`.
    ///
    /// [`qdisc`](Self::qdisc) and [`Stack::set_qdisc`] then know the name; it takes no parameters.
    /// `factory` makes one for each queue of a device. [`build`](Self::build) checks the name: it
    /// must be one word that no other kind has.
    #[must_use]
    pub fn qdisc_kind(
        mut self,
        name: &'static str,
        factory: impl Fn(&QdiscSetup<'_>) -> Box<dyn Qdisc> + Send + Sync + 'static,
    ) -> Self {
        let registered = self.qdiscs.register(name, factory);
        self.refused = self.refused.or(registered.err().map(BuildError::from));
        self
    }

    /// Adds a congestion controller of your own under `name`.
    ///
    /// Sockets choose it as any other: with `TCP_CONGESTION`, or by the sysctl
    /// `net.ipv4.tcp_congestion_control`. `factory` makes the state of one connection; it is called
    /// when a connection that chose the name opens or changes to it. [`build`](Self::build) checks
    /// the name: no other controller may have it, and `CongestionControl::name` must return it.
    #[must_use]
    pub fn congestion_control(
        mut self,
        name: &'static str,
        factory: impl Fn() -> Box<dyn CongestionControl> + Send + Sync + 'static,
    ) -> Self {
        let registered = self.controllers.register(name, factory);
        self.refused = self.refused.or(registered.err().map(BuildError::from));
        self
    }

    /// Takes the settings of TCP from `config` instead of the defaults. [`sysctl`](Self::sysctl)
    /// changes single ones.
    ///
    /// The defaults are those of [`Config`], but `net.ipv4.tcp_mem` and `net.ipv4.udp_mem` follow
    /// the memory of this machine, or of the control group of the process if that is less.
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.config = Some(config);
        self
    }

    /// Fixes the seed of sequence numbers, ports and hashes. Use it only to reproduce a run:
    /// whoever knows the seed can guess them.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Keeps the thread that drives the stack awake for the last part of each sleep that ends at a
    /// given time, at most for `budget`. The default is zero.
    ///
    /// The thread is a worker, one in a blocking call or one in [`Poller::wait`](crate::Poller);
    /// a runtime of tokio sleeps as it likes. Packets that arrive end a sleep at any time.
    ///
    /// Use it where paced frames must leave on time although the timers of the machine are late. It
    /// costs up to a whole processor.
    #[must_use]
    pub fn spin(mut self, budget: Duration) -> Self {
        self.spin = budget;
        self
    }

    /// Keeps the thread that drives the stack awake for the first part of each sleep, for `budget`:
    /// it looks at the devices again and again before it sleeps.
    ///
    /// By default it does so for 30 us at most, and only while at least three of four events come
    /// as soon as that. This costs no more than the sleeps and wake-ups would cost, and ends after
    /// three events that come later. Zero turns it off; any other `budget` is spent before each
    /// sleep.
    ///
    /// The thread is a worker, one in a blocking call or one in [`Poller::wait`](crate::Poller);
    /// a runtime of tokio sleeps as it likes, and so do the threads that wait while another one
    /// drives.
    ///
    /// Set it where the answer to a rare request is to leave as soon as it has come: a thread that
    /// sleeps is woken some microseconds late, on a virtual machine some tens. After each event it
    /// costs up to `budget` of a processor, and a whole one where events come more often than that.
    /// Nothing wakes an idle stack. It is worse than sleeping where no processor is free for it.
    /// The kernel's name for this is busy polling (`SO_BUSY_POLL`); budgets of 50 us are usual.
    #[must_use]
    pub fn busy_poll(mut self, budget: Duration) -> Self {
        self.busy_poll = Some(budget);
        self
    }

    /// Has the kernel schedule the worker threads in this way. Repeat it for a nice value and a
    /// slice.
    ///
    /// Use it where a machine has more work than processors: a worker that waits for its turn makes
    /// frames, acknowledgements and timers late. A short slice needs no right. Threads of the
    /// application drive the stack while they wait for it, and keep their scheduling;
    /// [`Scheduling::apply`] changes that of the thread that calls it.
    ///
    /// ```no_run
    /// use neap::scheduling::Scheduling;
    /// use std::time::Duration;
    ///
    /// let slice = Scheduling::Slice(Duration::from_micros(100));
    /// slice.apply()?;
    /// let stack = neap::Stack::builder()
    ///     .tun("neap0")
    ///     .host_address("10.9.0.1/24")
    ///     .address("10.9.0.2/24")
    ///     .scheduling(slice)
    ///     .scheduling(Scheduling::Nice(-10))
    ///     .build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// [`build`](Self::build) fails with [`BuildError::Scheduling`] if a value is out of range or
    /// the process lacks the right.
    #[must_use]
    pub fn scheduling(mut self, scheduling: Scheduling) -> Self {
        self.scheduling.push(scheduling);
        self
    }

    /// Sets the resolver for names in socket calls, as in
    /// `TcpStream::connect(&stack, "example.org:80")`.
    ///
    /// Without a resolver such a call fails. The stack never asks the resolver of the machine
    /// unless it is given [`SystemResolver`](crate::SystemResolver).
    #[must_use]
    pub fn resolver(mut self, resolver: impl Resolve + 'static) -> Self {
        self.resolver = Resolver::new(resolver);
        self
    }

    /// Reads a setting, or notes why it cannot be read.
    fn read<A, T>(&mut self, argument: &str, advice: &str, value: A) -> Option<T>
    where
        A: TryInto<T> + Debug,
        A::Error: fmt::Display,
    {
        let shown = format!("{argument} {value:?}");
        match value.try_into() {
            Ok(value) => Some(value),
            Err(error) => {
                self.refuse(shown, format!("{error}; {advice}"));
                None
            }
        }
    }

    fn read_ip(&mut self, argument: &str, value: impl ToIp) -> Option<IpAddr> {
        let shown = format!("{argument} {value:?}");
        let ip = value.into_ip();
        if ip.is_none() {
            self.refuse(shown, "it is no IP address; give one without a prefix length".to_owned());
        }
        ip
    }

    fn refuse(&mut self, argument: String, problem: String) {
        self.refused.get_or_insert(BuildError::Argument { argument, problem });
    }

    /// Refuses a setting of the device if there is none: no interface of its own would have it.
    fn check_strays(&self) -> Result<(), BuildError> {
        if self.device.is_some() || self.interfaces.is_empty() {
            return Ok(());
        }
        let route = |&(prefix, via): &(Prefix, IpAddr)| match prefix == Prefix::of_all(via) {
            true => (format!("gateway {via}"), "InterfaceConfig::gateway"),
            false => (format!("route {prefix} via {via}"), "InterfaceConfig::route"),
        };
        let own = |own: &Address| (format!("address {own}"), "InterfaceConfig::address");
        let host = |host: &Address| (format!("host address {host}"), HOST_ADDRESSES_OF_OTHERS);
        let qdisc = |qdisc: &String| (format!("qdisc {qdisc:?}"), "InterfaceConfig::qdisc");
        let any = || ("any_destination".to_owned(), "InterfaceConfig::any_destination");
        let stray = self.addresses.first().map(own);
        let stray = stray.or_else(|| self.host_addresses.first().map(host));
        let stray = stray.or_else(|| self.routes.first().map(route));
        let stray = stray.or_else(|| self.qdisc.as_ref().map(qdisc));
        let Some((argument, place)) = stray.or_else(|| self.any_destination.then(any)) else {
            return Ok(());
        };
        let problem = format!(
            "it is a setting of the device of Builder::tun or Builder::device, and there is none; \
             for an interface of its own, use {place}"
        );
        Err(BuildError::Argument { argument, problem })
    }

    /// Checks the settings, opens the device and starts one worker thread per queue.
    ///
    /// # Errors
    /// [`BuildError`] names the setting that is wrong, and says what to do. No stack is left then.
    pub fn build(mut self) -> Result<Stack, BuildError> {
        if let Some(error) = self.refused.take() {
            return Err(error);
        }
        self.check_strays()?;
        for scheduling in &self.scheduling {
            scheduling.checked()?;
        }
        let mut config = self.config.unwrap_or_else(machine::config);
        config.controllers.extend(&self.controllers)?;
        for (name, value) in &self.sysctls {
            config.set(name, value)?;
        }
        let mut interfaces = Vec::new();
        if let Some(device) = self.device {
            check_together(&self.addresses, &self.host_addresses, &device)?;
            let device = match device {
                DeviceSpec::Device(device) => device,
                DeviceSpec::Tun(config) => open_tun(&config, &self.host_addresses)?,
            };
            let mut interface = InterfaceConfig::new(device).any_destination(self.any_destination);
            // The kernel's end is reached also where the prefix of the own address is but itself.
            let is_near =
                |host: &Address| self.addresses.iter().any(|own| own.prefix.contains(host.ip));
            for host in self.host_addresses.iter().filter(|host| !is_near(host)) {
                if self.addresses.iter().any(|own| own.ip.is_ipv4() == host.ip.is_ipv4()) {
                    interface = interface.peer(host.ip);
                }
            }
            interface = self.addresses.into_iter().fold(interface, InterfaceConfig::address);
            for (prefix, via) in self.routes {
                interface = interface.route(prefix, via);
            }
            if let Some(qdisc) = &self.qdisc {
                interface = interface.qdisc(qdisc);
            }
            interfaces.push(interface);
        }
        interfaces.extend(self.interfaces);
        let shards = interfaces.iter().map(InterfaceConfig::queues).max();
        let shards = shards.ok_or(BuildError::NoDevice)?.max(1);
        let first = self.busy_poll.map_or(First::Measured, |budget| First::fixed(budget.into()));
        let vigil = Vigil { first, last: self.spin.into() };
        let seed = match self.seed {
            Some(seed) => seed,
            None => random_seed()?,
        };
        let settings = StackConfig { seed, config, shards };
        let stack = neap_stack::stack::Stack::new(settings)?;
        let descriptors = Arc::default();
        let drivers = (0..shards)
            .map(|shard| Driver::new(shard, vigil, &descriptors))
            .collect::<Result<Vec<_>, _>>()?;
        for (shard, driver) in drivers.iter().enumerate() {
            stack.set_kick(shard, Some(driver.waker()));
        }
        let engine = Engine::new(stack, drivers, descriptors, self.qdiscs, self.resolver);
        for interface in interfaces {
            engine.add_interface(interface)?;
        }
        Stack::start(engine, &self.scheduling)
    }
}

/// What to do about an address that is none.
const EXAMPLE: &str = "give the address of a host with its prefix length, for instance 10.9.0.2/24";
/// What to do about an address of the kernel's end that is none.
const HOST_EXAMPLE: &str =
    "give the address of a host with its prefix length, for instance 10.9.0.1/24";
/// What gives an address to the kernel's end of a device that the builder did not open.
const HOST_ADDRESSES_OF_OTHERS: &str = "neap::device::configure_link or ip address add";

/// IP address for the builder: an `IpAddr` of any kind, or its text.
pub trait ToIp: Debug + sealed::ToIp {}

impl<T: Debug + sealed::ToIp> ToIp for T {}

mod sealed {
    use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    pub trait ToIp {
        /// The address; `None` if the text is none.
        fn into_ip(self) -> Option<IpAddr>;
    }

    macro_rules! is_ip {
        ($($type:ty),+) => {$(
            impl ToIp for $type {
                fn into_ip(self) -> Option<IpAddr> {
                    Some(self.into())
                }
            }
        )+};
    }

    is_ip!(IpAddr, Ipv4Addr, Ipv6Addr);

    impl ToIp for &str {
        fn into_ip(self) -> Option<IpAddr> {
            self.parse().ok()
        }
    }

    impl ToIp for String {
        fn into_ip(self) -> Option<IpAddr> {
            self.parse().ok()
        }
    }
}

/// Refuses addresses that do not fit together. Those that the kernel has are refused when the
/// device is open.
fn check_together(
    own: &[Address],
    host: &[Address],
    device: &DeviceSpec,
) -> Result<(), BuildError> {
    if own.is_empty() {
        return Err(BuildError::NoAddress);
    }
    check_addresses(own).map_err(StackError::from)?;
    check_addresses(host).map_err(BuildError::HostAddress)?;
    let refuse = |argument: String, problem: &str| {
        Err(BuildError::Argument { argument, problem: problem.to_owned() })
    };
    if let Some(address) = host.first()
        && matches!(device, DeviceSpec::Device(_))
    {
        let problem = format!(
            "only Builder::tun gives the kernel's end an address; for a device that is open, use \
             {HOST_ADDRESSES_OF_OTHERS}"
        );
        return refuse(format!("host address {address}"), &problem);
    }
    for address in own {
        if host.iter().any(|host| host.ip == address.ip) {
            let problem = "it is the host address too; stack and kernel are two hosts on the link, \
                           give each its own";
            return refuse(format!("address {address}"), problem);
        }
    }
    if let Some((address, host)) = without_a_link(own, host) {
        let problem = format!(
            "it is not in the network of the host address {host}, so neither could send to the \
             other; give both an address of one network"
        );
        return refuse(format!("address {address}"), &problem);
    }
    Ok(())
}

/// An own address and one of the kernel's end, if no two of their family are in one network.
///
/// An address that is a network by itself (`/32`, `/128`) says nothing: it gets its routes later.
fn without_a_link<'a>(
    own: &'a [Address],
    host: &'a [Address],
) -> Option<(&'a Address, &'a Address)> {
    host.iter().find_map(|host| {
        let of_family = |address: &&Address| address.ip.is_ipv4() == host.ip.is_ipv4();
        let meets = |address: &Address| {
            address.prefix.is_host()
                || host.prefix.contains(address.ip)
                || address.prefix.contains(host.ip)
        };
        let first = own.iter().find(of_family)?;
        let is_met = own.iter().filter(of_family).any(meets);
        (!is_met).then_some((first, host))
    })
}

fn open_tun(config: &TunConfig, host_addresses: &[Address]) -> Result<Device, BuildError> {
    let tun = Tun::open(config)?;
    let addresses = host_addresses.iter().map(|host| (host.ip, host.prefix.len())).collect();
    configure_link(tun.name(), &LinkConfig { addresses, ..LinkConfig::default() })?;
    Ok(tun.into_device())
}

fn random_seed() -> Result<u64, BuildError> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(std::io::Error::from)?;
    Ok(u64::from_ne_bytes(bytes))
}
