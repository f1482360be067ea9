//! What files are read from: the file system and the environment of the process, or a test's.

use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// Longest file, bytes: thousands of peers.
pub(super) const MOST_BYTES: usize = 1 << 20;

/// The bytes of a file.
pub(super) struct Text {
    pub(super) bytes: Zeroizing<Vec<u8>>,
    /// Whether users other than the owner may read it.
    pub(super) is_open: bool,
}

/// Where files and variables come from.
pub(super) trait Source {
    /// The bytes of a file.
    fn read(&self, path: &Path) -> io::Result<Text>;

    /// Whether a file is there.
    fn has(&self, path: &Path) -> bool;

    /// Whether users other than the owner may read a file.
    fn is_open(&self, path: &Path) -> bool;

    /// The value of an environment variable.
    fn variable(&self, name: &str) -> Option<Zeroizing<String>>;

    /// The text of `/etc/services`.
    fn services(&self) -> String;
}

/// The file system and the environment of this process.
pub(super) struct System;

/// Bits of a mode by which others than the owner may read.
const READABLE_BY_OTHERS: u32 = 0o044;

fn is_open(found: &Metadata) -> bool {
    found.is_file() && found.mode() & READABLE_BY_OTHERS != 0
}

impl Source for System {
    fn read(&self, path: &Path) -> io::Result<Text> {
        let file = File::open(path)?;
        let found = file.metadata()?;
        if found.is_dir() {
            return Err(ErrorKind::IsADirectory.into());
        }
        let is_open = is_open(&found);
        // A buffer that never grows leaves no copies of keys behind.
        let mut bytes = Zeroizing::new(Vec::with_capacity(MOST_BYTES + 1));
        file.take(MOST_BYTES as u64 + 1).read_to_end(&mut bytes)?;
        Ok(Text { bytes, is_open })
    }

    fn has(&self, path: &Path) -> bool {
        path.exists()
    }

    fn is_open(&self, path: &Path) -> bool {
        path.metadata().is_ok_and(|found| is_open(&found))
    }

    fn variable(&self, name: &str) -> Option<Zeroizing<String>> {
        // `var` would panic on a name with `=` or NUL in older versions of std.
        let is_name = !name.is_empty() && !name.contains(['=', '\0']);
        is_name.then(|| std::env::var(name).ok()).flatten().map(Zeroizing::new)
    }

    fn services(&self) -> String {
        // A machine without the file has no names of ports.
        std::fs::read_to_string("/etc/services").unwrap_or_default()
    }
}

/// The path of a file that another file names. A path with folders starts from the current folder,
/// as wireproxy has it, or from the folder of the other file if nothing is there.
pub(super) fn named_by(file: &Path, named: &Path, source: &dyn Source) -> PathBuf {
    if named.is_absolute() {
        return named.to_owned();
    }
    let beside = file.parent().unwrap_or(Path::new("")).join(named);
    let is_bare = named.components().count() == 1;
    let (first, second) =
        if is_bare { (beside, named.to_owned()) } else { (named.to_owned(), beside) };
    if source.has(&first) || !source.has(&second) { first } else { second }
}
