//! Why a stack could not be made, and the std errors of its sockets.

use crate::scheduling::SchedulingError;
use neap_stack::error::NetError;
use neap_stack::qdisc::config::QdiscError;
use neap_stack::socket::SocketError;
use neap_stack::stack::StackError;
use neap_tcp::congestion::RegisterError;
use neap_tcp::connection::{ConnectionError, ReadError, WriteError};
use neap_tcp::options::OptionError;
use neap_tcp::sysctl::SysctlError;
use std::io;
use thiserror::Error;

/// Reason why [`Builder::build`](crate::Builder::build) made no stack.
///
/// `Debug` prints the same sentence as `Display`, so a `main` that returns the error is readable.
#[derive(Error)]
#[non_exhaustive]
pub enum BuildError {
    /// No device was given.
    #[error("a stack needs a device: give one with Builder::tun or Builder::device")]
    NoDevice,
    /// The stack was given no address.
    #[error("a stack needs an address: give one with Builder::address, for instance 10.9.0.2/24")]
    NoAddress,
    /// A setting of the builder makes no sense.
    #[error("{argument}: {problem}")]
    Argument {
        /// The setting and its value, for instance `address 10.9.0.255/24`.
        argument: String,
        /// What is wrong with it, and what to do.
        problem: String,
    },
    /// An address of the kernel's end that makes no sense.
    #[error("host {0}")]
    HostAddress(NetError),
    /// A sysctl is unknown or its value does not fit.
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
    /// The name of a congestion controller is refused.
    #[error(transparent)]
    CongestionControl(#[from] RegisterError),
    /// There is no such queueing discipline, or it does not take these parameters.
    #[error("qdisc: {0}")]
    Qdisc(#[from] QdiscError),
    /// The device could not be opened.
    #[error(transparent)]
    Device(#[from] neap_device::Error),
    /// An address, a route or the configuration of TCP is refused.
    #[error(transparent)]
    Stack(#[from] StackError),
    /// The scheduling of the workers is out of range, or the process lacks the right.
    #[error(transparent)]
    Scheduling(#[from] SchedulingError),
    /// The system refuses threads or descriptors.
    #[error(transparent)]
    System(#[from] io::Error),
}

neap_tcp::debug_as_display!(BuildError);

pub(crate) fn connection_error(error: ConnectionError) -> io::Error {
    let kind = match error {
        ConnectionError::Refused => io::ErrorKind::ConnectionRefused,
        ConnectionError::Reset => io::ErrorKind::ConnectionReset,
        ConnectionError::BrokenPipe => io::ErrorKind::BrokenPipe,
        ConnectionError::TimedOut => io::ErrorKind::TimedOut,
        ConnectionError::HostUnreachable => io::ErrorKind::HostUnreachable,
        ConnectionError::NetworkUnreachable => io::ErrorKind::NetworkUnreachable,
        ConnectionError::Aborted => io::ErrorKind::ConnectionAborted,
        ConnectionError::HostDown => io::ErrorKind::HostUnreachable,
        ConnectionError::NetworkDown | ConnectionError::NoNetwork => io::ErrorKind::NetworkDown,
        ConnectionError::Forbidden => io::ErrorKind::PermissionDenied,
        ConnectionError::NotSupported | ConnectionError::ProtocolUnavailable => {
            io::ErrorKind::Unsupported
        }
        ConnectionError::Protocol => io::ErrorKind::InvalidData,
        ConnectionError::MessageTooLong => io::ErrorKind::InvalidInput,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

pub(crate) fn write_error(error: WriteError) -> io::Error {
    match error {
        WriteError::WouldBlock => io::ErrorKind::WouldBlock.into(),
        WriteError::Closed => io::ErrorKind::BrokenPipe.into(),
        WriteError::Failed(error) => connection_error(error),
    }
}

pub(crate) fn read_error(error: ReadError) -> io::Error {
    match error {
        ReadError::WouldBlock => io::ErrorKind::WouldBlock.into(),
        ReadError::Failed(error) => connection_error(error),
    }
}

pub(crate) fn option_error(error: OptionError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}

/// A TTL that was given, as the stack takes it.
pub(crate) fn hop_limit(ttl: u32) -> io::Result<u8> {
    u8::try_from(ttl).ok().filter(|ttl| *ttl > 0).ok_or_else(|| {
        let message = format!("a TTL of {ttl} is out of range: give 1 to 255");
        io::Error::new(io::ErrorKind::InvalidInput, message)
    })
}

pub(crate) fn socket_error(error: SocketError) -> io::Error {
    let kind = match error {
        SocketError::Reported(error) => return connection_error(error),
        SocketError::WouldBlock => io::ErrorKind::WouldBlock,
        SocketError::AddressInUse => io::ErrorKind::AddrInUse,
        SocketError::AddressNotAvailable => io::ErrorKind::AddrNotAvailable,
        SocketError::NetworkUnreachable => io::ErrorKind::NetworkUnreachable,
        SocketError::HostUnreachable => io::ErrorKind::HostUnreachable,
        SocketError::Refused => io::ErrorKind::ConnectionRefused,
        SocketError::ShutDown => io::ErrorKind::ConnectionAborted,
        SocketError::AddressFamily
        | SocketError::DestinationRequired
        | SocketError::MessageTooLong
        | SocketError::InvalidArgument => io::ErrorKind::InvalidInput,
        SocketError::NoBuffers => io::ErrorKind::OutOfMemory,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_main_returns_prints_a_sentence() {
        let error = BuildError::from(neap_device::Error::Permission {
            action: "opening /dev/net/tun",
            capability: "CAP_NET_ADMIN",
        });
        let error: Box<dyn std::error::Error> = error.into();
        let sentence = "opening /dev/net/tun needs CAP_NET_ADMIN: run as root, or in a namespace \
                        of your own (unshare -rn)";
        assert_eq!(format!("{error:?}"), sentence);
        let error = connection_error(ConnectionError::Refused);
        assert!(format!("{error:?}").contains("error: connection refused"), "{error:?}");
    }

    #[test]
    fn every_error_of_a_socket_has_a_kind() {
        for &error in ConnectionError::ALL {
            assert_ne!(connection_error(error).kind(), io::ErrorKind::Other, "{error}");
        }
        for &error in SocketError::ALL {
            assert_ne!(socket_error(error).kind(), io::ErrorKind::Other, "{error}");
        }
    }

    #[test]
    fn the_reason_of_the_system_is_printed_too() {
        let error = BuildError::from(neap_device::Error::System {
            call: "mmap",
            subject: "eth0".into(),
            source: io::Error::other("no memory"),
        });
        assert_eq!(format!("{error:?}"), "mmap failed on eth0: no memory");
    }
}
