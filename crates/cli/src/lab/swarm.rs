//! `neap lab swarm`: random worlds under every oracle, on all cores.

use super::output::OutputError;
use super::terminal::Output;
use clap::Args as ClapArgs;
use neap_lab::hostile::Attack;
use neap_lab::swarm::{self, AttackMemory, Broken};
use std::error::Error;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Between two progress lines, on a terminal and elsewhere.
const TICK: Duration = Duration::from_secs(1);
const TICK_OF_LOGS: Duration = Duration::from_secs(60);

/// Broken worlds after which the rest is not worth the time.
const ENOUGH: u64 = 10;

/// Run random worlds with every oracle on; the world of each seed is the same every time
#[derive(ClapArgs, Clone, Debug)]
pub(super) struct Args {
    /// Worlds
    #[arg(long, value_name = "N", default_value_t = 1000)]
    seeds: u64,
    /// The first seed
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    from: u64,
    /// Only the world of this seed
    #[arg(long, value_name = "SEED", conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
    /// Stop after so many seconds
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<u64>,
    /// Stop after so many simulated seconds
    #[arg(long, value_name = "SECONDS")]
    until: Option<u64>,
    /// Print the scenario of the first seed and do nothing
    #[arg(long)]
    print: bool,
    /// A host under each hostile peer: what it holds at the most, and what it may
    #[arg(long, conflicts_with_all = ["seeds", "from", "seed", "print"])]
    hostile: bool,
    /// Write the shrunk scenarios of broken worlds to this directory
    #[arg(long, value_name = "DIRECTORY")]
    save: Option<PathBuf>,
    /// Leave broken worlds as large as they are
    #[arg(long)]
    no_shrink: bool,
}

/// What all threads have done.
#[derive(Default)]
struct Done {
    next: AtomicU64,
    worlds: AtomicU64,
    simulated_ms: AtomicU64,
    segments: AtomicU64,
    faults: AtomicU64,
    is_over: AtomicBool,
}

struct Swarm<'a> {
    args: &'a Args,
    done: Done,
    begun: Instant,
    out: Mutex<&'a mut Output>,
}

/// Whether all worlds are sound.
pub(super) fn main(args: &Args, out: &mut Output) -> Result<bool, Box<dyn Error>> {
    let first = args.seed.unwrap_or(args.from);
    if args.print {
        out.write_all(swarm::draw(first).as_bytes())?;
        return Ok(true);
    }
    if args.hostile {
        return hostile(out);
    }
    if let Some(directory) = &args.save {
        std::fs::create_dir_all(directory).map_err(|why| OutputError::new(directory, why))?;
    }
    // A panic is a result here, and said with its seed.
    std::panic::set_hook(Box::new(|_| {}));
    let done = Done { next: AtomicU64::new(first), ..Done::default() };
    let swarm = Swarm { args, done, begun: Instant::now(), out: Mutex::new(out) };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let result: std::io::Result<()> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(|| swarm.work())).collect();
        let watcher = scope.spawn(|| swarm.watch());
        let results = workers.into_iter().map(|worker| worker.join().unwrap_or(Ok(())));
        let result = results.collect();
        swarm.done.is_over.store(true, Relaxed);
        watcher.thread().unpark();
        result
    });
    let _ = std::panic::take_hook();
    result?;
    let faults = swarm.done.faults.load(Relaxed);
    swarm.say(&swarm.figures())?;
    Ok(faults == 0)
}

/// The table of hostile peers; whether no limit was exceeded.
fn hostile(out: &mut impl Write) -> Result<bool, Box<dyn Error>> {
    writeln!(out, "{}", AttackMemory::HEADER)?;
    let mut holds = true;
    for &attack in Attack::ALL {
        match AttackMemory::run(attack) {
            Ok(memory) => {
                holds &= memory.holds();
                writeln!(out, "{memory}{}", if memory.holds() { "" } else { "  EXCEEDED" })?;
            }
            Err(broken) => {
                holds = false;
                writeln!(out, "{:<20} {}", attack.name(), broken.fault)?;
            }
        }
    }
    Ok(holds)
}

impl Swarm<'_> {
    fn say(&self, line: &str) -> std::io::Result<()> {
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(out, "{line}")?;
        out.flush()
    }

    fn figures(&self) -> String {
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        let Done { worlds, simulated_ms, segments, faults, .. } = &self.done;
        format!(
            "{} worlds, {} simulated seconds, {} segments, {} faults, in {} s",
            get(worlds),
            get(simulated_ms) / 1000,
            get(segments),
            get(faults),
            self.begun.elapsed().as_secs()
        )
    }

    /// Says how far it is, until all is over.
    fn watch(&self) {
        let is_terminal = std::io::stderr().is_terminal();
        let tick = if is_terminal { TICK } else { TICK_OF_LOGS };
        while !self.done.is_over.load(Relaxed) {
            std::thread::park_timeout(tick);
            if self.done.is_over.load(Relaxed) {
                break;
            }
            let end = if is_terminal { "\r" } else { "\n" };
            let next = self.done.next.load(Relaxed);
            eprint!("{}; next seed {next}{end}", self.figures());
        }
    }

    fn is_over(&self) -> bool {
        let Args { seeds, seconds, until, .. } = self.args;
        let seeds = if self.args.seed.is_some() { 1 } else { *seeds };
        let started =
            self.done.next.load(Relaxed).wrapping_sub(self.args.seed.unwrap_or(self.args.from));
        let limits = seconds.is_some() || until.is_some();
        let has_time = seconds.is_none_or(|most| self.begun.elapsed().as_secs() < most);
        let simulated = self.done.simulated_ms.load(Relaxed) / 1000;
        let wants_more = until.is_none_or(|most| simulated < most);
        let has_seeds = started < seeds || limits && self.args.seed.is_none();
        !has_time || !wants_more || !has_seeds || self.done.faults.load(Relaxed) >= ENOUGH
    }

    fn work(&self) -> std::io::Result<()> {
        while !self.is_over() {
            let seed = self.done.next.fetch_add(1, Relaxed);
            match swarm::run_seed(seed) {
                Ok(outcome) => {
                    self.done.segments.fetch_add(outcome.segments, Relaxed);
                    self.done.simulated_ms.fetch_add(outcome.simulated.0 / 1_000_000, Relaxed);
                }
                Err(broken) => {
                    self.done.faults.fetch_add(1, Relaxed);
                    self.tell(seed, &broken)?;
                }
            }
            self.done.worlds.fetch_add(1, Relaxed);
        }
        Ok(())
    }

    /// A world that is not sound, and a smaller one.
    fn tell(&self, seed: u64, broken: &Broken) -> std::io::Result<()> {
        self.say(&format!("seed {seed}: {}\n    neap lab swarm --seed {seed}", broken.fault))?;
        if self.args.no_shrink {
            return Ok(());
        }
        let (text, small) = swarm::shrink(&swarm::draw(seed), broken, &|_| {});
        let Some(directory) = &self.args.save else {
            return self.say(&format!("shrunk: {}\n{text}", small.fault));
        };
        let path = directory.join(format!("seed-{seed}.toml"));
        std::fs::write(&path, text)?;
        self.say(&format!("shrunk: {}\n    neap lab run {}", small.fault, path.display()))
    }
}
