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

/// Worlds if nothing limits them.
const WORLDS: u64 = 1000;

/// Broken worlds after which the rest is not worth the time.
const ENOUGH: u64 = 10;

/// Run random worlds with every oracle on; the world of each seed is the same every time
#[derive(ClapArgs, Clone, Debug)]
pub(super) struct Args {
    /// Worlds [default: 1000, or as many as there is time for with --seconds or --until]
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,
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
    #[arg(long, conflicts_with_all = [
        "seeds", "from", "seed", "seconds", "until", "print", "save", "no_shrink",
    ])]
    hostile: bool,
    /// Write the shrunk scenarios of broken worlds to this directory
    #[arg(long, value_name = "DIRECTORY")]
    save: Option<PathBuf>,
    /// Leave broken worlds as large as they are
    #[arg(long)]
    no_shrink: bool,
}

impl Args {
    /// The next seed, unless all worlds have begun.
    fn take_seed(&self, next: &AtomicU64) -> Option<u64> {
        let first = self.seed.unwrap_or(self.from);
        let limits = self.seconds.is_some() || self.until.is_some();
        let usual = if limits { u64::MAX } else { WORLDS };
        let worlds = if self.seed.is_some() { 1 } else { self.seeds.unwrap_or(usual) };
        let taken = next.fetch_update(Relaxed, Relaxed, |next| {
            (next.wrapping_sub(first) < worlds).then(|| next.wrapping_add(1))
        });
        taken.ok()
    }
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
        let results = workers.into_iter().map(|worker| returned(worker.join()));
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

/// What a thread has returned. One that panicked has not run its worlds, so the command fails.
fn returned(result: std::thread::Result<std::io::Result<()>>) -> std::io::Result<()> {
    let failed = |_| Err(std::io::Error::other("a thread of the swarm has panicked"));
    result.unwrap_or_else(failed)
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

    /// Whether a limit other than the number of worlds is reached.
    fn is_over(&self) -> bool {
        let Args { seconds, until, .. } = self.args;
        let has_time = seconds.is_none_or(|most| self.begun.elapsed().as_secs() < most);
        let simulated = self.done.simulated_ms.load(Relaxed) / 1000;
        let wants_more = until.is_none_or(|most| simulated < most);
        let has_reader = !self.out.lock().unwrap_or_else(PoisonError::into_inner).is_unread();
        let has_enough = self.done.faults.load(Relaxed) >= ENOUGH;
        !has_time || !wants_more || !has_reader || has_enough
    }

    fn work(&self) -> std::io::Result<()> {
        while !self.is_over()
            && let Some(seed) = self.args.take_seed(&self.done.next)
        {
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
        let Some((text, small)) = swarm::shrink_seed(seed, broken) else { return Ok(()) };
        let Some(directory) = &self.args.save else {
            return self.say(&format!("shrunk: {}\n{text}", small.fault));
        };
        let path = directory.join(format!("seed-{seed}.toml"));
        std::fs::write(&path, text)?;
        self.say(&format!("shrunk: {}\n    neap lab run {}", small.fault, path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        args: Args,
    }

    /// How many worlds may begin, at the most 2000.
    fn worlds(arguments: &[&str]) -> u64 {
        let program = ["swarm"].into_iter().chain(arguments.iter().copied());
        let args = Program::try_parse_from(program).expect("sound arguments").args;
        let first = args.seed.unwrap_or(args.from);
        let next = AtomicU64::new(first);
        let taken: Vec<u64> = (0..2000).map_while(|_| args.take_seed(&next)).collect();
        assert!(taken.iter().zip(first..).all(|(taken, seed)| *taken == seed));
        // Whoever comes too late counts nothing.
        assert_eq!(next.load(Relaxed), first + taken.len() as u64);
        taken.len() as u64
    }

    #[test]
    fn as_many_worlds_begin_as_are_asked_for() {
        assert_eq!(worlds(&[]), 1000);
        assert_eq!(worlds(&["--seeds", "5", "--from", "70"]), 5);
        assert_eq!(worlds(&["--seeds", "50", "--seconds", "600"]), 50);
        assert_eq!(worlds(&["--seeds", "50", "--until", "600"]), 50);
        assert_eq!(worlds(&["--seconds", "600"]), 2000);
        assert_eq!(worlds(&["--seed", "3129", "--seconds", "600"]), 1);
    }

    #[test]
    fn a_thread_that_panicked_is_an_error() {
        assert!(returned(Ok(Ok(()))).is_ok());
        assert!(returned(Err(Box::new("no world"))).is_err());
    }

    #[test]
    fn what_the_table_of_hostile_peers_does_not_heed_is_refused() {
        for other in ["--seconds=1", "--until=1", "--save=x", "--no-shrink", "--seeds=1"] {
            assert!(Program::try_parse_from(["swarm", "--hostile", other]).is_err(), "{other}");
        }
    }
}
