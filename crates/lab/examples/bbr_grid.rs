//! Goodput and round-trip time of one flow over a grid of paths.
//!
//! `cargo run --release -p neap-lab --example bbr_grid -- [CONTROLLER...]`

use neap_lab::experiments::bottleneck::{Experiment, Flow, Path};
use neap_lab::rng::Ppm;
use neap_tcp::time::{Nanos, Rate};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let num = |i: usize, d: u64| args.get(i).and_then(|a| a.parse().ok()).unwrap_or(d);
    let name: &'static str = Box::leak(args[0].clone().into_boxed_str());
    let (mbit, rtt, buffer, loss, secs) =
        (num(1, 10), num(2, 10), num(3, 2000), num(4, 0), num(5, 5));
    let mut path = Path::new(Rate::from_bits(mbit * 1_000_000), Nanos::from_millis(rtt));
    path.buffer_permille = buffer;
    path.loss = Ppm(loss as u32);
    let t = std::time::Instant::now();
    let mut e = Experiment::new(&path, &[Flow::bulk(name)], 1)?;
    let warm = Nanos::from_millis(rtt * 30).max(Nanos::from_millis(num(6, 0)));
    if num(7, 0) > 0 {
        let step = num(7, 0);
        let mut at = 0;
        while at < secs * 1000_000 {
            at += step;
            e.run_until(Nanos::from_micros(at))?;
            if let Some(i) = e.info(0) {
                println!(
                    "{at:>8} us acked {:>9} cwnd {:>6} out {:>6} lost {:>5} srtt {:>8} min {:>8} pace {:>6.2} dr {:>6.2} {:?} {:?} ss {} drops {}",
                    i.bytes_acked,
                    i.snd_cwnd,
                    i.unacked,
                    i.lost,
                    i.rtt.as_micros(),
                    i.min_rtt.map_or(0, |m| m.as_micros()),
                    i.pacing_rate.0 as f64 / path.payload_rate(),
                    i.delivery_rate.map_or(0.0, |r| r.0 as f64 / path.payload_rate()),
                    i.ca_state,
                    i.blocked,
                    i.snd_ssthresh,
                    e.dropped()
                );
            }
        }
        return Ok(());
    }
    let f = e.measure(warm, warm + Nanos::from_secs(secs))?;
    println!("{name} {mbit} Mbit {rtt} ms buf {buffer} loss {loss}: {:?} in {:?}", f, t.elapsed());
    Ok(())
}
