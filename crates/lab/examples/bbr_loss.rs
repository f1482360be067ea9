//! Goodput of one flow over a path that loses packets at random, for each seed over 8 s and 20 s.
//!
//! `cargo run --release -p neap-lab --example bbr_loss -- CONTROLLER MBIT RTT_MS LOSS_PPM SEEDS`

use neap_lab::bottleneck::{BottleneckPath, BottleneckRun, Flow};
use neap_lab::rng::Ppm;
use neap_tcp::congestion;
use neap_tcp::time::{Nanos, Rate};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [controller, mbit, rtt_ms, loss, seeds] = arguments.as_slice() else {
        return Err("bbr_loss CONTROLLER MBIT RTT_MS LOSS_PPM SEEDS".into());
    };
    let known = congestion::BUILT_IN.into_iter().find(|known| known == controller);
    let controller = known.ok_or("no such congestion control")?;
    let rate = Rate::from_bits(mbit.parse::<u64>()? * 1_000_000);
    let path = BottleneckPath::new(rate, Nanos::from_millis(rtt_ms.parse()?));
    let path = BottleneckPath { loss: Ppm(loss.parse()?), mtu: 1500, ..path };
    let seeds: u64 = seeds.parse()?;
    let mut means = [0.0; 2];
    for seed in 1..=seeds {
        let mut run = BottleneckRun::new(&path, &[Flow::bulk(controller)], seed)?;
        let mut rates = [0.0; 2];
        for ((rate, mean), secs) in rates.iter_mut().zip(&mut means).zip([8, 20]) {
            run.run_until(Nanos::from_secs(secs))?;
            let acked = run.info(0).map_or(0, |info| info.bytes_acked);
            *rate = acked as f64 * 8e-6 / secs as f64;
            *mean += *rate / seeds as f64;
        }
        println!("seed {seed}: {:.2} Mbit/s over 8 s, {:.2} over 20 s", rates[0], rates[1]);
    }
    println!("mean: {:.2} Mbit/s over 8 s, {:.2} over 20 s", means[0], means[1]);
    Ok(())
}
