//! What a stack learns of the machine that it runs on.

use neap_tcp::config::{Config, MemoryPages};
use std::fs::read_to_string;

/// Returns the default settings, with the bounds of memory that Linux would compute here.
pub(crate) fn config() -> Config {
    let group = read_to_string("/sys/fs/cgroup/memory.max").ok();
    let machine = read_to_string("/proc/meminfo").ok();
    let group = group.and_then(|text| text.trim().parse().ok());
    let bytes = machine.and_then(|text| total(&text)).into_iter().chain(group).min();
    let config = Config::default();
    let tcp_mem = bytes.map_or(config.tcp_mem, MemoryPages::of_machine);
    let udp_mem = bytes.map_or(config.udp_mem, MemoryPages::of_machine_for_udp);
    Config { tcp_mem, udp_mem, ..config }
}

/// The memory of the machine in bytes, from the text of `/proc/meminfo`.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_the_machine_is_read_as_the_kernel_writes_it() {
        let text = "MemTotal:       24689764 kB\nMemFree:        13903712 kB\n";
        assert_eq!(total(text), Some(24_689_764 * 1024));
        assert_eq!(total("MemFree: 1 kB"), None);
        assert_eq!(total("MemTotal: much"), None);
    }
}
