//! What can go wrong while a device is opened, and what to do about it.

use rustix::io::Errno;

/// A device could not be opened or configured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel has no TUN driver, or the node is not in this container.
    #[error(
        "there is no /dev/net/tun: load the driver (modprobe tun), or pass the node to the container \
         (--device /dev/net/tun)"
    )]
    NoTunDriver,
    /// A capability is missing.
    #[error(
        "{action} needs {capability}: run as root, or in a namespace of your own (unshare -rn)"
    )]
    Permission {
        /// What was tried.
        action: &'static str,
        /// `CAP_NET_ADMIN` or `CAP_NET_RAW`.
        capability: &'static str,
    },
    /// Another process has the TUN device open.
    #[error("{name} is in use by another process: choose another name, or end that process")]
    Busy {
        /// Interface.
        name: String,
    },
    /// The interface exists and is of another kind.
    #[error(
        "{name} exists and is not a TUN device of the kind asked for (tun or tap, one queue or \
         several): choose another name, or delete it (ip link delete {name})"
    )]
    OtherKind {
        /// Interface.
        name: String,
    },
    /// A name that no interface can have.
    #[error("{name:?} cannot name an interface: 1 to 15 bytes without '/', ':' or white space")]
    BadName {
        /// The name.
        name: String,
    },
    /// There is no such interface here.
    #[error("there is no interface {name} in this network namespace: `ip link` lists them")]
    NoInterface {
        /// Interface.
        name: String,
    },
    /// The interface is down.
    #[error("{name} is down: bring it up (ip link set {name} up)")]
    Down {
        /// Interface.
        name: String,
    },
    /// The interface does not carry Ethernet.
    #[error("{name} is not an Ethernet interface: use TUN, or an Ethernet or veth interface")]
    NotEthernet {
        /// Interface.
        name: String,
    },
    /// A value of the configuration is out of its range.
    #[error("{option} is {value}, it must be {range}")]
    OutOfRange {
        /// Field of the configuration.
        option: &'static str,
        /// Its value.
        value: u64,
        /// What it may be.
        range: &'static str,
    },
    /// IPv6 is switched off where an IPv6 address was asked for.
    #[error("IPv6 is disabled on {name}: sysctl net.ipv6.conf.{name}.disable_ipv6=0")]
    Ipv6Disabled {
        /// Interface.
        name: String,
    },
    /// Any other failure of a system call.
    #[error("{call} failed on {subject}")]
    System {
        /// The call, or the option of it.
        call: &'static str,
        /// Interface or file.
        subject: String,
        /// The system's reason.
        source: std::io::Error,
    },
}

impl Error {
    /// The general case: permission problems by name, the rest as [`Error::System`].
    pub(crate) fn of(call: &'static str, subject: &str, errno: Errno) -> Self {
        match errno {
            Errno::PERM | Errno::ACCESS => {
                Self::Permission { action: call, capability: "CAP_NET_ADMIN" }
            }
            Errno::NODEV | Errno::NXIO => Self::NoInterface { name: subject.to_owned() },
            _ => Self::System { call, subject: subject.to_owned(), source: errno.into() },
        }
    }
}
