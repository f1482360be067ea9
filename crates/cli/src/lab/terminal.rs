//! What the lab knows of a terminal: its width, colours, and a progress bar with the time left.

use anstream::AutoStream;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{self, ErrorKind, Stdout, Write, stdout};

/// Columns where the output is no terminal.
const USUAL: usize = 80;
/// The least and the most columns that the output is made for.
const COLUMNS: [usize; 2] = [60, 110];
/// Steps of the progress bar.
const STEPS: f64 = 1e6;

/// Returns the columns that lines may have.
pub(super) fn width() -> usize {
    let size = rustix::termios::tcgetwinsize(stdout());
    let columns = size.map_or(0, |size| usize::from(size.ws_col));
    if columns == 0 { USUAL } else { columns.clamp(COLUMNS[0], COLUMNS[1]) }
}

/// Standard output. It passes colours to a terminal alone, and not where `NO_COLOR` is set
/// (<https://no-color.org>). What is written after its reader has gone away is lost, and that is no
/// error: the exit status is still the verdict.
pub(super) struct Output {
    stream: AutoStream<Stdout>,
    is_unread: bool,
}

impl Output {
    /// Returns whether its reader has gone away.
    pub(super) fn is_unread(&self) -> bool {
        self.is_unread
    }

    fn written<T>(&mut self, result: io::Result<T>, all: T) -> io::Result<T> {
        match result {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                self.is_unread = true;
                Ok(all)
            }
            result => result,
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let result = self.stream.write(bytes);
        self.written(result, bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let result = self.stream.flush();
        self.written(result, ())
    }
}

/// Returns standard output.
pub(super) fn output() -> Output {
    Output { stream: AutoStream::auto(stdout()), is_unread: false }
}

/// Returns a text in lines of at most `width` columns, unless a word is longer.
pub(super) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<(String, usize)> = Vec::new();
    for word in text.split_whitespace() {
        let length = word.chars().count();
        match lines.last_mut() {
            Some((line, columns)) if *columns + 1 + length <= width => {
                line.push(' ');
                line.push_str(word);
                *columns += 1 + length;
            }
            _ => lines.push((word.to_owned(), length)),
        }
    }
    lines.into_iter().map(|(line, _)| line).collect()
}

/// Bar on standard error that says how much of all runs is done and how much time is left. It is
/// hidden where standard error is no terminal. Each run counts by its work.
pub(super) struct Progress {
    bar: ProgressBar,
    /// Steps for a unit of work.
    per_work: f64,
}

impl Progress {
    /// Begins with nothing done of so much work.
    pub(super) fn new(work: f64) -> Self {
        let bar = ProgressBar::new(STEPS as u64);
        let style = "{bar:30} {percent:>3} %, {eta} left  {msg}";
        bar.set_style(ProgressStyle::with_template(style).expect("a sound template"));
        Self { bar, per_work: if work > 0.0 { STEPS / work } else { 0.0 } }
    }

    /// Returns what a run of so much work calls with the share of it that is done.
    pub(super) fn of_run(&self, work: f64, name: String) -> impl Fn(f64) + '_ {
        self.bar.set_message(name);
        let told = std::cell::Cell::new(0);
        move |share: f64| {
            let steps = (share * work * self.per_work) as u64;
            self.bar.inc(steps.saturating_sub(told.replace(steps)));
        }
    }

    /// Calls `print` while the bar is out of the way.
    pub(super) fn aside<R>(&self, print: impl FnOnce() -> R) -> R {
        self.bar.suspend(print)
    }

    /// Returns whether somebody sees the bar.
    pub(super) fn is_seen(&self) -> bool {
        !self.bar.is_hidden()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_words() {
        let lines = wrapped(&"word ".repeat(40), 92);
        assert_eq!(lines.iter().map(String::len).collect::<Vec<_>>(), [89, 89, 19]);
        assert!(wrapped("", 92).is_empty());
        assert_eq!(wrapped("häuser überall", 14), ["häuser überall"]);
    }
}
