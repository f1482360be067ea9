//! What a scenario file says of hostile peers.

use super::Name;
use crate::hostile::Attack;
use crate::scenario::units::Time;
use serde::Deserialize;

/// A hostile peer at the end of a link.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostileSpec {
    /// What it does.
    pub attack: Attack,
    /// To which host.
    pub target: Name,
    /// The session of which somebody off the path knows addresses and ports.
    #[serde(default)]
    pub session: Option<Name>,
    /// From the start of the world.
    #[serde(default)]
    pub start: Option<Time>,
    /// Then it says nothing any more.
    pub stop: Time,
    /// Between two bursts of a flood; 100 ms by default.
    #[serde(default)]
    pub interval: Option<Time>,
    /// Segments of a burst; 10 by default.
    #[serde(default)]
    pub burst: Option<u32>,
    /// Connections; 1 by default.
    #[serde(default)]
    pub count: Option<u32>,
}
