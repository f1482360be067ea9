//! Goodput and round-trip time of one flow over a full grid of paths, in minutes.
//!
//! `cargo run --release -p neap-lab --example bbr_grid -- CONTROLLER...`

use neap_lab::bottleneck::{Cell, GRID_HEADER};
use neap_tcp::congestion;
use neap_tcp::time::Nanos;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    for name in std::env::args().skip(1) {
        let known = congestion::BUILT_IN.into_iter().find(|known| *known == name);
        let controller = known.ok_or_else(|| format!("no congestion control {name:?}"))?;
        println!("{controller}\n{GRID_HEADER}");
        for (loss, mbit) in [0, 10_000]
            .into_iter()
            .flat_map(|loss| [10, 100, 1000, 10_000].into_iter().map(move |mbit| (loss, mbit)))
        {
            for rtt_ms in [1, 10, 50, 200] {
                for buffer_permille in [100, 1000, 10_000] {
                    let cell = Cell { controller, mbit, rtt_ms, buffer_permille, loss };
                    let measured = cell.affordable().saturating_mul(2).min(Nanos::from_secs(11));
                    println!("{}", cell.row(measured, &cell.run(measured, 1)?));
                }
            }
        }
    }
    Ok(())
}
