//! Memory of a host under each hostile peer, with known settings: the most that it holds, and the
//! most that it may hold.

use super::{Broken, LONGEST, run};
use crate::hostile::Attack;
use crate::oracle::send_memory_limit;
use crate::scenario::Peaks;
use core::fmt;
use neap_tcp::config::Config;

/// Connections of the attacker.
const COUNT: u64 = 8;

/// `net.ipv4.tcp_wmem`, `net.ipv4.tcp_rmem` and `net.ipv4.tcp_max_syn_backlog` of the host: small,
/// so that attacks reach them.
const WMEM: u64 = 262_144;
const RMEM: u64 = 131_072;
const BACKLOG: u64 = 128;

/// `net.ipv4.tcp_max_orphans`, and the last bound of `net.ipv4.tcp_mem` in pages.
const ORPHANS: u64 = 500;
const PAGES: u64 = 2048;

/// Bytes of a peer's first window.
const FIRST_WINDOW: u64 = 65_536;

/// Memory of out-of-order data that costs more than it is worth.
const OVERHEAD: u64 = 65_536;

/// A socket keeps at most so many times what its receive buffer says: as in Linux a segment is
/// taken whole while there is any room, and `SO_RCVBUF` counts memory.
const RECEIVE_SLACK: u64 = 2;

/// Result of an attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttackMemory {
    /// The attack.
    pub attack: Attack,
    /// Most that the host held.
    pub peaks: Peaks,
    /// Bytes that one socket may hold for its reader, by its settings.
    pub receive_limit: u64,
    /// Bytes that one socket may hold to be sent, by its settings.
    pub send_limit: u64,
    /// Most half-open connections of a listener.
    pub backlog_limit: u64,
    /// Number of connections of the attacker and a session.
    pub connections: u64,
    /// Most connections without an application.
    pub orphan_limit: u64,
    /// Most pages of memory of all connections together.
    pub page_limit: u64,
}

impl AttackMemory {
    /// Heading of a table of these results.
    pub const HEADER: &'static str = "attack                 received/socket      limit   to send/socket      limit   half-open  limit   sockets   orphans  limit     pages  limit";

    /// Runs one attack for 20 seconds, and until nothing is left of it.
    ///
    /// # Errors
    /// [`Broken`], as for any world of the swarm.
    pub fn run(attack: Attack) -> Result<Self, Broken> {
        let outcome = run(&scenario(attack), LONGEST)?;
        let peaks = outcome.peaks.iter().find(|(name, _)| name == "victim");
        let peaks = peaks.map(|(_, peaks)| *peaks).unwrap_or_default();
        // Of a larger buffer single bytes fill no more than they are worth.
        let by_worth = OVERHEAD + 2 * FIRST_WINDOW;
        Ok(Self {
            attack,
            peaks,
            receive_limit: if attack == Attack::Holes { by_worth } else { RMEM * RECEIVE_SLACK },
            send_limit: send_memory_limit(WMEM),
            backlog_limit: BACKLOG.min(Config::default().somaxconn.into()),
            // Those that come later end as orphans, which are as many as there may be.
            connections: if attack == Attack::OrphanChurn { u64::MAX } else { COUNT + 2 },
            orphan_limit: ORPHANS,
            page_limit: PAGES,
        })
    }

    /// Returns whether the host held no more than it may.
    pub fn holds(&self) -> bool {
        let Peaks { received_by_one, sending_by_one, half_open, connections, .. } = self.peaks;
        let Peaks { orphans, memory_pages, .. } = self.peaks;
        let is_bounded = orphans <= self.orphan_limit && memory_pages <= self.page_limit;
        is_bounded
            && received_by_one <= self.receive_limit
            && sending_by_one <= self.send_limit
            && half_open <= self.backlog_limit + 1
            && connections <= self.connections
    }
}

impl fmt::Display for AttackMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Peaks { received_by_one, sending_by_one, half_open, connections, .. } = self.peaks;
        let Peaks { orphans, memory_pages, .. } = self.peaks;
        write!(
            f,
            "{:<20} {received_by_one:>16} {:>10} {sending_by_one:>16} {:>10} {half_open:>11} {:>6} {connections:>9} {orphans:>9} {:>6} {memory_pages:>9} {:>6}",
            self.attack.name(),
            self.receive_limit,
            self.send_limit,
            self.backlog_limit,
            self.orphan_limit,
            self.page_limit,
        )
    }
}

fn scenario(attack: Attack) -> String {
    let most = if attack == Attack::Holes { 6 << 20 } else { RMEM };
    let session = if attack == Attack::Blind { "session = \"honest\"\n" } else { "" };
    format!(
        r#"about = "a host under attack"
duration = "30s"
oracles = "survival"
[host.victim.sysctl]
"net.ipv4.tcp_wmem" = "4096 16384 {WMEM}"
"net.ipv4.tcp_rmem" = "4096 65536 {most}"
"net.ipv4.tcp_mem" = "1024 1536 {PAGES}"
"net.ipv4.tcp_max_orphans" = {ORPHANS}
"net.ipv4.tcp_max_syn_backlog" = {BACKLOG}
[host.friend]
[link.to-friend]
ends = ["victim", "friend"]
rate = "10mbit"
delay = "5ms"
[link.to-enemy]
ends = ["enemy", "victim"]
rate = "50mbit"
delay = "10ms"
[session.honest]
from = "friend"
to = "victim"
bytes = 1000000
keepalive = "30s"
[hostile.enemy]
attack = "{}"
target = "victim"
{session}stop = "20s"
count = {COUNT}
interval = "20ms"
burst = 40
"#,
        attack.name()
    )
}
