//! The neap side of `benches/ns3`: one bulk flow, 1 Gbit/s, 40 ms round trip, through a router with
//! a drop-tail queue. Writes "seconds cwnd_bytes queue_bytes" per 10 ms of virtual time, and a last
//! line of JSON with the time that the simulation took.
//!
//! `cargo run --release -p neap-lab --example one_flow CONTROL SECONDS PACKETS [SERIES]`

use neap_lab::scenario::Experiment;
use std::fmt::Write as _;

fn scenario(control: &str, seconds: u64, packets: u64) -> String {
    format!(
        r#"about = "one flow, as benches/ns3/one_flow.cc"
duration = "{seconds}s"
sample = "10ms"
[host.a.sysctl]
"net.ipv4.tcp_congestion_control" = "{control}"
"net.ipv4.tcp_wmem" = "4096 65536 33554432"
[host.b.sysctl]
"net.ipv4.tcp_rmem" = "4096 131072 33554432"
[router.r]
[link.access]
ends = ["a", "r"]
rate = "10gbit"
delay = "10us"
[link.wan]
ends = ["r", "b"]
rate = "1gbit"
delay = "19990us"
buffer = "{packets} packets"
[app.bulk]
kind = "bulk"
from = "a"
to = "b"
"#
    )
}

fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [control, seconds, packets, rest @ ..] = arguments.as_slice() else {
        return Err("one_flow CONTROL SECONDS PACKETS [SERIES]".into());
    };
    let text = scenario(control, seconds.parse()?, packets.parse()?);
    let no_files = |_: &str| Err("no files".to_owned());
    let experiment = Experiment::parse("one_flow", &text, &no_files)?;
    let clock = std::time::Instant::now();
    let run = experiment.run(&Vec::new(), &|_| {})?;
    let wall = clock.elapsed().as_secs_f64();
    let column =
        |name: &str| run.series.names.iter().position(|one| one == name).ok_or("no such column");
    let (time, cwnd) = (column("ms")?, column("app.bulk.cwnd_bytes")?);
    let queue = column("link.wan.there.backlog_bytes")?;
    if let Some(path) = rest.first() {
        let mut lines = String::new();
        for row in &run.series.rows {
            writeln!(lines, "{} {} {}", row[time] / 1e3, row[cwnd], row[queue])?;
        }
        std::fs::write(path, lines)?;
    }
    let goodput = run.figures["app.bulk.goodput_mbit"];
    println!(
        "{{\"who\": \"neap\", \"control\": \"{control}\", \"seconds\": {seconds}, \
         \"wall\": {wall:.3}, \"goodput_mbit\": {goodput:.1}}}"
    );
    Ok(())
}
