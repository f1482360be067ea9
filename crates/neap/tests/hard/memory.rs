//! What a process has of the machine's memory.

/// Memory of a process, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    /// What is present.
    pub(crate) resident: u64,
    /// What of it belongs to no file. Code is of a file, and whatever runs for the first time adds
    /// some.
    pub(crate) own: u64,
    /// The most that was present since the [peak was forgotten](Self::forget_peak).
    pub(crate) peak: u64,
}

impl Memory {
    pub(crate) fn of(pid: u32) -> Self {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
        let status = status.expect("the process lives");
        let of = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a line");
            let kib = line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number");
            kib << 10
        };
        Self { resident: of("VmRSS:"), own: of("RssAnon:"), peak: of("VmHWM:") }
    }

    /// The peak of a process begins anew.
    pub(crate) fn forget_peak(pid: u32) {
        std::fs::write(format!("/proc/{pid}/clear_refs"), "5").expect("a child of the test");
    }
}
