//! [`Errno`]: Linux's error numbers, with their names and texts.

use core::fmt;
use neap_stack::socket::SocketError;
use neap_tcp::connection::{ConnectionError, ReadError, WriteError};
use neap_tcp::options::OptionError;

/// Error number of a call, as Linux's `errno`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($name:ident $number:literal $text:literal;)+) => {
        impl Errno {
            $(#[doc = $text] pub const $name: Self = Self($number);)+

            /// Returns the error of this name.
            pub fn named(name: &str) -> Option<Self> {
                let all = [$((stringify!($name), Self::$name)),+];
                all.into_iter().find(|(known, _)| *known == name).map(|(_, errno)| errno)
            }

            /// Returns the name, such as `EAGAIN`; `None` for a number that is unknown here.
            pub fn name(self) -> Option<&'static str> {
                match self.0 { $($number => Some(stringify!($name)),)+ _ => None }
            }

            /// Returns the text of `strerror(3)`.
            pub fn text(self) -> &'static str {
                match self.0 { $($number => $text,)+ _ => "Unknown error" }
            }
        }
    };
}

errnos! {
    EPERM 1 "Operation not permitted";
    ENOENT 2 "No such file or directory";
    EINTR 4 "Interrupted system call";
    EIO 5 "Input/output error";
    EBADF 9 "Bad file descriptor";
    EAGAIN 11 "Resource temporarily unavailable";
    ENOMEM 12 "Cannot allocate memory";
    EACCES 13 "Permission denied";
    EFAULT 14 "Bad address";
    EBUSY 16 "Device or resource busy";
    EEXIST 17 "File exists";
    ENODEV 19 "No such device";
    EINVAL 22 "Invalid argument";
    EMFILE 24 "Too many open files";
    ENOTTY 25 "Inappropriate ioctl for device";
    ESPIPE 29 "Illegal seek";
    EPIPE 32 "Broken pipe";
    EDOM 33 "Numerical argument out of domain";
    ENOSYS 38 "Function not implemented";
    ELOOP 40 "Too many levels of symbolic links";
    ENONET 64 "Machine is not on the network";
    EPROTO 71 "Protocol error";
    ENOTSOCK 88 "Socket operation on non-socket";
    EDESTADDRREQ 89 "Destination address required";
    EMSGSIZE 90 "Message too long";
    EPROTOTYPE 91 "Protocol wrong type for socket";
    ENOPROTOOPT 92 "Protocol not available";
    EPROTONOSUPPORT 93 "Protocol not supported";
    ESOCKTNOSUPPORT 94 "Socket type not supported";
    EOPNOTSUPP 95 "Operation not supported";
    EAFNOSUPPORT 97 "Address family not supported by protocol";
    EADDRINUSE 98 "Address already in use";
    EADDRNOTAVAIL 99 "Cannot assign requested address";
    ENETDOWN 100 "Network is down";
    ENETUNREACH 101 "Network is unreachable";
    ENETRESET 102 "Network dropped connection on reset";
    ECONNABORTED 103 "Software caused connection abort";
    ECONNRESET 104 "Connection reset by peer";
    ENOBUFS 105 "No buffer space available";
    EISCONN 106 "Transport endpoint is already connected";
    ENOTCONN 107 "Transport endpoint is not connected";
    ESHUTDOWN 108 "Cannot send after transport endpoint shutdown";
    ETIMEDOUT 110 "Connection timed out";
    ECONNREFUSED 111 "Connection refused";
    EHOSTDOWN 112 "Host is down";
    EHOSTUNREACH 113 "No route to host";
    EALREADY 114 "Operation already in progress";
    EINPROGRESS 115 "Operation now in progress";
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "Errno({})", self.0),
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl core::error::Error for Errno {}

impl From<ConnectionError> for Errno {
    fn from(error: ConnectionError) -> Self {
        match error {
            ConnectionError::Refused => Self::ECONNREFUSED,
            ConnectionError::Reset => Self::ECONNRESET,
            ConnectionError::BrokenPipe => Self::EPIPE,
            ConnectionError::TimedOut => Self::ETIMEDOUT,
            ConnectionError::HostUnreachable => Self::EHOSTUNREACH,
            ConnectionError::NetworkUnreachable => Self::ENETUNREACH,
            ConnectionError::Aborted => Self::ECONNABORTED,
            ConnectionError::ProtocolUnavailable => Self::ENOPROTOOPT,
            ConnectionError::NotSupported => Self::EOPNOTSUPP,
            ConnectionError::HostDown => Self::EHOSTDOWN,
            ConnectionError::NetworkDown => Self::ENETDOWN,
            ConnectionError::NoNetwork => Self::ENONET,
            ConnectionError::Forbidden => Self::EACCES,
            ConnectionError::Protocol => Self::EPROTO,
            ConnectionError::MessageTooLong => Self::EMSGSIZE,
            _ => Self::EIO,
        }
    }
}

impl From<WriteError> for Errno {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::WouldBlock => Self::EAGAIN,
            WriteError::Closed => Self::EPIPE,
            WriteError::Failed(error) => error.into(),
        }
    }
}

impl From<ReadError> for Errno {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::WouldBlock => Self::EAGAIN,
            ReadError::Failed(error) => error.into(),
        }
    }
}

impl From<OptionError> for Errno {
    fn from(error: OptionError) -> Self {
        match error {
            OptionError::UnknownCongestion(_) => Self::ENOENT,
            _ => Self::EINVAL,
        }
    }
}

impl From<SocketError> for Errno {
    fn from(error: SocketError) -> Self {
        match error {
            SocketError::AddressInUse => Self::EADDRINUSE,
            SocketError::AddressNotAvailable => Self::EADDRNOTAVAIL,
            SocketError::NetworkUnreachable => Self::ENETUNREACH,
            SocketError::HostUnreachable => Self::EHOSTUNREACH,
            SocketError::Refused => Self::ECONNREFUSED,
            SocketError::AddressFamily => Self::EAFNOSUPPORT,
            SocketError::DestinationRequired => Self::EDESTADDRREQ,
            SocketError::MessageTooLong => Self::EMSGSIZE,
            SocketError::WouldBlock => Self::EAGAIN,
            SocketError::NoBuffers => Self::ENOBUFS,
            SocketError::InvalidArgument => Self::EINVAL,
            SocketError::Reported(error) => error.into(),
            SocketError::ShutDown => Self::ENETDOWN,
            _ => Self::EIO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_of_a_socket_has_its_number() {
        for &error in ConnectionError::ALL {
            assert_ne!(Errno::from(error), Errno::EIO, "{error}");
        }
        for &error in SocketError::ALL {
            assert_ne!(Errno::from(error), Errno::EIO, "{error}");
        }
    }
}
