//! Sessions of a scenario file.

use super::Name;
use crate::scenario::units::{Share, Size, Speed, Time};
use serde::Deserialize;

/// Session: a connection and the plans of its ends. Keys of reading, writing and options hold for
/// both ends.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionSpec {
    /// The host that connects.
    pub from: Name,
    /// The host that listens.
    pub to: Name,
    /// Time at which it begins, from the start of the world.
    #[serde(default)]
    pub start: Option<Time>,
    /// Bytes that `from` writes.
    #[serde(default)]
    pub bytes: Option<Size>,
    /// Bytes that `to` writes.
    #[serde(default)]
    pub answer: Option<Size>,
    /// Bytes of one write at most.
    #[serde(default)]
    pub write: Option<Size>,
    /// Bytes of one read at most.
    #[serde(default)]
    pub read: Option<Size>,
    /// Share of the reads and writes that copy nothing.
    #[serde(default)]
    pub zero_copy: Option<Share>,
    /// Share of the reads and writes after which an end rests.
    #[serde(default)]
    pub pause: Option<Share>,
    /// The longest rest.
    #[serde(default)]
    pub rest: Option<Time>,
    /// Time after the start in which `to` reads nothing.
    #[serde(default)]
    pub late: Option<Time>,
    /// Way in which the session ends.
    #[serde(default)]
    pub ending: EndingSpec,
    /// Whether the ending is that of `to`, instead of `from`.
    #[serde(default)]
    pub ended_by_server: bool,
    /// Bytes read and written together after which the session is aborted.
    #[serde(default)]
    pub after: Option<Size>,
    /// `TCP_NODELAY`.
    #[serde(default)]
    pub nodelay: bool,
    /// `SO_SNDBUF` as asked.
    #[serde(default)]
    pub sndbuf: Option<Size>,
    /// `SO_RCVBUF` as asked.
    #[serde(default)]
    pub rcvbuf: Option<Size>,
    /// `TCP_MAXSEG`.
    #[serde(default)]
    pub mss: Option<u16>,
    /// `SO_MAX_PACING_RATE`.
    #[serde(default)]
    pub pacing_rate: Option<Speed>,
    /// `TCP_NOTSENT_LOWAT`.
    #[serde(default)]
    pub notsent_lowat: Option<Size>,
    /// `SO_KEEPALIVE`, with `TCP_KEEPIDLE`; probes follow each tenth of it, at least each second.
    #[serde(default)]
    pub keepalive: Option<Time>,
    /// `TCP_USER_TIMEOUT`.
    #[serde(default)]
    pub user_timeout: Option<Time>,
    /// `TCP_CONGESTION`.
    #[serde(default)]
    pub congestion: Option<Name>,
}

/// Way in which an end leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EndingSpec {
    /// The end shuts down after its last byte and closes after the peer's.
    #[default]
    HalfClose,
    /// The end closes after its last byte, whatever comes.
    Close,
    /// The end resets the connection.
    Abort,
}
