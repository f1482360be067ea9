//! Hostile peers of a scenario file.

use super::Name;
use crate::hostile::Attack;
use crate::scenario::units::Time;
use serde::Deserialize;

/// Hostile peer at the end of a link.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostileSpec {
    /// The attack.
    pub attack: Attack,
    /// The host that is attacked.
    pub target: Name,
    /// Session whose addresses and ports a peer off the path knows.
    #[serde(default)]
    pub session: Option<Name>,
    /// When the attack begins, from the start of the world.
    #[serde(default)]
    pub start: Option<Time>,
    /// When the attack ends, from the start of the world.
    pub stop: Time,
    /// Time between two bursts of a flood, longer than 0; 100 ms by default.
    #[serde(default)]
    pub interval: Option<Time>,
    /// Segments of a burst; 10 by default.
    #[serde(default)]
    pub burst: Option<u32>,
    /// Number of connections, at most [`Attack::most_connections`]; 1 by default.
    #[serde(default)]
    pub count: Option<u32>,
}
