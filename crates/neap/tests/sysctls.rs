//! `docs/sysctls.md` says what the table of sysctls says.
//!
//! `NEAP_UPDATE_SNAPSHOTS=1` writes the page anew.

use neap::config::Config;
use std::fmt::Write;
use std::path::Path;

const HEAD: &str = "\
# Sysctls

Settings of a stack by Linux's names, in Linux's units. Each stack has its own. They are set when a
stack is built with `Builder::sysctl`, while it runs with `Stack::set_sysctl`, by `neap perf` with
`--sysctl NAME=VALUE`, and in a scenario of the lab with `[host.NAME.sysctl]` or an `[[event]]`.

Names that begin with `net.` are Linux's. Their defaults are Linux's, too; docs/deviations.md lists
what differs. Names that begin with `neap.` choose between rules, most of them between those of
Linux in different years.

\"Acts on\" says what a change reaches while the stack runs:

- open connections: connections that are open take the value up when they next send, receive or time
  out, or when their application next calls. A timer that runs already is not moved.
- new connections: connections that open from then on. What is open keeps what it was made with.
- open listeners: listeners that exist, at the next segment or timeout of a half-open connection.
- later calls of `listen`, later socket options: calls from then on.
- the host, at once: tables of the host, whatever is open.

A connection that is being opened keeps what its SYN offered until it is open. The list of
congestion controllers, those of your own included, is in
`net.ipv4.tcp_available_congestion_control`, which can only be read.

A name or a value that does not exist is an error that says what is expected. The first value of
`tcp_rmem` and `tcp_wmem` is what a connection may use while the host is under memory pressure,
which `tcp_mem` defines. The defaults of `tcp_mem` and `udp_mem` here are those of a machine with
8 GiB, which the lab has; a stack on a device takes those of its machine, as Linux does.

`Config::profile` and `neap perf --profile` set all of them to the rules of a year: `linux-2012`
(small queues as they came), `linux-2014` (frames sized when they leave), `linux-2017` (internal
pacing), `linux-2018` (departure times), `linux-6.18`, and `neap`, the default. Congestion control,
loss recovery and the receiver are today's in each.

This page is made from `crates/tcp/src/sysctl.rs`, and a test compares them:
`NEAP_UPDATE_SNAPSHOTS=1 cargo test -p neap --test sysctls` writes it anew.

| name | unit | values | default | acts on | what it does |
|---|---|---|---|---|---|
";

fn page() -> String {
    let default = Config::default();
    let mut text = HEAD.to_owned();
    for sysctl in Config::sysctls() {
        let value = default.get(sysctl.name).expect("a listed name").replace('\t', " ");
        let unit = if sysctl.unit.is_empty() { "–" } else { sysctl.unit };
        writeln!(
            text,
            "| `{}` | {unit} | {} | `{value}` | {} | {} |",
            sysctl.name, sysctl.values, sysctl.acts_on, sysctl.about
        )
        .expect("a string takes all");
    }
    text
}

#[test]
fn the_page_of_sysctls_is_the_table_of_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/sysctls.md");
    let text = page();
    if std::env::var_os("NEAP_UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, &text).expect("the page can be written");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == text, "docs/sysctls.md is old: NEAP_UPDATE_SNAPSHOTS=1 writes it anew");
}
