//! What `neap nstat` has seen: the values that the next call compares with.

use neap::control::CounterReport;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Values by stack and name. A file of it lies beside the stack's control socket, and the next
/// stack that starts removes it when that is gone.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(transparent)]
pub(super) struct History(HashMap<String, HashMap<String, u64>>);

impl History {
    /// What a file has; nothing if it is not there or something else is in it.
    pub(super) fn read(path: &Path) -> Self {
        let text = fs::read(path).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// Puts it in the place of what was there. It is of no use to others, and its loss does no
    /// harm: the next differences are larger.
    pub(super) fn write(&self, path: &Path) {
        let new = path.with_extension("nstat.part");
        let written = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&new)
            .and_then(|mut file| file.write_all(&serde_json::to_vec(&self.0)?))
            .and_then(|()| fs::rename(&new, path));
        if let Err(error) = written {
            eprintln!("neap nstat: {}: {error}", path.display());
        }
    }

    pub(super) fn insert(&mut self, stack: &str, counters: &[CounterReport]) {
        let counters = counters.iter().map(|counter| (counter.name.clone(), counter.value));
        self.0.insert(stack.to_owned(), counters.collect());
    }

    /// What the next call compares with: the values of a stack now, but for counters that are not
    /// meant. Those are compared with what they were compared with before.
    pub(super) fn updated(
        &self,
        stack: &str,
        counters: &[CounterReport],
        is_meant: impl Fn(&CounterReport) -> bool,
    ) -> Self {
        let values = counters.iter().filter_map(|counter| {
            let value =
                if is_meant(counter) { Some(counter.value) } else { self.last(stack, counter) };
            Some((counter.name.clone(), value?))
        });
        Self(HashMap::from([(stack.to_owned(), values.collect())]))
    }

    /// What a counter was when it was last meant.
    fn last(&self, stack: &str, counter: &CounterReport) -> Option<u64> {
        self.0.get(stack)?.get(&counter.name).copied()
    }

    /// Takes over what another one has of a stack.
    pub(super) fn keep(&mut self, stack: &str, other: &mut Self) {
        self.0.extend(other.0.remove_entry(stack));
    }

    /// What a counter has risen by. One that is lower than it was belongs to a new stack.
    pub(super) fn risen(&self, stack: &str, counter: &CounterReport) -> u64 {
        let last = self.last(stack, counter).unwrap_or(0);
        counter.value.checked_sub(last).unwrap_or(counter.value)
    }
}
