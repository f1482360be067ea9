//! The program neap: lab and perf.
fn main() {}
