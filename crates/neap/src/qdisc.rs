//! Queueing disciplines: their settings and figures, and the trait of a discipline.
//!
//! [`QdiscConfig`] has the kinds that the stack brings. It parses and prints the words of `tc`.

pub use neap_stack::qdisc::codel::{CodelStats, Config as CodelConfig, Law, LawStats};
pub use neap_stack::qdisc::config::{QdiscConfig, QdiscError};
pub use neap_stack::qdisc::fq::{Config as FqConfig, FqStats};
pub use neap_stack::qdisc::fq_codel::{Config as FqCodelConfig, FqCodelStats};
pub use neap_stack::qdisc::kinds::{CustomQdisc, QdiscKinds, QdiscSetup};
pub use neap_stack::qdisc::report::{Report, Xstats};
pub use neap_stack::qdisc::tbf::Config as TbfConfig;
pub use neap_stack::qdisc::{Dequeued, Dropped, Qdisc, QdiscStats, Verdict};
