//! How sockets of the host leave the host.

use socket2::Socket;
use std::io;
use std::net::IpAddr;

/// Settings of every socket that a gateway opens towards the outside.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outside {
    /// Interface by which packets leave and arrive (`SO_BINDTODEVICE`), whatever the routes say.
    pub interface: Option<String>,
    /// Mark of packets (`SO_MARK`), by which rules choose a routing table. It needs
    /// `CAP_NET_ADMIN` or `CAP_NET_RAW`.
    pub mark: Option<u32>,
}

impl Outside {
    /// Sets what is asked for.
    ///
    /// # Errors
    /// The kernel knows no such interface (`ENODEV`), or the process lacks the right to set the
    /// mark (`EPERM`).
    pub fn apply(&self, socket: &Socket) -> io::Result<()> {
        if let Some(interface) = &self.interface {
            socket.bind_device(Some(interface.as_bytes()))?;
        }
        if let Some(mark) = self.mark {
            socket.set_mark(mark)?;
        }
        Ok(())
    }

    /// The settings for sockets that reach one address: the host's own loopback addresses are not
    /// behind an interface.
    #[must_use]
    pub fn towards(&self, to: IpAddr) -> Self {
        if to.is_loopback() { Self::default() } else { self.clone() }
    }
}
