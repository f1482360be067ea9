//! What others see of a gateway that other programs start: its control socket, by which `neap ss`
//! and `neap nstat` show it where its user has a folder for such sockets, and its metrics. Nobody
//! is told where there is no folder.

use super::Failure;
use super::ending::Rest;
use super::watching::{Listening, Watched};
use super::way_out::{self, Tunnelled};
use neap::Stack;
use neap::control::{self, ControlListener};
use neap::metrics::MetricsAddress;
use neap_gateway::Gateway;
use std::path;

/// Sockets that are not served yet.
#[derive(Debug)]
pub(crate) struct Shown(Listening);

impl Shown {
    /// Makes the sockets of a stack with this name, before the gateway gives up its rights. Without
    /// `is_of_user` there is no control socket.
    ///
    /// # Errors
    /// The machine does not give the place of the metrics.
    pub(crate) fn listen(
        name: &str,
        is_of_user: bool,
        metrics: Option<&MetricsAddress>,
    ) -> Result<Self, Failure> {
        let metrics = metrics.map(absolute).transpose()?;
        Listening::new(control_socket(name, is_of_user), metrics.as_ref()).map(Self)
    }

    /// The folders from which the sockets are removed in the end.
    pub(crate) fn folders(&self) -> Vec<path::PathBuf> {
        self.0.folders()
    }

    /// Serves the figures of a gateway, its stack and its tunnel until the returned value is
    /// dropped. Returns as well what the gateway leaves in the end.
    ///
    /// # Errors
    /// The system refuses a descriptor or a thread.
    pub(crate) fn serve(
        self,
        stack: &Stack,
        gateway: &Gateway,
        tunnel: Option<Tunnelled>,
    ) -> Result<(Watched, Rest), Failure> {
        way_out::serve(self.0, stack, gateway, tunnel)
    }
}

/// The control socket of a stack with this name, where its user has a folder for such sockets.
/// Without `is_of_user` there is none.
pub(crate) fn control_socket(name: &str, is_of_user: bool) -> Option<ControlListener> {
    // In a user namespace the number of the user says nothing outside. A folder in /tmp that is
    // named by it is found by nobody, or by somebody else.
    let has_folder = is_of_user && control::runtime_folder().is_some();
    has_folder.then(|| control::listen(name).ok()).flatten()
}

/// The same place for a process that leaves its folder.
fn absolute(address: &MetricsAddress) -> Result<MetricsAddress, Failure> {
    let MetricsAddress::Unix(named) = address else { return Ok(address.clone()) };
    let absolute = path::absolute(named)
        .map_err(|error| Failure::System(format!("--metrics {address}: {error}")))?;
    Ok(MetricsAddress::Unix(absolute))
}
