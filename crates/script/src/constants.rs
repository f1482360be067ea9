//! Linux's numbers as a script writes them and `strace` shows them.

use neap_posix::{Errno, abi};

/// What a call returned that failed.
pub(crate) fn show_errno(errno: Errno) -> String {
    match errno.name() {
        Some(name) => format!("-1 {name} ({})", errno.text()),
        None => format!("-1 (error {})", errno.0),
    }
}

/// The names of these bits among those that begin with `prefix`, as a script writes them.
pub(crate) fn show_bits(prefix: &str, bits: u32) -> String {
    let named = |&&(name, value): &&(&'static str, i64)| {
        name.starts_with(prefix)
            && !name.starts_with("EPOLL_")
            && u32::try_from(value).is_ok_and(|value| value.is_power_of_two() && bits & value != 0)
    };
    let names: Vec<_> = abi::NAMES.iter().filter(named).map(|&(name, _)| name).collect();
    if names.is_empty() { bits.to_string() } else { names.join("|") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_found_and_errors_and_bits_shown() {
        let names: BTreeSet<_> = abi::NAMES.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), abi::NAMES.len(), "each name once");
        assert_eq!(abi::number("TCP_NODELAY"), Some(1));
        assert_eq!(abi::number("EPOLLET"), Some(1 << 31));
        assert_eq!(abi::number("TCP_NEAP_NOTSENT_LOWAT_US"), Some(0x4e01));
        assert_eq!((abi::number("TCP_NOTHING"), Errno::named("ENOTHING")), (None, None));
        assert_eq!(Errno::named("ECONNREFUSED"), Some(Errno(111)));
        assert_eq!(show_errno(Errno(22)), "-1 EINVAL (Invalid argument)");
        assert_eq!(show_bits("EPOLL", 0x8000_0005), "EPOLLIN|EPOLLOUT|EPOLLET");
        assert_eq!(show_bits("POLL", 0x2011), "POLLIN|POLLHUP|POLLRDHUP");
    }
}
