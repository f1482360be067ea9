//! Shrinks a broken world: everything that can be left out or made smaller without healing it is.

use super::{Broken, LONGEST, REPEAT, RunText, run, run_twice};
use toml::{Table, Value};

/// Runs that shrinking may take.
const RUNS: u32 = 400;

/// Turns of hosts in a run; what takes longer is not smaller.
const TURNS: u64 = 300_000;

/// Runs that shrinking may take if the fault is that a world never ends: each may take as many
/// turns as the one that did not.
const LONG_RUNS: u32 = 20;

/// Keys whose numbers are halved.
const SIZES: [&str; 5] = ["bytes", "answer", "count", "burst", "request"];

/// One step into a table, or into an array.
#[derive(Clone, Debug)]
enum PathStep {
    Key(String),
    Index(usize),
}

/// Returns a smaller scenario in which the same oracle finds a fault, or `text` if there is none.
/// `progress` is told how many runs were made.
pub fn shrink(text: &str, broken: &Broken, progress: &dyn Fn(u32)) -> (String, Broken) {
    shrink_by(&run, text, broken, progress)
}

/// As [`shrink`], with what runs a scenario.
fn shrink_by(
    run: &RunText<'_>,
    text: &str,
    broken: &Broken,
    progress: &dyn Fn(u32),
) -> (String, Broken) {
    let (turns, left) = limits(broken);
    let Ok(table) = text.parse::<Table>() else { return (text.to_owned(), broken.clone()) };
    let (text, broken) = (text.to_owned(), broken.clone());
    let mut shrinking = Shrinking { run, table, text, broken, turns, left, runs: 0, progress };
    while shrinking.pass() && shrinking.left > 0 {}
    (shrinking.text, shrinking.broken)
}

/// Turns of a run that looks for this fault, and how many runs there may be.
fn limits(broken: &Broken) -> (u64, u32) {
    // With fewer turns, sound worlds would have the same fault.
    if broken.oracle() == "long" { (LONGEST, LONG_RUNS) } else { (TURNS, RUNS) }
}

struct Shrinking<'a> {
    run: &'a RunText<'a>,
    table: Table,
    text: String,
    broken: Broken,
    /// Turns of a run, and runs that are left.
    turns: u64,
    left: u32,
    runs: u32,
    progress: &'a dyn Fn(u32),
}

impl Shrinking<'_> {
    /// Tries to do without each thing once, large things first. Whether anything went.
    fn pass(&mut self) -> bool {
        let mut has_shrunk = false;
        let mut paths = Vec::new();
        walk(&Value::Table(self.table.clone()), &mut Vec::new(), &mut paths);
        // `neap lab run` has no oracles without it.
        paths.retain(|path| !matches!(&path[..], [PathStep::Key(key)] if key == "oracles"));
        paths.sort_by_key(Vec::len);
        // From behind, so that indices into arrays stay.
        paths.reverse();
        paths.sort_by_key(Vec::len);
        for path in &paths {
            has_shrunk |= self.attempt(|table| remove(table, path));
        }
        for path in &paths {
            let is_size =
                matches!(path.last(), Some(PathStep::Key(key)) if SIZES.contains(&key.as_str()));
            while is_size && self.attempt(|table| halve(table, path)) {
                has_shrunk = true;
            }
        }
        has_shrunk
    }

    fn attempt(&mut self, change: impl FnOnce(&mut Value) -> bool) -> bool {
        let mut value = Value::Table(self.table.clone());
        if self.left == 0 || !change(&mut value) {
            return false;
        }
        let Value::Table(mut table) = value else { return false };
        unlink(&mut table);
        let text = table.to_string();
        // Only two runs show that they differ.
        let is_twice = self.broken.oracle() == REPEAT;
        let runs = if is_twice { 2 } else { 1 };
        (self.left, self.runs) = (self.left.saturating_sub(runs), self.runs + runs);
        (self.progress)(self.runs);
        let result = match is_twice {
            true => run_twice(self.run, &text, self.turns),
            false => (self.run)(&text, self.turns),
        };
        match result {
            Err(broken) if broken.oracle() == self.broken.oracle() => {
                (self.table, self.text, self.broken) = (table, text, broken);
                true
            }
            _ => false,
        }
    }
}

/// All places of a value, outer ones first.
fn walk(value: &Value, path: &mut Vec<PathStep>, paths: &mut Vec<Vec<PathStep>>) {
    let steps: Vec<(PathStep, &Value)> = match value {
        Value::Table(table) => {
            table.iter().map(|(key, value)| (PathStep::Key(key.clone()), value)).collect()
        }
        Value::Array(array) => {
            array.iter().enumerate().map(|(at, value)| (PathStep::Index(at), value)).collect()
        }
        _ => return,
    };
    for (step, value) in steps {
        path.push(step);
        paths.push(path.clone());
        walk(value, path, paths);
        path.pop();
    }
}

fn find<'a>(value: &'a mut Value, path: &[PathStep]) -> Option<&'a mut Value> {
    path.iter().try_fold(value, |value, step| match (step, value) {
        (PathStep::Key(key), Value::Table(table)) => table.get_mut(key),
        (PathStep::Index(at), Value::Array(array)) => array.get_mut(*at),
        _ => None,
    })
}

/// Whether it was there.
fn remove(value: &mut Value, path: &[PathStep]) -> bool {
    let Some((last, outer)) = path.split_last() else { return false };
    match (last, find(value, outer)) {
        (PathStep::Key(key), Some(Value::Table(table))) => table.remove(key).is_some(),
        (PathStep::Index(at), Some(Value::Array(array))) if *at < array.len() => {
            array.remove(*at);
            true
        }
        _ => false,
    }
}

/// Whether it could be halved.
fn halve(value: &mut Value, path: &[PathStep]) -> bool {
    match find(value, path) {
        Some(Value::Integer(number)) if *number > 1 => {
            *number /= 2;
            true
        }
        _ => false,
    }
}

/// Without a node there are no links to it.
fn unlink(table: &mut Table) {
    let named = |kind: &str| -> Vec<String> {
        let nodes = table.get(kind).and_then(Value::as_table);
        nodes.map(|nodes| nodes.keys().cloned().collect()).unwrap_or_default()
    };
    let nodes = [named("host"), named("router"), named("hostile")].concat();
    let Some(links) = table.get_mut("link").and_then(Value::as_table_mut) else { return };
    links.retain(|_, link| {
        let ends = link.get("ends").and_then(Value::as_array);
        ends.is_none_or(|ends| {
            ends.iter()
                .all(|end| end.as_str().is_none_or(|end| nodes.iter().any(|node| node == end)))
        })
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Outcome;
    use std::cell::Cell;

    #[test]
    fn a_world_that_never_ends_is_looked_for_with_as_many_turns_as_the_first_one() {
        let long = run(super::super::draw(1).as_str(), 1).expect_err("it needs more turns");
        assert_eq!(limits(&long), (LONGEST, LONG_RUNS));
        assert_eq!(limits(&Broken { fault: "stream: other bytes".to_owned() }), (TURNS, RUNS));
    }

    #[test]
    fn a_world_that_is_not_the_same_twice_is_made_smaller() {
        let text = super::super::draw(1);
        let outcome = run(&text, u64::MAX).expect("a sound world");
        let runs = Cell::new(0);
        // Two runs differ as long as there is a link.
        let run = |text: &str, _: u64| {
            runs.set(runs.get() + 1);
            let has_link = text.contains("[link.");
            Ok(Outcome { steps: if has_link { runs.get() } else { 0 }, ..outcome.clone() })
        };
        let broken = run_twice(&run, &text, LONGEST).expect_err("they differ");
        assert_eq!((broken.oracle(), runs.get()), (REPEAT, 2));
        let (small, still) = shrink_by(&run, &text, &broken, &|_| {});
        assert_eq!(still.oracle(), REPEAT);
        let lines = |text: &str| text.lines().count();
        assert!(lines(&small) < lines(&text) / 2 && small.contains("[link."), "{small}");
    }

    #[test]
    fn a_second_run_that_breaks_is_another_run() {
        let outcome = run(&super::super::draw(1), u64::MAX).expect("a sound world");
        let runs = Cell::new(0);
        let run = |_: &str, _: u64| {
            runs.set(runs.get() + 1);
            let fault = || Broken { fault: "flow: silent".to_owned() };
            if runs.get() == 1 { Ok(outcome.clone()) } else { Err(fault()) }
        };
        assert_eq!(run_twice(&run, "", LONGEST).expect_err("one breaks").oracle(), REPEAT);
    }
}
