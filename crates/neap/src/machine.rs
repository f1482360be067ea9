//! What a stack learns of the machine that it runs on.

use neap_tcp::config::{Config, MemoryPages};
use std::fs::read_to_string;
use std::path::{Component, Path};

/// Returns the default settings, with the bounds of memory that Linux would compute here.
pub(crate) fn config() -> Config {
    let groups = read_to_string("/proc/self/cgroup").ok();
    let machine = read_to_string("/proc/meminfo").ok();
    let group = groups.and_then(|text| limit(&text, |path| read_to_string(path).ok()));
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

/// The least limit of the memory of a process, in bytes. `groups` is the text of
/// `/proc/self/cgroup`, and `read` returns the text of a file.
///
/// The limits of all groups around the one of the process count. In a container the path may be
/// that of the machine, while the tree begins with the group of the container: the limit is then in
/// the root, which the kernel's own root does not have.
fn limit(groups: &str, read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let limits = groups.lines().filter_map(tree).filter_map(|(root, file, group)| {
        let of = |group: &Path| read(&root.join(group).join(file))?.trim().parse().ok();
        group.ancestors().filter_map(of).min()
    });
    limits.min()
}

/// The tree of groups with the memory that a line of `/proc/self/cgroup` may tell of: its root, the
/// name of the files with the limits, and the group of the process, relative to the root.
fn tree(line: &str) -> Option<(&'static Path, &'static str, &Path)> {
    let mut fields = line.splitn(3, ':');
    let (number, controllers, group) = (fields.next()?, fields.next()?, fields.next()?);
    let (root, file) = match (number, controllers) {
        ("0", "") => ("/sys/fs/cgroup", "memory.max"),
        _ if controllers.split(',').any(|controller| controller == "memory") => {
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
        }
        _ => return None,
    };
    let group = Path::new(group.trim_start_matches('/'));
    // The group is outside of what the tree shows.
    let is_outside = group.components().any(|part| part == Component::ParentDir);
    Some((Path::new(root), file, if is_outside { Path::new("") } else { group }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limit of a process whose groups are these, in a tree with these files.
    fn limit_in(groups: &str, files: &[(&str, &str)]) -> Option<u64> {
        limit(groups, |path| {
            assert!(path.starts_with("/sys/fs/cgroup"), "{path:?}");
            let found = files.iter().find(|(of, _)| path == Path::new(of));
            found.map(|(_, text)| format!("{text}\n"))
        })
    }

    #[test]
    fn the_least_limit_of_the_groups_around_the_process_counts() {
        let service = "/sys/fs/cgroup/system.slice/neap.service/memory.max";
        let slice = "/sys/fs/cgroup/system.slice/memory.max";
        let groups = "0::/system.slice/neap.service\n";
        assert_eq!(limit_in(groups, &[(service, "1000"), (slice, "max")]), Some(1000));
        assert_eq!(limit_in(groups, &[(service, "1000"), (slice, "500")]), Some(500));
        assert_eq!(limit_in(groups, &[(service, "max"), (slice, "max")]), None);
        assert_eq!(limit_in("0::/\n", &[(service, "1000")]), None);
    }

    #[test]
    fn the_root_of_the_tree_of_a_container_has_its_limit() {
        let root = [("/sys/fs/cgroup/memory.max", "700")];
        for groups in ["0::/\n", "0::/docker/1f\n", "0::/../other\n"] {
            assert_eq!(limit_in(groups, &root), Some(700), "{groups}");
        }
    }

    #[test]
    fn the_first_version_of_control_groups_has_a_tree_for_the_memory() {
        let groups = "5:cpu,cpuacct:/a\n4:memory:/a:b/c\n1:name=systemd:/d\n0::/d\n";
        let inner = ("/sys/fs/cgroup/memory/a:b/c/memory.limit_in_bytes", "900");
        let outer = ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
        assert_eq!(limit_in(groups, &[inner, outer]), Some(900));
        assert_eq!(limit_in("2:hugetlb,memory:/a:b/c\n", &[inner]), Some(900));
        assert_eq!(limit_in("3:cpu\n\nmemory\n", &[inner, outer]), None);
    }

    #[test]
    fn the_memory_of_the_machine_is_read_as_the_kernel_writes_it() {
        let text = "MemTotal:       24689764 kB\nMemFree:        13903712 kB\n";
        assert_eq!(total(text), Some(24_689_764 * 1024));
        assert_eq!(total("MemFree: 1 kB"), None);
        assert_eq!(total("MemTotal: much"), None);
    }
}
