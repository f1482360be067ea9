//! What a process has given up, as the kernel tells.

use landlock::{ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr};
use std::fs;

/// `CAP_NET_BIND_SERVICE`, as in `/proc/PID/status`.
pub(crate) const BIND: u64 = 1 << 10;

/// Checks that all threads of a process have these capabilities and can gain no other, and that
/// their system calls are filtered.
pub(crate) fn check(pid: u32, capabilities: u64) {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    for thread in threads {
        let status = thread.expect("a thread").path().join("status");
        let status = fs::read_to_string(status).expect("it runs");
        let has = format!("{capabilities:016x}");
        let none = "0".repeat(16);
        for (key, value) in [
            ("CapInh", none.as_str()),
            ("CapPrm", &has),
            ("CapEff", &has),
            ("CapBnd", &none),
            ("CapAmb", &none),
            ("NoNewPrivs", "1"),
            ("Seccomp", "2"),
        ] {
            assert!(status.contains(&format!("{key}:\t{value}\n")), "{key} {value}: {status}");
        }
    }
}

/// Whether this kernel can take files away.
pub(crate) fn has_landlock() -> bool {
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    ruleset.handle_access(AccessFs::from_all(ABI::V1)).is_ok()
}
