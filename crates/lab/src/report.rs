//! What a run looks like: series for plots, packets with the state of their flow, and a page for
//! people.
//!
//! Nothing of this is gathered unless a [`Watch`] asks for it, and gathering changes nothing:
//! figures and hash of a run stay what they are.

mod capture;
mod page;
mod plot;
mod record;

pub(crate) use capture::Capture;
pub use capture::Observed;
pub use page::{Case, Page};
pub use plot::{Line, Plot, Shape};
pub(crate) use record::Recorder;
pub use record::{Distribution, Quantity, Recording, Track};

/// What a run is looked at for beyond its figures.
#[derive(Default)]
pub struct Watch<'a> {
    /// Series and distributions for plots. Costs a look at every connection in each sample, and 24
    /// bytes per frame that leaves within it.
    pub record: bool,
    /// Is told of every packet that leaves a NIC or the port of a router, warm-up included. Costs a
    /// copy of its headers and a comment of about 200 bytes, until it is told.
    pub packets: Option<&'a mut dyn FnMut(&Observed<'_>)>,
}
