//! One flow over real devices.

use super::lateness::Lateness;
use super::network::{ChildGuard, DEVICE, Network, RECEIVER, SENDER, run};
use super::{Link, Outcome, Samples, Sender, WARM_UP};
use crate::perf::interrupt::Interrupt;
use serde_json::Value;
use std::error::Error;
use std::io::{BufRead, BufReader, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Between two looks at the queue.
const INTERVAL: Duration = Duration::from_millis(5);

/// More than its time that a flow may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// Measures it, and how late the machine was meanwhile.
pub(super) fn measure(
    link: Link,
    sender: Sender,
    seconds: u32,
    interrupt: &Interrupt,
) -> Result<(Outcome, Lateness), Box<dyn Error>> {
    let network = Network::new(Some(link), sender)?;
    let server =
        Network::start(&network.receiver, ["iperf3", "--server", "--one-off", "--forceflush"])?;
    let _server = listening(server)?;
    let mut flow = Network::start(&network.sender, command(link, sender, seconds)?)?;
    let begin = Instant::now();
    let from = begin + Duration::from_secs(WARM_UP.into());
    let until = begin + Duration::from_secs((WARM_UP + seconds).into());
    let stdout = flow.0.stdout.take().ok_or("a program without output")?;
    let output = thread::spawn(move || read(stdout));
    let stop = AtomicBool::new(false);
    let (queue, lateness) = thread::scope(|scope| {
        let lateness = scope.spawn(|| Lateness::watch(&stop));
        let queue = watch_queue(&network, &mut flow, from, until, interrupt);
        stop.store(true, Ordering::Relaxed);
        (queue, lateness.join())
    });
    let (queue, lateness) = (queue?, lateness.map_err(|_| "a thread failed")?);
    let output = output.join().map_err(|_| "the output cannot be read")?;
    if !flow.0.wait()?.success() {
        let errors = flow.0.stderr.take().map_or(String::new(), read);
        return Err(format!("the flow failed: {} {}", errors.trim(), output.trim()).into());
    }
    Ok((Outcome::of(link, Samples { queue_bytes: queue, ..samples(&output)? }), lateness))
}

/// Bytes in the queue over and over, until the flow has ended.
fn watch_queue(
    network: &Network,
    flow: &mut ChildGuard,
    from: Instant,
    until: Instant,
    interrupt: &Interrupt,
) -> Result<Vec<f64>, Box<dyn Error>> {
    let mut queue = Vec::new();
    while flow.0.try_wait()?.is_none() {
        let now = Instant::now();
        if interrupt.is_set() {
            return Err("interrupted".into());
        }
        if now > until + PATIENCE {
            return Err("the flow does not end".into());
        }
        // The end is not measured: the flow may have stopped.
        if (from..until - Duration::from_millis(200)).contains(&now) {
            queue.push(backlog(network)?);
        }
        thread::sleep(INTERVAL.saturating_sub(now.elapsed()));
    }
    Ok(queue)
}

pub(super) fn read(mut from: impl Read) -> String {
    let mut bytes = Vec::new();
    // What was read until then says why.
    let _ = from.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Waits until the server listens.
pub(super) fn listening(mut server: ChildGuard) -> Result<ChildGuard, Box<dyn Error>> {
    let stdout = server.0.stdout.take().ok_or("a program without output")?;
    let mut lines = BufReader::new(stdout);
    let mut line = String::new();
    while lines.read_line(&mut line)? > 0 {
        if line.contains("listening") {
            // Nobody reads the rest, which is less than a pipe holds.
            server.0.stdout = Some(lines.into_inner());
            return Ok(server);
        }
        line.clear();
    }
    let errors = server.0.stderr.take().map_or(String::new(), read);
    Err(format!("iperf3 does not listen: {}", errors.trim()).into())
}

/// The program that sends.
fn command(link: Link, sender: Sender, seconds: u32) -> Result<Vec<String>, Box<dyn Error>> {
    let program = match sender {
        Sender::Neap => vec![std::env::current_exe()?.display().to_string(), "perf".to_owned()],
        Sender::Kernel => vec!["iperf3".to_owned()],
    };
    let common = format!("-c {RECEIVER} -C cubic -J -i 0.1 -O {WARM_UP} -t {seconds}");
    let own = match sender {
        Sender::Neap => {
            format!("--packet {DEVICE} --address {SENDER}/24 --gso-max {}", link.gso_max)
        }
        Sender::Kernel => String::new(),
    };
    let words = common.split_whitespace().chain(own.split_whitespace());
    Ok(program.into_iter().chain(words.map(str::to_owned)).collect())
}

/// Bytes in the queue of the slow link.
fn backlog(network: &Network) -> Result<f64, Box<dyn Error>> {
    let listing = run(["tc", "-n", &network.sender, "-s", "-j", "qdisc", "show", "dev", DEVICE])?;
    let qdiscs: Value = serde_json::from_str(&listing)?;
    let tbf = qdiscs.as_array().and_then(|all| all.iter().find(|one| one["kind"] == "tbf"));
    Ok(tbf.and_then(|tbf| tbf["backlog"].as_f64()).ok_or("tc shows no backlog of tbf")?)
}

/// Payload of a full segment with timestamps, bytes: `iperf3` tells the window in bytes.
const MSS: f64 = 1448.0;

/// What an iperf3 report says, without what is omitted.
fn samples(output: &str) -> Result<Samples, Box<dyn Error>> {
    let report: Value = serde_json::from_str(output)?;
    let received = report["end"]["sum_received"]["bits_per_second"].as_f64();
    let goodput_mbit = received.ok_or("iperf3's report has no goodput")? / 1e6;
    let counts = |interval: &&Value| interval["sum"]["omitted"] != Value::Bool(true);
    let intervals = report["intervals"].as_array().into_iter().flatten().filter(counts);
    let mut samples = Samples { goodput_mbit, ..Samples::default() };
    for stream in intervals.flat_map(|one| one["streams"].as_array().into_iter().flatten()) {
        samples.rtt_ms.extend(stream["rtt"].as_f64().map(|micros| micros / 1e3));
        samples.cwnd.extend(stream["snd_cwnd"].as_f64().map(|bytes| bytes / MSS));
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_read_without_what_is_omitted() {
        let interval = |rtt: u32, omitted: bool| {
            format!(r#"{{"streams": [{{"rtt": {rtt}}}], "sum": {{"omitted": {omitted}}}}}"#)
        };
        let report = format!(
            r#"{{"intervals": [{}, {}], "end": {{"sum_received": {{"bits_per_second": 9.5e7}}}}}}"#,
            interval(9000, true),
            interval(1500, false),
        );
        let found = samples(&report).expect("a report");
        assert_eq!((found.goodput_mbit, found.rtt_ms), (95.0, vec![1.5]));
        assert!(samples("{}").is_err());
    }
}
