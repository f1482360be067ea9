//! Views of a run: series for plots, packets with the state of their flow, and a page for people.
//!
//! Nothing of this is gathered unless a [`Watch`] asks for it, and gathering changes nothing:
//! figures and hash of a run stay what they are.

mod capture;
mod explain;
mod flows;
mod page;
mod record;

pub(crate) use capture::Capture;
pub use capture::Observed;
pub use explain::{Explanation, GateShare, LongPause};
pub use flows::{AppFlows, FlowRecord, Gate, Pause, Side, Slowest, WATCHED};
pub(crate) use flows::{FlowRecorder, FlowSource};
pub use page::{BarView, Card, Case, Page};
pub(crate) use record::Recorder;
pub use record::{Distribution, Quantity, Recording, Track};

/// Request to record more of a run than its figures.
#[derive(Default)]
pub struct Watch<'a> {
    /// Whether to record series and distributions for plots, and what held each flow.
    ///
    /// It costs a look at every connection in each sample, 24 bytes per frame that leaves within
    /// it, and after each turn of a host a look at its first [`WATCHED`] connections of each
    /// application.
    pub record: bool,
    /// Function that gets every packet that leaves a NIC or the port of a router, warm-up included.
    ///
    /// It costs a copy of the packet's headers and a comment of about 200 bytes.
    pub packets: Option<&'a mut dyn FnMut(&Observed<'_>)>,
}
