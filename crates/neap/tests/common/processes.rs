//! Processes that a test has started.

use std::fs;
use std::process::Command;

/// Kills a process and all that it has started. Those would keep its output open.
pub(crate) fn kill_all(process: u32) {
    let (mut all, mut next) = (vec![process.to_string()], 0);
    while let Some(parent) = all.get(next) {
        let threads = fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
        let children = threads.map(|thread| fs::read_to_string(thread.path().join("children")));
        let children = children.map(Result::unwrap_or_default).collect::<String>();
        all.extend(children.split_whitespace().map(str::to_owned));
        next += 1;
    }
    // Some may have ended meanwhile.
    let _ = Command::new("kill").arg("-KILL").args(&all).status();
}
