//! The columns of `ss`.

use std::fmt;
use std::net::IpAddr;

/// A socket in the table.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) netid: String,
    pub(super) state: String,
    pub(super) recv_q: u64,
    pub(super) send_q: u64,
    /// Address and port.
    pub(super) local: (String, String),
    pub(super) peer: (String, String),
    /// What follows in the same line.
    pub(super) process: String,
    /// The line below.
    pub(super) below: String,
}

/// An address as `ss` prints it: IPv6 in brackets, and `*` for all of both families.
pub(super) fn host(ip: IpAddr, is_dual: bool) -> String {
    match ip {
        IpAddr::V6(ip) if is_dual && ip.is_unspecified() => "*".to_owned(),
        IpAddr::V6(ip) => format!("[{ip}]"),
        IpAddr::V4(ip) => ip.to_string(),
    }
}

/// Where a field stands in its column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Left,
    Right,
}

/// Titles of the columns, their sides, and what comes before each.
const COLUMNS: [(&str, Side, &str); 9] = [
    ("Netid", Side::Left, ""),
    ("State", Side::Left, " "),
    ("Recv-Q", Side::Left, " "),
    ("Send-Q", Side::Left, " "),
    ("Local Address", Side::Right, " "),
    ("Port", Side::Left, ":"),
    ("Peer Address", Side::Right, " "),
    ("Port", Side::Left, ":"),
    ("Process", Side::Left, " "),
];
const NETID: usize = 0;
const STATE: usize = 1;

/// Sockets, one line each or two.
#[derive(Debug)]
pub(super) struct Table {
    shown: [bool; COLUMNS.len()],
    has_header: bool,
    rows: Vec<Row>,
}

impl Table {
    pub(super) fn new(has_netid: bool, has_state: bool, has_header: bool) -> Self {
        let mut shown = [true; COLUMNS.len()];
        (shown[NETID], shown[STATE]) = (has_netid, has_state);
        Self { shown, has_header, rows: Vec::new() }
    }

    pub(super) fn add(&mut self, row: Row) {
        self.rows.push(row);
    }
}

fn fields(row: &Row) -> [String; COLUMNS.len()] {
    let Row { netid, state, recv_q, send_q, local, peer, process, .. } = row.clone();
    let (recv_q, send_q) = (recv_q.to_string(), send_q.to_string());
    [netid, state, recv_q, send_q, local.0, local.1, peer.0, peer.1, process]
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines: Vec<([String; COLUMNS.len()], &str)> = Vec::new();
        if self.has_header {
            lines.push((COLUMNS.map(|(title, ..)| title.to_owned()), ""));
        }
        lines.extend(self.rows.iter().map(|row| (fields(row), row.below.as_str())));
        let mut widths = [0; COLUMNS.len()];
        for (fields, _) in &lines {
            for (width, field) in widths.iter_mut().zip(fields) {
                *width = field.len().max(*width);
            }
        }
        for (fields, below) in &lines {
            let mut line = String::new();
            for (column, field) in fields.iter().enumerate().filter(|(at, _)| self.shown[*at]) {
                let ((_, side, before), width) = (COLUMNS[column], widths[column]);
                line.push_str(if line.is_empty() { "" } else { before });
                match side {
                    Side::Left => line.push_str(&format!("{field:<width$}")),
                    Side::Right => line.push_str(&format!("{field:>width$}")),
                }
            }
            writeln!(f, "{}", line.trim_end())?;
            if !below.is_empty() {
                writeln!(f, "\t {below}")?;
            }
        }
        Ok(())
    }
}
