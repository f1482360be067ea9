//! Congestion control: the trait of a controller, and what it is told.

pub use neap_tcp::congestion::{
    AckSample, CaState, CongestionControl, CongestionEvent, INITIAL_WINDOW, LostSegments,
    PathModel, Start, Window,
};
