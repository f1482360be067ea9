//! Files that a command writes: those that the user named and no others. They are opened before
//! the first run, so that a path that cannot be written is told at once.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Path that cannot be written, and why. The program exits with status 2.
#[derive(Debug, Error)]
#[error("cannot write {}: {why}", path.display())]
pub(super) struct OutputError {
    path: PathBuf,
    why: io::Error,
}

impl OutputError {
    pub(super) fn new(path: &Path, why: io::Error) -> Self {
        Self { path: path.to_path_buf(), why }
    }
}

/// File that can be written. What it holds is replaced when the first byte is written, so a run
/// that fails leaves an earlier result as it was.
pub(super) struct OutputFile {
    path: PathBuf,
    file: File,
}

impl OutputFile {
    /// Opens the file, or makes an empty one.
    pub(super) fn open(path: &Path) -> Result<Self, OutputError> {
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|why| OutputError::new(path, why))?;
        Ok(Self { path: path.to_path_buf(), file })
    }

    /// Opens the files that are named, each once.
    ///
    /// # Errors
    /// A file that cannot be opened, or that two options name.
    pub(super) fn open_all<const N: usize>(
        paths: [Option<&PathBuf>; N],
    ) -> Result<[Option<Self>; N], OutputError> {
        let mut opened = [const { None }; N];
        for (index, path) in paths.iter().enumerate() {
            let Some(path) = path else { continue };
            if paths[..index].contains(&Some(path)) {
                let why = io::Error::new(io::ErrorKind::InvalidInput, "two options name it");
                return Err(OutputError::new(path, why));
            }
            opened[index] = Some(Self::open(path)?);
        }
        Ok(opened)
    }

    /// Empties the file. The path is for what is said of errors.
    pub(super) fn begin(self) -> Result<(PathBuf, File), OutputError> {
        let Self { path, file } = self;
        // A device or a pipe has no length.
        let is_regular = file.metadata().is_ok_and(|metadata| metadata.is_file());
        if is_regular {
            file.set_len(0).map_err(|why| OutputError::new(&path, why))?;
        }
        Ok((path, file))
    }

    /// Makes `text` the contents of the file, and says so on standard error.
    pub(super) fn write(self, text: &str) -> Result<(), OutputError> {
        let (path, mut file) = self.begin()?;
        file.write_all(text.as_bytes()).map_err(|why| OutputError::new(&path, why))?;
        eprintln!("wrote {}", path.display());
        Ok(())
    }
}
