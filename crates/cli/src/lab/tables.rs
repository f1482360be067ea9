//! `neap lab --verbose`: all figures of an experiment in a table, and a sentence about each bound
//! and each published figure.

use super::terminal::wrapped;
use neap_lab::scenario::Table;
use std::error::Error;
use std::fmt::Write as _;
use std::io::Write;

/// Width of the first column: what is shown.
const WHAT: usize = 34;
/// Width of the other columns.
const CELL: usize = 14;
/// Columns by which all lines of a paragraph but the first are indented.
const INDENT: usize = 2;

/// Prints the table of an experiment, below what is said first and above the verdicts, in
/// paragraphs of at most `width` columns.
pub(super) fn print<'a>(
    out: &mut impl Write,
    introduction: [&str; 2],
    all: &'a Table,
    bounds: impl Iterator<Item = &'a String>,
    width: usize,
) -> Result<(), Box<dyn Error>> {
    let [about, look_at] = introduction.map(|text| paragraph(text, width));
    writeln!(out, "{about}\n{look_at}\n")?;
    writeln!(out, "{}", table(all)?)?;
    bounds
        .chain(all.judged.iter().map(|one| &one.text))
        .try_for_each(|said| writeln!(out, "{}", paragraph(said, width)))?;
    Ok(writeln!(out)?)
}

/// Text in lines that a terminal shows.
fn paragraph(text: &str, width: usize) -> String {
    wrapped(text, width - INDENT).join(&format!("\n{:INDENT$}", ""))
}

/// As a terminal shows it.
fn table(table: &Table) -> Result<String, std::fmt::Error> {
    let mut out = String::new();
    let published = CELL * table.published.len();
    writeln!(out, "{:WHAT$}{:>published$}{:>CELL$}", "", "published:", "here:")?;
    write!(out, "{:WHAT$}", "")?;
    let mut heads = table.published.iter().chain(&table.columns);
    heads.try_for_each(|head| write!(out, "{head:>CELL$}"))?;
    out.push('\n');
    for group in &table.groups {
        let is_alone = group.rows.iter().all(|row| row.case.is_empty());
        if !is_alone {
            writeln!(out, "{}", group.what)?;
        }
        for row in &group.rows {
            let what = if is_alone { group.what.clone() } else { format!("  {}", row.case) };
            let mut line = format!("{what:WHAT$}");
            row.published.iter().try_for_each(|said| write!(line, "{said:>CELL$}"))?;
            for value in &row.values {
                write!(line, "{value:>CELL$.digits$}", digits = group.digits)?;
            }
            writeln!(out, "{}", line.trim_end())?;
        }
    }
    Ok(out)
}
