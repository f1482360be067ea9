//! Congestion control: the trait of a controller, and what it is told.

pub use neap_tcp::congestion::{
    AckSample, BUILT_IN, CaState, CongestionControl, CongestionEvent, Controllers, INITIAL_WINDOW,
    LostSegments, PathModel, RegisterError, Start, UnknownController, Window,
};
