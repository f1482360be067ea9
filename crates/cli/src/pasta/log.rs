//! What the face says to people: to the standard error, or to a file of bounded size.

use crate::standard_error::say;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Where lines go.
#[derive(Debug)]
pub(super) struct Log {
    is_quiet: bool,
    file: Option<Mutex<Bounded>>,
}

/// A file that forgets its beginning.
#[derive(Debug)]
struct Bounded {
    file: File,
    most_bytes: u64,
}

impl Log {
    /// # Errors
    /// The file cannot be written.
    pub(super) fn new(is_quiet: bool, file: Option<&Path>, most_bytes: u64) -> io::Result<Self> {
        let open = |path| OpenOptions::new().read(true).append(true).create(true).open(path);
        let file = file.map(open).transpose()?;
        let file = file.map(|file| Mutex::new(Bounded { file, most_bytes }));
        Ok(Self { is_quiet, file })
    }

    /// A line that is left out if the user wants it quiet.
    pub(super) fn info(&self, line: &dyn fmt::Display) {
        if !self.is_quiet {
            self.tell(line);
        }
    }

    /// A line that the user has asked for.
    pub(super) fn tell(&self, line: &dyn fmt::Display) {
        match &self.file {
            Some(file) => Self::add(file, line),
            None => say(&format_args!("pasta: {line}")),
        }
    }

    /// Why there is no network, for the file. Whoever calls says it on the standard error, where
    /// the user waits.
    pub(super) fn error(&self, line: &dyn fmt::Display) {
        if let Some(file) = &self.file {
            Self::add(file, line);
        }
    }

    fn add(file: &Mutex<Bounded>, line: &dyn fmt::Display) {
        let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
        // A full disk does not stop the network.
        let _ = file.add(&format!("{line}\n"));
    }
}

impl Bounded {
    fn add(&mut self, line: &str) -> io::Result<()> {
        let length = self.file.metadata()?.len();
        if length + line.len() as u64 > self.most_bytes {
            // It may have been longer when it was opened.
            self.forget(length - length.min(self.most_bytes) / 2)?;
        }
        self.file.write_all(line.as_bytes())
    }

    /// Forgets the first `bytes`, and what is left of the line that they end in.
    fn forget(&mut self, bytes: u64) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(bytes))?;
        let mut kept = Vec::new();
        (&self.file).take(self.most_bytes).read_to_end(&mut kept)?;
        let end_of_line = kept.iter().position(|byte| *byte == b'\n');
        let kept = end_of_line.map_or(&[][..], |end| &kept[end + 1..]);
        self.file.set_len(0)?;
        self.file.write_all(kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A file of one test.
    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("neap-log-{name}-{}", std::process::id()))
    }

    #[test]
    fn a_file_that_is_too_long_from_before_keeps_its_last_lines() {
        let path = path("long");
        let old: Vec<_> = (0..50).map(|number| format!("line {number}\n")).collect();
        std::fs::write(&path, old.concat()).expect("a file");
        let log = Log::new(false, Some(&path), 100).expect("a file");
        log.info(&"line 50");
        let text = std::fs::read_to_string(&path).expect("a file");
        std::fs::remove_file(&path).expect("it is there");
        assert!(text.len() <= 100 && text.ends_with("line 48\nline 49\nline 50\n"), "{text}");
    }

    #[test]
    fn a_full_file_keeps_its_last_lines() {
        let path = path("full");
        let log = Log::new(true, Some(&path), 100).expect("a file");
        let loud = Log::new(false, Some(&path), 100).expect("a file");
        log.info(&"not said, as it is quiet");
        for number in 0..50 {
            loud.info(&format_args!("line {number}"));
        }
        let text = std::fs::read_to_string(&path).expect("a file");
        std::fs::remove_file(&path).expect("it is there");
        assert!(text.len() <= 100 && text.ends_with("line 48\nline 49\n"), "{text}");
        assert!(text.lines().all(|line| line.starts_with("line ")), "{text}");
    }
}
