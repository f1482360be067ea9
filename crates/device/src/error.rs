//! Errors of opening and configuring a device. Their texts say what to do.

use rustix::io::Errno;

/// Error of opening or configuring a device.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no `/dev/net/tun`: the kernel has no TUN driver, or the node is not in this
    /// container.
    #[error(
        "there is no /dev/net/tun: load the driver (modprobe tun), or pass the node to the container \
         (--device /dev/net/tun)"
    )]
    NoTunDriver,
    /// The owner and the mode of `/dev/net/tun` keep this user out, whatever its capabilities.
    #[error(
        "this user may not open /dev/net/tun: run as root, or let others open it \
         (chmod 666 /dev/net/tun); a namespace of your own does not help here"
    )]
    TunNode,
    /// The process lacks a capability.
    #[error(
        "{action} needs {capability}: run as root, or in a namespace of your own (unshare -rn)"
    )]
    Permission {
        /// Action that failed.
        action: &'static str,
        /// Name of the missing capability: `CAP_NET_ADMIN` or `CAP_NET_RAW`.
        capability: &'static str,
    },
    /// Another process has the TUN device open.
    #[error(
        "{name} is in use, by this process or another: choose another name, or close what uses it"
    )]
    Busy {
        /// Name of the interface.
        name: String,
    },
    /// The interface exists, and is not of the kind that was asked for.
    #[error(
        "{name} exists and is not a TUN device of the kind asked for (tun or tap, one queue or \
         several): choose another name, or delete it (ip link delete {name})"
    )]
    OtherKind {
        /// Name of the interface.
        name: String,
    },
    /// No interface can have this name.
    #[error("{name:?} cannot name an interface: 1 to 15 bytes without '/', ':' or white space")]
    BadName {
        /// The name that was given.
        name: String,
    },
    /// There is no such interface in this network namespace.
    #[error("there is no interface {name} in this network namespace: `ip link` lists them")]
    NoInterface {
        /// Name of the interface.
        name: String,
    },
    /// The interface is down.
    #[error("{name} is down: bring it up (ip link set {name} up)")]
    Down {
        /// Name of the interface.
        name: String,
    },
    /// The interface does not carry Ethernet.
    #[error("{name} is not an Ethernet interface: use TUN, or an Ethernet or veth interface")]
    NotEthernet {
        /// Name of the interface.
        name: String,
    },
    /// A value of the configuration is out of range.
    #[error("{option} is {value}, it must be {range}")]
    OutOfRange {
        /// Name of the field.
        option: &'static str,
        /// The value that was given.
        value: u64,
        /// The values that the field takes.
        range: &'static str,
    },
    /// IPv6 is switched off on the interface, which was to get an IPv6 address.
    #[error("IPv6 is disabled on {name}: sysctl net.ipv6.conf.{name}.disable_ipv6=0")]
    Ipv6Disabled {
        /// Name of the interface.
        name: String,
    },
    /// A descriptor that was given is not what is wanted.
    #[error("the descriptor is {found}: pass {wanted}")]
    Descriptor {
        /// What it is, as far as the system says.
        found: &'static str,
        /// What to pass instead.
        wanted: &'static str,
    },
    /// An AF_PACKET socket that was given is bound to another interface than the configuration
    /// names.
    #[error(
        "the socket is bound to {bound}, and the configuration names {name}: name {bound}, or pass \
         a socket of {name}"
    )]
    BoundElsewhere {
        /// Name of the interface that the socket is bound to.
        bound: String,
        /// Name of the interface in the configuration.
        name: String,
    },
    /// The MTU of the interface cannot be read from here.
    #[error("{name} is in another network namespace, where its MTU cannot be read: give the MTU")]
    UnknownMtu {
        /// Name of the interface.
        name: String,
    },
    /// Another system call failed.
    #[error("{call} failed on {subject}")]
    System {
        /// System call, or the option that it sets.
        call: &'static str,
        /// Name of the interface or file.
        subject: String,
        /// Reason that the system gave.
        source: std::io::Error,
    },
}

neap_tcp::debug_as_display!(Error);

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
