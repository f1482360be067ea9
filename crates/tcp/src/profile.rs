//! Named sets of settings, each with the rules of a Linux version, so that published figures can be
//! compared.
//!
//! A profile sets sysctls as that kernel had them, and a switch for each rule that was different
//! then. Each can be set alone afterwards. The controllers, loss recovery and the receiver are
//! today's in every profile; Linux's profiles have the HyStart of Linux 6.18.

use crate::config::{BufferSizes, Config, HyStartRule, SmallQueueRule, TsoBonus, TsoDefer};

/// A named set of settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Profile {
    /// Linux 3.6, which introduced small queues (46d3ceabd8d9): a fixed limit, frames of at most
    /// half of it, no pacing.
    Linux2012,
    /// Linux 3.19, which sizes frames when they are sent (605ad7f184b6). Only `fq` paces, at twice
    /// the rate of the window.
    Linux2014,
    /// Linux 4.13, which paces in TCP (218af599fa63): a late departure gets no credit, and no
    /// segment is free of pacing.
    Linux2017,
    /// Linux 4.20, which has departure times, the half rule of the low-water mark (a74f0fa082b7)
    /// and no cap of the queue of paced flows (c73e5807e4f6).
    Linux2018,
    /// Linux 6.18.
    Linux6_18,
    /// neap's own rules, which are the default.
    Neap,
}

impl Profile {
    /// All profiles, oldest first.
    pub const ALL: [Self; 6] = [
        Self::Linux2012,
        Self::Linux2014,
        Self::Linux2017,
        Self::Linux2018,
        Self::Linux6_18,
        Self::Neap,
    ];

    /// Returns the name of the profile.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Linux2012 => "linux-2012",
            Self::Linux2014 => "linux-2014",
            Self::Linux2017 => "linux-2017",
            Self::Linux2018 => "linux-2018",
            Self::Linux6_18 => "linux-6.18",
            Self::Neap => "neap",
        }
    }

    /// Returns the profile of this name, or `None` if there is none.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|profile| profile.name() == name)
    }

    /// Returns the settings of the profile.
    pub fn config(self) -> Config {
        match self {
            Self::Linux2012 => linux_2012(),
            Self::Linux2014 => linux_2014(),
            Self::Linux2017 => linux_2017(),
            Self::Linux2018 => linux_2018(),
            Self::Linux6_18 => linux_6_18(),
            Self::Neap => Config::default(),
        }
    }
}

impl Config {
    /// Returns the settings of the profile `name`, or `None` if there is none.
    pub fn profile(name: &str) -> Option<Self> {
        Profile::by_name(name).map(Profile::config)
    }
}

fn linux_6_18() -> Config {
    Config {
        tso_bonus: TsoBonus::Linux,
        late_completions: false,
        hystart: HyStartRule::Linux,
        timer_slack_ns: 10_000,
        pacing_debt_us: 0,
        pacing_arrears_us: 0,
        reply_ack_us: 0,
        ..Config::default()
    }
}

fn linux_2018() -> Config {
    Config {
        tcp_limit_output_bytes: 1 << 20,
        tso_bonus: TsoBonus::Off,
        tso_defer: TsoDefer::HalfRtt,
        // "Empty or one" had become "empty" (75c119afe14f).
        small_queue_spare: 1,
        small_queue_cap_paced: false,
        skb_overhead: 1280,
        wmem_max: 212_992,
        rmem_max: 212_992,
        somaxconn: 128,
        ..linux_6_18()
    }
}

fn linux_2017() -> Config {
    Config {
        tcp_limit_output_bytes: 262_144,
        small_queue_spare: 2,
        small_queue_cap_paced: true,
        notsent_lowat_half: false,
        pacing_credit: false,
        pacing_free_segments: 0,
        ..linux_2018()
    }
}

fn linux_2014() -> Config {
    Config {
        tcp_limit_output_bytes: 131_072,
        tcp_pacing_ca_ratio: 200,
        internal_pacing: false,
        small_queue_spare: 0,
        half_cwnd: false,
        ..linux_2017()
    }
}

fn linux_2012() -> Config {
    Config {
        tcp_min_tso_segs: 1,
        tcp_autocorking: false,
        tcp_early_retrans: 0,
        tcp_rmem: BufferSizes { min: 4096, default: 87_380, max: 6 << 20 },
        tso_autosizing: false,
        small_queue_rule: SmallQueueRule::Fixed,
        // 2304 bytes of memory for 1448 of payload.
        skb_overhead: 856,
        ..linux_2014()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_profile_is_found_by_its_name_and_differs_from_the_others() {
        for profile in Profile::ALL {
            assert_eq!(Profile::by_name(profile.name()), Some(profile));
            assert_eq!(Config::profile(profile.name()), Some(profile.config()));
            let same = Profile::ALL.iter().filter(|other| other.config() == profile.config());
            assert_eq!(same.count(), 1, "{profile:?}");
        }
        assert_eq!(Config::profile("linux-2011"), None);
        assert_eq!(Profile::Neap.config(), Config::default());
    }

    #[test]
    fn limits_of_each_year() {
        let limits = Profile::ALL.map(|profile| profile.config().tcp_limit_output_bytes);
        assert_eq!(limits, [131_072, 131_072, 262_144, 1 << 20, 4 << 20, 4 << 20]);
    }
}
