//! The control socket of a gateway that other programs start: `neap ss` and `neap nstat` show it
//! where its user has a folder for such sockets. Nobody is told where there is none.

use neap::Stack;
use neap::control::{self, Control, ControlListener};
use neap_gateway::Gateway;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A control socket that is not served yet, if there is one.
#[derive(Debug)]
pub(crate) struct Shown(Option<ControlListener>);

impl Shown {
    /// Makes the socket of a stack with this name, before the gateway gives up its rights.
    pub(crate) fn listen(name: &str) -> Self {
        // In a user namespace the number of the user says nothing outside. A folder in /tmp that is
        // named by it is found by nobody, or by somebody else.
        let has_folder = control::runtime_folder().is_some();
        Self(has_folder.then(|| control::listen(name).ok()).flatten())
    }

    /// Shows nothing.
    pub(crate) fn nowhere() -> Self {
        Self(None)
    }

    /// The folder from which the socket is removed in the end.
    pub(crate) fn folders(&self) -> Vec<PathBuf> {
        let path = self.0.as_ref().map(ControlListener::path);
        path.and_then(Path::parent).map(Path::to_owned).into_iter().collect()
    }

    /// Serves the figures of a gateway and its stack until the returned value is dropped.
    pub(crate) fn serve(self, stack: &Stack, gateway: &Gateway) -> Option<Control> {
        self.0?.serve(stack, Some(Arc::new(gateway.inspector()))).ok()
    }
}
