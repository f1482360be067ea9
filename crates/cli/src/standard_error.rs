//! Lines on the standard error, where nobody may listen any more.

use std::fmt::Display;
use std::io::{self, Write};

/// Says a line. It is lost where it cannot be written, as on a full disk: a network goes on without
/// its lines, while `eprintln!` panics.
pub(crate) fn say(line: &dyn Display) {
    let _ = writeln!(io::stderr(), "{line}");
}
