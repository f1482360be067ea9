//! Counters of UDP of the kernel.

/// A counter of UDP over IPv4 in the network namespace of this thread, by its name in
/// `/proc/net/snmp`.
pub(crate) fn udp_counter(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/snmp").expect("counters");
    let mut lines = text.lines().filter(|line| line.starts_with("Udp: "));
    let names = lines.next().expect("names").split_whitespace();
    let values = lines.next().expect("values").split_whitespace();
    let (_, value) = names.zip(values).find(|(found, _)| *found == name).expect("a counter");
    value.parse().expect("a number")
}
