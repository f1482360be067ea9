//! Settings by name: one table of every field of [`Config`] with Linux's name, unit and range.

use crate::config::{
    BufferSizes, Config, HyStartRule, SmallQueueRule, SysctlError, TsoBonus, TsoDefer,
};
use crate::congestion;
use core::str::FromStr;

/// The names of all congestion controllers: read, not set.
const AVAILABLE_CONGESTION_CONTROL: &str = "net.ipv4.tcp_available_congestion_control";

/// One row of the table.
struct Sysctl {
    name: &'static str,
    expected: &'static str,
    get: fn(&Config) -> String,
    /// `None` if the text is not what is expected; then nothing has changed.
    set: fn(&mut Config, &str) -> Option<()>,
}

/// What a kind of value should look like.
macro_rules! expected {
    (int $low:literal $high:literal) => {
        concat!("an integer from ", $low, " to ", $high)
    };
    (switch) => {
        "0 or 1"
    };
    (sizes) => {
        "three sizes in bytes, min default max, each from 1 to 2147483647"
    };
    (bonus) => {
        "off, linux or bounded"
    };
    (rule) => {
        "fixed or rate"
    };
    (hystart) => {
        "off, linux or rfc9406"
    };
    (defer) => {
        "next_ack or half_rtt"
    };
    (controller) => {
        "the name of a congestion controller"
    };
}

/// Makes the table, and fails to compile when a field of [`Config`] is missing from it or
/// appears twice.
macro_rules! sysctls {
    ($($name:literal $field:ident: $kind:ident $($low:literal..$high:literal)?;)+) => {
        const SYSCTLS: &[Sysctl] = &[$(Sysctl {
            name: $name,
            expected: expected!($kind $($low $high)?),
            get: |config| show::$kind(&config.$field),
            set: |config, text| {
                config.$field = parse::$kind(text $(, $low, $high)?)?;
                Some(())
            },
        },)+];

        const _: fn(&Config) = |config| {
            let Config { $($field: _,)+ } = config;
        };
    };
}

// Ranges are those of Linux where it has one; times are bounded so that no product overflows.
sysctls! {
    "net.core.rmem_max" rmem_max: int 2304..2147483647;
    "net.core.somaxconn" somaxconn: int 0..2147483647;
    "net.core.wmem_max" wmem_max: int 4608..2147483647;
    "net.ipv4.tcp_abort_on_overflow" tcp_abort_on_overflow: switch;
    "net.ipv4.tcp_autocorking" tcp_autocorking: switch;
    "net.ipv4.tcp_congestion_control" tcp_congestion_control: controller;
    "net.ipv4.tcp_dsack" tcp_dsack: switch;
    "net.ipv4.tcp_early_retrans" tcp_early_retrans: int 0..4;
    "net.ipv4.tcp_ecn" tcp_ecn: int 0..2;
    "net.ipv4.tcp_ecn_fallback" tcp_ecn_fallback: switch;
    "net.ipv4.tcp_fin_timeout" tcp_fin_timeout: int 0..2147483;
    "net.ipv4.tcp_frto" tcp_frto: switch;
    "net.ipv4.tcp_invalid_ratelimit" tcp_invalid_ratelimit: int 0..2147483647;
    "net.ipv4.tcp_keepalive_intvl" tcp_keepalive_intvl: int 1..2147483;
    "net.ipv4.tcp_keepalive_probes" tcp_keepalive_probes: int 0..255;
    "net.ipv4.tcp_keepalive_time" tcp_keepalive_time: int 1..2147483;
    "net.ipv4.tcp_limit_output_bytes" tcp_limit_output_bytes: int 0..2147483647;
    "net.ipv4.tcp_max_reordering" tcp_max_reordering: int 1..2147483647;
    "net.ipv4.tcp_max_syn_backlog" tcp_max_syn_backlog: int 0..2147483647;
    "net.ipv4.tcp_min_snd_mss" tcp_min_snd_mss: int 48..65535;
    "net.ipv4.tcp_min_tso_segs" tcp_min_tso_segs: int 1..255;
    "net.ipv4.tcp_moderate_rcvbuf" tcp_moderate_rcvbuf: switch;
    "net.ipv4.tcp_notsent_lowat" tcp_notsent_lowat: int 0..4294967295;
    "net.ipv4.tcp_orphan_retries" tcp_orphan_retries: int 0..255;
    "net.ipv4.tcp_pacing_ca_ratio" tcp_pacing_ca_ratio: int 0..1000;
    "net.ipv4.tcp_pacing_ss_ratio" tcp_pacing_ss_ratio: int 0..1000;
    "net.ipv4.tcp_reordering" tcp_reordering: int 1..2147483647;
    "net.ipv4.tcp_retries2" tcp_retries2: int 0..255;
    "net.ipv4.tcp_rmem" tcp_rmem: sizes;
    "net.ipv4.tcp_rto_max_ms" tcp_rto_max_ms: int 1000..120000;
    "net.ipv4.tcp_rto_min_us" tcp_rto_min_us: int 1..2147483647;
    "net.ipv4.tcp_sack" tcp_sack: switch;
    "net.ipv4.tcp_slow_start_after_idle" tcp_slow_start_after_idle: switch;
    "net.ipv4.tcp_syn_linear_timeouts" tcp_syn_linear_timeouts: int 0..127;
    "net.ipv4.tcp_syn_retries" tcp_syn_retries: int 1..127;
    "net.ipv4.tcp_synack_retries" tcp_synack_retries: int 0..255;
    "net.ipv4.tcp_syncookies" tcp_syncookies: int 0..2;
    "net.ipv4.tcp_timestamps" tcp_timestamps: switch;
    "net.ipv4.tcp_tso_rtt_log" tcp_tso_rtt_log: int 0..255;
    "net.ipv4.tcp_tso_win_divisor" tcp_tso_win_divisor: int 0..255;
    "net.ipv4.tcp_window_scaling" tcp_window_scaling: switch;
    "net.ipv4.tcp_wmem" tcp_wmem: sizes;
    "neap.tcp_internal_pacing" internal_pacing: switch;
    "neap.tcp_pacing_credit" pacing_credit: switch;
    "neap.tcp_pacing_free_segs" pacing_free_segments: int 0..2147483647;
    "neap.tcp_half_cwnd" half_cwnd: switch;
    "neap.tcp_hystart" hystart: hystart;
    "neap.tcp_late_completions" late_completions: switch;
    "neap.tcp_skb_overhead" skb_overhead: int 0..65536;
    "neap.tcp_small_queue_cap_paced" small_queue_cap_paced: switch;
    "neap.tcp_small_queue_rule" small_queue_rule: rule;
    "neap.tcp_small_queue_spare" small_queue_spare: int 0..64;
    "neap.tcp_notsent_lowat_us" tcp_notsent_lowat_us: int 0..60000000;
    "neap.tcp_notsent_lowat_half" notsent_lowat_half: switch;
    "neap.tcp_small_queues" small_queues: switch;
    "neap.tcp_tso_autosizing" tso_autosizing: switch;
    "neap.tcp_tso_at_write" tso_at_write: switch;
    "neap.tcp_tso_bonus" tso_bonus: bonus;
    "neap.tcp_tso_defer" tso_defer: defer;
    "neap.tcp_tso_max_usecs" tso_max_usecs: int 1..1000000;
    "neap.timer_slack_ns" timer_slack_ns: int 0..1000000000;
}

/// From text; `None` if it is not what is expected.
mod parse {
    use super::{
        BufferSizes, FromStr, HyStartRule, SmallQueueRule, TsoBonus, TsoDefer, congestion,
    };

    pub(super) fn int<T: TryFrom<u32>>(text: &str, low: u32, high: u32) -> Option<T> {
        let value = u32::from_str(text).ok().filter(|value| (low..=high).contains(value))?;
        T::try_from(value).ok()
    }

    pub(super) fn switch(text: &str) -> Option<bool> {
        int::<u8>(text, 0, 1).map(|value| value == 1)
    }

    pub(super) fn sizes(text: &str) -> Option<BufferSizes> {
        let mut values = text.split_whitespace().map(|text| int(text, 1, i32::MAX as u32));
        let mut next = || values.next().flatten();
        let sizes = BufferSizes { min: next()?, default: next()?, max: next()? };
        values.next().is_none().then_some(sizes)
    }

    pub(super) fn bonus(text: &str) -> Option<TsoBonus> {
        match text {
            "off" => Some(TsoBonus::Off),
            "linux" => Some(TsoBonus::Linux),
            "bounded" => Some(TsoBonus::Bounded),
            _ => None,
        }
    }

    pub(super) fn rule(text: &str) -> Option<SmallQueueRule> {
        match text {
            "fixed" => Some(SmallQueueRule::Fixed),
            "rate" => Some(SmallQueueRule::Rate),
            _ => None,
        }
    }

    pub(super) fn hystart(text: &str) -> Option<HyStartRule> {
        match text {
            "off" => Some(HyStartRule::Off),
            "linux" => Some(HyStartRule::Linux),
            "rfc9406" => Some(HyStartRule::Rfc9406),
            _ => None,
        }
    }

    pub(super) fn defer(text: &str) -> Option<TsoDefer> {
        match text {
            "next_ack" => Some(TsoDefer::NextAck),
            "half_rtt" => Some(TsoDefer::HalfRtt),
            _ => None,
        }
    }

    pub(super) fn controller(text: &str) -> Option<String> {
        congestion::by_name(text).map(|controller| controller.name().into())
    }
}

/// To text, in the form that is parsed.
mod show {
    use super::{BufferSizes, HyStartRule, SmallQueueRule, TsoBonus, TsoDefer};

    pub(super) fn int(value: &impl ToString) -> String {
        value.to_string()
    }

    pub(super) fn switch(value: &bool) -> String {
        u8::from(*value).to_string()
    }

    /// Separated by tabs, as `/proc/sys` shows them.
    pub(super) fn sizes(BufferSizes { min, default, max }: &BufferSizes) -> String {
        format!("{min}\t{default}\t{max}")
    }

    pub(super) fn bonus(value: &TsoBonus) -> String {
        match value {
            TsoBonus::Off => "off".into(),
            TsoBonus::Linux => "linux".into(),
            TsoBonus::Bounded => "bounded".into(),
        }
    }

    pub(super) fn rule(value: &SmallQueueRule) -> String {
        match value {
            SmallQueueRule::Fixed => "fixed".into(),
            SmallQueueRule::Rate => "rate".into(),
        }
    }

    pub(super) fn hystart(value: &HyStartRule) -> String {
        match value {
            HyStartRule::Off => "off".into(),
            HyStartRule::Linux => "linux".into(),
            HyStartRule::Rfc9406 => "rfc9406".into(),
        }
    }

    pub(super) fn defer(value: &TsoDefer) -> String {
        match value {
            TsoDefer::NextAck => "next_ack".into(),
            TsoDefer::HalfRtt => "half_rtt".into(),
        }
    }

    pub(super) fn controller(value: &str) -> String {
        value.into()
    }
}

impl Config {
    /// Sets the sysctl `name`, such as `net.ipv4.tcp_sack`, to `value` in Linux's units. White
    /// space around the value is ignored.
    ///
    /// # Errors
    /// [`SysctlError::Unknown`] if there is no such name, [`SysctlError::Value`] if the value
    /// cannot be parsed or is out of range, [`SysctlError::ReadOnly`] for
    /// `net.ipv4.tcp_available_congestion_control`. Nothing has changed then.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), SysctlError> {
        if name == AVAILABLE_CONGESTION_CONTROL {
            return Err(SysctlError::ReadOnly(name.into()));
        }
        let sysctl = find(name).ok_or_else(|| SysctlError::Unknown(name.into()))?;
        (sysctl.set)(self, value.trim()).ok_or_else(|| SysctlError::Value {
            name: name.into(),
            value: value.into(),
            expected: sysctl.expected,
        })
    }

    /// Returns the value of the sysctl `name` as text that [`set`](Self::set) takes; `None` if
    /// there is no such name.
    ///
    /// `net.ipv4.tcp_available_congestion_control` gives the names of the controllers.
    pub fn get(&self, name: &str) -> Option<String> {
        if name == AVAILABLE_CONGESTION_CONTROL {
            return Some(congestion::NAMES.join(" "));
        }
        find(name).map(|sysctl| (sysctl.get)(self))
    }

    /// Returns the names of all sysctls that can be set.
    pub fn names() -> impl Iterator<Item = &'static str> {
        SYSCTLS.iter().map(|sysctl| sysctl.name)
    }
}

/// Linear: settings are not read by name on any path that matters.
fn find(name: &str) -> Option<&'static Sysctl> {
    SYSCTLS.iter().find(|sysctl| sysctl.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique() {
        let names: BTreeSet<_> = Config::names().collect();
        assert_eq!(names.len(), Config::names().count());
    }

    #[test]
    fn every_default_survives_being_set_and_refuses_nonsense() {
        let mut config = Config::default();
        for name in Config::names() {
            let value = config.get(name).expect("a listed name");
            assert_eq!(config.set(name, &format!(" {value}\n")), Ok(()), "{name}");
            for nonsense in ["", "-1", "1 1", "4294967296", "nonsense", "1 2 3 4", "0 0 0"] {
                assert!(config.set(name, nonsense).is_err(), "{name}={nonsense:?}");
            }
        }
        assert_eq!(config, Config::default());
    }

    #[test]
    fn every_field_is_changed_by_its_own_name_alone() {
        for name in Config::names() {
            let default = Config::default();
            let candidates =
                ["0", "1", "4", "1000", "5000", "reno", "linux", "fixed", "half_rtt", "1 2 3"];
            let changed = candidates.iter().find_map(|value| {
                let mut config = Config::default();
                (config.set(name, value).is_ok() && config != default).then_some(config)
            });
            let changed = changed.unwrap_or_else(|| panic!("{name} cannot be changed"));
            let differing =
                Config::names().filter(|other| default.get(other) != changed.get(other));
            assert_eq!(differing.collect::<Vec<_>>(), [name]);
        }
    }

    #[test]
    fn sizes_are_separated_by_white_space() {
        let mut config = Config::default();
        config.set("net.ipv4.tcp_wmem", "4096\t16384  4194304").expect("three sizes");
        assert_eq!(config.tcp_wmem, BufferSizes { min: 4096, default: 16384, max: 4 << 20 });
        assert_eq!(config.get("net.ipv4.tcp_wmem").as_deref(), Some("4096\t16384\t4194304"));
    }

    #[test]
    fn the_list_of_controllers_is_read_and_not_set() {
        let mut config = Config::default();
        let names = config.get(AVAILABLE_CONGESTION_CONTROL).expect("it is there");
        assert!(names.split(' ').any(|name| name == config.tcp_congestion_control));
        for name in names.split(' ') {
            assert_eq!(config.set("net.ipv4.tcp_congestion_control", name), Ok(()));
        }
        let refused = config.set(AVAILABLE_CONGESTION_CONTROL, "cubic");
        assert_eq!(refused, Err(SysctlError::ReadOnly(AVAILABLE_CONGESTION_CONTROL.into())));
    }

    #[test]
    fn errors_say_what_is_expected() {
        let mut config = Config::default();
        let error = |result: Result<(), SysctlError>| result.expect_err("a bad value").to_string();
        assert_eq!(
            error(config.set("net.ipv4.tcp_nothing", "1")),
            "unknown sysctl net.ipv4.tcp_nothing"
        );
        assert_eq!(
            error(config.set("net.ipv4.tcp_min_tso_segs", "0")),
            "net.ipv4.tcp_min_tso_segs: \"0\" is not an integer from 1 to 255"
        );
        assert_eq!(
            error(config.set("net.ipv4.tcp_congestion_control", "vegas")),
            "net.ipv4.tcp_congestion_control: \"vegas\" is not the name of a congestion controller"
        );
    }
}
