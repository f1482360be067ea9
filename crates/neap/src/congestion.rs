//! Congestion control: the trait of a controller, and what it is told.
//!
//! Of the controllers that neap has ([`BUILT_IN`]), `bbr` keeps its rate under random loss. That of
//! `bbr3` collapses above 2 %, as its draft wants, and those of `cubic` and `reno` far below.

pub use neap_tcp::congestion::{
    AckSample, BUILT_IN, CaState, CongestionControl, CongestionEvent, Controllers, INITIAL_WINDOW,
    LostSegments, PathModel, RegisterError, Start, UnknownController, Window,
};
