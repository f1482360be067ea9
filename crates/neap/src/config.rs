//! Settings of TCP, by the names of Linux's sysctls, and the profiles that set many at once.

pub use neap_tcp::config::{
    BufferSizes, Config, FrameRule, HyStartRule, MemoryPages, PortRange, SmallQueueRule, TsoBonus,
    TsoDefer,
};
pub use neap_tcp::profile::Profile;
pub use neap_tcp::sysctl::{ActsOn, Sysctl, SysctlError};
