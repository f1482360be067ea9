//! What doors count, and what others see of it.

use super::handle::DoorsHandle;
use neap::control::{Application, RelayReport};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The longest that an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// Counters, each with its meaning and its name for `nstat`.
macro_rules! counters {
    ($($(#[$doc:meta])* $field:ident = $name:literal,)+) => {
        /// Counters that the thread of the doors raises, and that others may read.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $field: AtomicU64,)+
        }

        /// What happened at doors so far.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct DoorsFigures {
            $($(#[$doc])* pub $field: u64,)+
        }

        impl Counters {
            pub(crate) fn figures(&self) -> DoorsFigures {
                DoorsFigures { $($field: self.$field.load(Relaxed),)+ }
            }
        }

        impl DoorsFigures {
            /// The counters by their names for `nstat`.
            fn by_name(&self) -> Vec<(&'static str, u64)> {
                vec![$(($name, self.$field),)+]
            }
        }
    };
}

counters! {
    /// Connections that came to a door.
    accepted = "DoorsAccepted",
    /// Connections whose other half was opened.
    opened = "DoorsOpened",
    /// Connections that were refused since there were too many, or no descriptors were left.
    full = "DoorsFull",
    /// Clients that gave no right name and password.
    unauthorised = "DoorsUnauthorised",
    /// Clients that asked for what a door does not do, or did not speak its protocol.
    malformed = "DoorsMalformed",
    /// Clients that had not said in time what they want.
    slow = "DoorsSlow",
    /// Connections that the client ended before their other half was open.
    given_up = "DoorsGivenUp",
    /// Connections whose other half could not be opened.
    unreached = "DoorsUnreached",
    /// Connections that both sides ended.
    finished = "DoorsFinished",
    /// Connections that one side lost, and the other was told by a reset.
    lost = "DoorsLost",
    /// Connections that ended with their door.
    closed = "DoorsClosed",
    /// Bytes of connections that came from the host's side and were taken by the other.
    bytes_out = "DoorsBytesOut",
    /// Bytes of connections that the host's side took.
    bytes_in = "DoorsBytesIn",
    /// How often connections held so much together that each began to take only small pieces, one
    /// at a time.
    memory_pressures = "DoorsMemoryPressures",
    /// Clients and associations that got a UDP socket of the stack.
    mappings = "DoorsMappings",
    /// Datagrams that were dropped since there were too many clients or no descriptors, or too many
    /// waited for a name; and associations that were refused since there were too many.
    full_mappings = "DoorsFullMappings",
    /// Datagrams of clients that the stack took.
    datagrams_out = "DoorsDatagramsOut",
    /// Datagrams that clients got.
    datagrams_in = "DoorsDatagramsIn",
    /// Datagrams that the stack or the host refused.
    unsent_datagrams = "DoorsUnsentDatagrams",
    /// Datagrams that were dropped: of strangers, without a readable header, or fragments of
    /// SOCKS5.
    bad_datagrams = "DoorsBadDatagrams",
    /// Datagrams of clients that the host dropped, as too many waited in its socket for the doors.
    overrun_datagrams = "DoorsOverrunDatagrams",
    /// Datagrams that were dropped since their name has no address, or had none yet when their
    /// client had gone.
    unresolved_datagrams = "DoorsUnresolvedDatagrams",
    /// Names that were looked for.
    lookups = "DoorsLookups",
    /// Names that were found without a question.
    cached_lookups = "DoorsCachedLookups",
    /// Names that have no address, or that no server knew anything of.
    failed_lookups = "DoorsFailedLookups",
    /// Names that were not asked for, as too many questions were under way.
    full_lookups = "DoorsFullLookups",
    /// Questions that were sent.
    questions = "DoorsQuestions",
    /// Messages that were dropped: no answers to what was asked.
    bad_answers = "DoorsBadAnswers",
}

impl Counters {
    pub(crate) fn count(&self, counter: fn(&Self) -> &AtomicU64) {
        self.add(counter, 1);
    }

    pub(crate) fn add(&self, counter: fn(&Self) -> &AtomicU64, number: u64) {
        counter(self).fetch_add(number, Relaxed);
    }
}

/// Looks at running [`Doors`](super::Doors) from any thread. It is what a control socket and
/// metrics add to the figures of the stack ([`neap::control::ControlOptions::application`]).
#[derive(Clone, Debug)]
pub struct DoorsInspector {
    handle: DoorsHandle,
    counters: Arc<Counters>,
}

impl DoorsInspector {
    pub(super) fn new(handle: DoorsHandle, counters: Arc<Counters>) -> Self {
        Self { handle, counters }
    }

    /// Returns what happened so far.
    pub fn figures(&self) -> DoorsFigures {
        self.counters.figures()
    }
}

impl Application for DoorsInspector {
    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.figures().by_name()
    }

    fn gauges(&self) -> Vec<(&'static str, u64)> {
        let Some(flows) = self.handle.look(PATIENCE) else { return Vec::new() };
        let held = flows.iter().map(|flow| flow.held as u64).sum();
        vec![("DoorsFlows", flows.len() as u64), ("DoorsHeldBytes", held)]
    }

    fn relays(&self) -> HashMap<(SocketAddr, SocketAddr), RelayReport> {
        self.handle.relays(PATIENCE).unwrap_or_default()
    }
}
