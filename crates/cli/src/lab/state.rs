//! Where a sweep keeps what is done, so that an interrupted one goes on: the file that the user
//! named, or one in the state directory of the user (XDG Base Directory Specification 0.8).

use super::output::OutputError;
use neap_lab::scenario::Experiment;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// File of results.
pub(super) struct State {
    pub(super) path: PathBuf,
    /// Nobody named the file: it is kept only until the sweep is over.
    is_ours: bool,
}

impl State {
    /// Finds the file for a scenario, and makes its directory if nobody named the file.
    ///
    /// # Errors
    /// There is no state directory, or it cannot be made.
    pub(super) fn of(
        named: Option<&PathBuf>,
        scenario: &str,
        experiment: &Experiment<'_>,
    ) -> Result<Self, OutputError> {
        if let Some(path) = named {
            return Ok(Self { path: path.clone(), is_ours: false });
        }
        let missing = || {
            let why = "neither XDG_STATE_HOME nor HOME is set: say --out FILE";
            let why = io::Error::new(io::ErrorKind::NotFound, why);
            OutputError::new(Path::new("the results so far"), why)
        };
        let folder = folder(|name| std::env::var_os(name)).ok_or_else(missing)?;
        fs::create_dir_all(&folder).map_err(|why| {
            let why = format!("{why}; say --out FILE, or set XDG_STATE_HOME");
            OutputError::new(&folder, io::Error::other(why))
        })?;
        let own = Path::new(scenario).file_stem().unwrap_or_default().to_string_lossy();
        let name = format!("{own}-{}.jsonl", experiment.fingerprint());
        Ok(Self { path: folder.join(name), is_ours: true })
    }

    /// Says on standard error where the results are meanwhile.
    pub(super) fn tell(&self, done: usize, all: usize) {
        let path = self.path.display();
        if done > 0 {
            eprintln!("{done} of {all} runs are in {path}");
        } else if self.is_ours && all > 1 {
            eprintln!("an interrupted sweep goes on from {path}");
        }
    }

    /// Ends the sweep: returns what to say of its results.
    pub(super) fn end(&self) -> String {
        if !self.is_ours {
            return format!(" in {}", self.path.display());
        }
        // What cannot be removed is used or replaced by the next sweep.
        let _ = fs::remove_file(&self.path);
        "; with --out FILE, all their figures as lines of JSON".to_owned()
    }
}

/// The directory for sweeps. An `XDG_STATE_HOME` that is not absolute does not count, as the
/// specification says.
fn folder(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME");
    let state = state.or_else(|| Some(absolute("HOME")?.join(".local/state")))?;
    Some(state.join("neap/sweeps"))
}

/// Returns a text that distinguishes this build of the program from others: what another build has
/// computed is not taken for its own.
pub(super) fn build() -> String {
    let program = std::env::current_exe().and_then(fs::metadata);
    let age = program.ok().map(|program| {
        let modified = program.modified().ok();
        let since = modified.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
        format!("{}-{}", program.len(), since.map_or(0, |since| since.as_nanos()))
    });
    format!("{}-{}", env!("CARGO_PKG_VERSION"), age.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_kept_in_the_state_directory_of_the_user() {
        let with = |state: &str, home: &str| {
            folder(|name| {
                let value = if name == "HOME" { home } else { state };
                (!value.is_empty()).then(|| value.into())
            })
        };
        assert_eq!(with("/s", "/h"), Some("/s/neap/sweeps".into()));
        assert_eq!(with("", "/h"), Some("/h/.local/state/neap/sweeps".into()));
        assert_eq!(with("relative", "/h"), Some("/h/.local/state/neap/sweeps".into()));
        assert_eq!(with("", ""), None);
    }
}
