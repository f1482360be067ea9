//! Threads without which a process is of no use.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs an engine, and says how it has ended: also if a fault of this program has ended it, or the
/// process would live on without it and look well.
pub(crate) fn run(engine: impl FnOnce() -> io::Result<()>) -> Result<(), String> {
    // What it has changed goes with it.
    match catch_unwind(AssertUnwindSafe(engine)) {
        Ok(ended) => ended.map_err(|error| error.to_string()),
        Err(_) => Err("a fault of this program has ended its thread".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_told_as_any_other_end() {
        assert_eq!(run(|| Ok(())), Ok(()));
        let refused = run(|| Err(io::Error::other("refused")));
        assert_eq!(refused, Err("refused".to_owned()));
        let ended = run(|| panic!("a fault that a test has made"));
        assert!(ended.is_err_and(|why| why.contains("a fault of this program")));
    }
}
