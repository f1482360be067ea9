//! The way out: which device the stack owns and which addresses it has.

use std::net::IpAddr;
use std::str::FromStr;

use neap::config::Profile;
use neap::device::{Packet, PacketConfig, TunConfig};
use neap::net::Address;
use neap::qdisc::QdiscConfig;
use neap::scheduling::Scheduling;
use neap::time::Nanos;

use super::delay::delayed;
use super::net::IpVersion;

/// Options that choose the way out.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Way out")]
pub(crate) struct NetworkArgs {
    /// Own the user end of this TUN interface; it is made if it is not there
    #[arg(long, value_name = "NAME", conflicts_with = "packet")]
    tun: Option<String>,
    /// Send and receive Ethernet frames on this interface
    #[arg(long, value_name = "IFNAME")]
    packet: Option<String>,
    /// Address of the stack with its prefix length, for instance 10.9.0.2/24
    #[arg(long, value_name = "CIDR", value_parser = address)]
    address: Option<Address>,
    /// Address that the kernel gets at its end of the TUN interface
    #[arg(long, value_name = "CIDR", value_parser = address, requires = "tun")]
    host_address: Option<Address>,
    /// Router for everything beyond the prefix
    #[arg(long, value_name = "IP", requires = "packet")]
    gateway: Option<IpAddr>,
    /// Rules and settings of a year: linux-2012, linux-2014, linux-2017, linux-2018, linux-6.18, or
    /// neap
    #[arg(long, value_name = "NAME", value_parser = profile)]
    profile: Option<Profile>,
    /// Set a sysctl of the stack by Linux's name, after those of the profile; may be repeated
    #[arg(long = "sysctl", value_name = "NAME=VALUE")]
    sysctls: Vec<Sysctl>,
    /// Queueing discipline in the words of tc, for instance "fq flow_limit 200" [default:
    /// pfifo_fast]
    #[arg(long, value_name = "QDISC")]
    qdisc: Option<QdiscConfig>,
    /// Scheduling of the threads, for a busy machine: nice:N (-20 to 19), slice:TIME (100us to
    /// 100ms; a short one is served sooner and needs no right), or real-time fifo:N or rr:N (1 to
    /// 99); may be repeated
    #[arg(long = "scheduling", value_name = "HOW", allow_hyphen_values = true)]
    scheduling: Vec<Scheduling>,
    /// Largest super-frame handed to the device, bytes
    #[arg(long, value_name = "BYTES")]
    gso_max: Option<u32>,
    /// Packets that the ring of --packet holds for the stack [default: 2048]
    #[arg(long, value_name = "N", conflicts_with = "tun")]
    rx_slots: Option<usize>,
    /// Bytes of a slot of that ring; larger packets cost a system call [default: 2048]
    #[arg(long, value_name = "BYTES", conflicts_with = "tun")]
    rx_slot_bytes: Option<usize>,
    /// Milliseconds by which what arrives is handed over later, as on a longer path
    #[arg(long, value_name = "MS", requires = "packet", conflicts_with = "tun",
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    delay: Option<u32>,
}

/// What is missing among the options of the way out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NetworkError {
    #[error(
        "no way out: give --tun NAME --address CIDR --host-address CIDR, or --packet IFNAME --address CIDR [--gateway IP]"
    )]
    Device,
    #[error(
        "--address is missing: the stack needs an address of its own, for instance --address 10.9.0.2/24"
    )]
    Address,
    #[error(
        "--host-address is missing: the kernel needs an address at its end of --tun, for instance 10.9.0.1/24"
    )]
    HostAddress,
}

/// The device under the stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DeviceChoice {
    Tun { name: String, host: Address },
    Packet { config: PacketConfig, gateway: Option<IpAddr> },
}

/// A way out whose parts fit together.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    pub device: DeviceChoice,
    pub address: Address,
    pub profile: Profile,
    pub sysctls: Vec<Sysctl>,
    pub qdisc: Option<QdiscConfig>,
    pub scheduling: Vec<Scheduling>,
    /// Bytes.
    pub gso_max: Option<u32>,
    pub delay: Option<Nanos>,
}

impl Network {
    /// Puts the options together. Whether the addresses fit is checked by [`open`](Self::open).
    ///
    /// # Errors
    /// Something is missing.
    pub(crate) fn of(args: &NetworkArgs) -> Result<Self, NetworkError> {
        if args.tun.is_none() && args.packet.is_none() {
            return Err(NetworkError::Device);
        }
        let address = args.address.ok_or(NetworkError::Address)?;
        let device = match (&args.tun, &args.packet) {
            (Some(name), _) => {
                let host = args.host_address.ok_or(NetworkError::HostAddress)?;
                DeviceChoice::Tun { name: name.clone(), host }
            }
            (None, Some(name)) => {
                let mut config = PacketConfig::new(name);
                config.rx_slots = args.rx_slots.unwrap_or(config.rx_slots);
                config.rx_slot_bytes = args.rx_slot_bytes.or(config.rx_slot_bytes);
                DeviceChoice::Packet { config, gateway: args.gateway }
            }
            (None, None) => return Err(NetworkError::Device),
        };
        let profile = args.profile.unwrap_or(Profile::Neap);
        let (sysctls, qdisc) = (args.sysctls.clone(), args.qdisc.clone());
        let delay = args.delay.map(|millis| Nanos::from_millis(millis.into()));
        let (scheduling, gso_max) = (args.scheduling.clone(), args.gso_max);
        Ok(Self { device, address, profile, sysctls, qdisc, scheduling, gso_max, delay })
    }

    /// Opens the device and starts the stack on it. The calling thread gets the scheduling of the
    /// workers: it drives the stack while it waits.
    ///
    /// # Errors
    /// A missing privilege or interface, addresses that do not fit together, or a sysctl that
    /// cannot be set; each says what to do.
    pub(crate) fn open(&self) -> Result<neap::Stack, neap::BuildError> {
        let mut builder = neap::Stack::builder().config(self.profile.config());
        builder = builder.address(self.address);
        for &scheduling in &self.scheduling {
            scheduling.apply()?;
            builder = builder.scheduling(scheduling);
        }
        for sysctl in &self.sysctls {
            builder = builder.sysctl(&sysctl.name, &sysctl.value);
        }
        if let Some(qdisc) = &self.qdisc {
            builder = builder.qdisc(&qdisc.to_string());
        }
        match &self.device {
            DeviceChoice::Tun { name, host } => {
                let mut config = TunConfig { name: Some(name.clone()), ..TunConfig::default() };
                config.gso_max_size = self.gso_max.unwrap_or(config.gso_max_size);
                builder.tun_with(config).host_address(*host).build()
            }
            DeviceChoice::Packet { config, gateway } => {
                let mut config = config.clone();
                config.gso_max_size = self.gso_max.unwrap_or(config.gso_max_size);
                let mut device = Packet::open(&config)?.into_device();
                if let Some(delay) = self.delay {
                    device = delayed(device, delay);
                }
                if let Some(gateway) = gateway {
                    builder = builder.gateway(*gateway);
                }
                builder.device(device).build()
            }
        }
    }

    /// The version of IP that the stack speaks.
    pub(crate) fn version(&self) -> IpVersion {
        if self.address.ip.is_ipv4() { IpVersion::V4 } else { IpVersion::V6 }
    }
}

/// An address with the length of its prefix.
fn address(text: &str) -> Result<Address, String> {
    text.parse().map_err(|error| format!("{error}, for instance 10.9.0.2/24 or fd00::2/64"))
}

/// A profile by its name.
fn profile(name: &str) -> Result<Profile, String> {
    Profile::by_name(name).ok_or_else(|| {
        let names = Profile::ALL.map(Profile::name).join(", ");
        format!("no such profile; there are {names}")
    })
}

/// A sysctl and its value; the stack knows which names there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sysctl {
    pub name: String,
    pub value: String,
}

/// Why a text is no [`Sysctl`].
#[derive(Debug, thiserror::Error)]
#[error("expected NAME=VALUE, for instance net.ipv4.tcp_limit_output_bytes=131072")]
pub(crate) struct SysctlError;

impl FromStr for Sysctl {
    type Err = SysctlError;

    fn from_str(text: &str) -> Result<Self, SysctlError> {
        match text.split_once('=') {
            Some((name, value)) if !name.trim().is_empty() => {
                Ok(Self { name: name.trim().to_owned(), value: value.trim().to_owned() })
            }
            _ => Err(SysctlError),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: NetworkArgs,
    }

    fn network(line: &str) -> Result<Network, String> {
        let line = std::iter::once("neap").chain(line.split_ascii_whitespace());
        let line = Line::try_parse_from(line).map_err(|error| error.to_string())?;
        Network::of(&line.args).map_err(|error| error.to_string())
    }

    #[test]
    fn good_ways_out() {
        let tun = network(
            "--tun t0 --address 10.9.0.2/24 --host-address 10.9.0.1/24 --sysctl a.b=3 --sysctl c= --profile linux-2014",
        )
        .unwrap();
        assert_eq!(
            tun.device,
            DeviceChoice::Tun { name: "t0".to_owned(), host: "10.9.0.1/24".parse().unwrap() }
        );
        assert_eq!(tun.sysctls[0], Sysctl { name: "a.b".to_owned(), value: "3".to_owned() });
        assert_eq!((tun.version(), tun.profile), (IpVersion::V4, Profile::Linux2014));
        let packet =
            network("--packet v0 --address fd00::2/64 --gateway fe80::1 --gso-max 16384").unwrap();
        assert_eq!((packet.version(), packet.gso_max), (IpVersion::V6, Some(16_384)));
    }

    #[test]
    fn scheduling_is_read_from_options() {
        let tun = "--tun t0 --address 10.9.0.2/24 --host-address 10.9.0.1/24";
        let asked = network(&format!("{tun} --scheduling nice:-10 --scheduling slice:1ms"));
        let slice = Scheduling::Slice(std::time::Duration::from_millis(1));
        assert_eq!(asked.unwrap().scheduling, [Scheduling::Nice(-10), slice]);
        for wrong in ["nice:-21", "idle", "fifo:0"] {
            let error = network(&format!("{tun} --scheduling {wrong}")).unwrap_err();
            assert!(error.contains("-20 to 19") || error.contains("1 to 99"), "{error}");
        }
    }

    #[test]
    fn the_ring_of_an_interface_is_sized_by_options() {
        let network =
            network("--packet v0 --address 10.9.0.2/24 --rx-slots 9 --rx-slot-bytes 4096");
        let DeviceChoice::Packet { config, .. } = network.unwrap().device else {
            panic!("a packet socket");
        };
        assert_eq!((config.rx_slots, config.rx_slot_bytes), (9, Some(4096)));
    }

    #[test]
    fn bad_ways_out_say_what_to_do() {
        for (line, hint) in [
            ("", "no way out"),
            ("--tun t0", "--address"),
            ("--tun t0 --address 10.9.0.2/24", "--host-address is missing"),
            ("--tun t0 --packet v0 --address 10.9.0.2/24", "cannot be used with"),
            ("--packet v0 --address 10.9.0.2", "10.9.0.2/24"),
            ("--packet v0 --address 10.9.0.2/33", "10.9.0.2/24"),
            ("--tun t0 --address 10.9.0.2/24 --host-address 10.9.0.1", "10.9.0.2/24"),
            ("--packet v0 --address 10.9.0.2/24 --sysctl x", "NAME=VALUE"),
            ("--tun t0 --address 10.9.0.2/24 --rx-slots 9", "cannot be used with"),
            ("--tun t0 --address 10.9.0.2/24 --delay 5", "cannot be used with"),
            ("--packet v0 --address 10.9.0.2/24 --profile linux-2011", "linux-2012"),
        ] {
            let error = network(line).unwrap_err();
            assert!(error.contains(hint), "{line}: {error}");
        }
    }
}
