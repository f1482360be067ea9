//! The tunnel of a gateway while that runs: `SIGHUP` has its file read again, by one thread, and
//! another one takes it in the end.

use super::{Tunnel, read};
use neap_wireguard::file::{File, InterfaceSection};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A tunnel that runs, until somebody takes it. Clones are of the same tunnel.
#[derive(Clone, Debug)]
pub(crate) struct KeptTunnel {
    tunnel: Arc<Mutex<Option<Tunnel>>>,
    resolvers: Resolvers,
}

/// Whom a file has asked for names, and their domains.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Resolvers {
    dns: Vec<IpAddr>,
    search: Vec<String>,
}

impl Resolvers {
    fn of(InterfaceSection { dns, search, .. }: &InterfaceSection) -> Self {
        Self { dns: dns.clone(), search: search.clone() }
    }
}

impl KeptTunnel {
    pub(crate) fn new(tunnel: Tunnel) -> Self {
        let resolvers = Resolvers::of(&tunnel.file.interface);
        Self { tunnel: Arc::new(Mutex::new(Some(tunnel))), resolvers }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Tunnel>> {
        self.tunnel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the tunnel, if it is still there. It is not read again from then on.
    pub(crate) fn take(&self) -> Option<Tunnel> {
        self.lock().take()
    }

    /// Reads the file again. What it has not changed goes on. The log tells what became of it.
    pub(crate) fn reload(&self) {
        let mut tunnel = self.lock();
        let Some(tunnel) = tunnel.as_mut() else { return };
        match self.read_again(tunnel) {
            Ok(()) => tracing::info!("the file was read again"),
            Err(why) => tracing::error!("{why}"),
        }
    }

    /// # Errors
    /// Why nothing has changed, or lines about what cannot be as the file says.
    fn read_again(&self, tunnel: &mut Tunnel) -> Result<(), String> {
        let file = tunnel.accept(read(&tunnel.file.path))?;
        self.tell_of_resolvers(&file);
        tunnel.change(file).map_err(|failures| failures.join("\n"))
    }

    /// The gateway has its resolvers, and the guest its domains, from the start.
    fn tell_of_resolvers(&self, file: &File) {
        if Resolvers::of(&file.interface) != self.resolvers {
            let path = file.tunnel_path.as_ref().unwrap_or(&file.path).display();
            tracing::warn!(
                "{path}: [Interface] DNS is that of the start while the gateway runs: start it \
                 again for another one"
            );
        }
    }
}
