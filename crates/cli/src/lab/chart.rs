//! Stories as bar charts for terminals: plain text with colours, which the writer below removes
//! where nobody sees them.

use super::terminal::wrapped;
use anstyle::{AnsiColor, Style};
use neap_lab::scenario::{Bar, Role, Story, short};
use std::fmt::{self, Write};

/// What stands for a published value.
const MARK: char = '◆';
/// What shows through where a bar does not reach a tick.
const TICK: char = '┊';
/// Parts of a cell, in eighths.
const EIGHTHS: [char; 8] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];
const FULL: char = '█';
/// Columns left of everything but headings.
const INDENT: usize = 2;
/// Below so many columns, rows do not say how they compare with the first.
const ROOMY: usize = 72;
/// Share by which a value may differ from the first one and still be called the same.
const SAME: f64 = 0.1;

const BOLD: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();
const MARKED: Style = AnsiColor::Magenta.on_default().bold();
const GOOD: Style = AnsiColor::Green.on_default();
const BAD: Style = AnsiColor::Red.on_default().bold();

/// Returns the chart of a story with heading and sentence, in lines of at most `width` columns.
pub(super) fn draw(story: &Story, width: usize) -> Result<String, fmt::Error> {
    let mut out = String::new();
    writeln!(out, "{BOLD}{}{BOLD:#}", story.heading)?;
    for line in wrapped(&story.sentence, width - INDENT) {
        writeln!(out, "{:INDENT$}{line}", "")?;
    }
    writeln!(out)?;
    let axis = Axis::of(story);
    for line in wrapped(&caption(story, &axis), width - INDENT) {
        writeln!(out, "{:INDENT$}{DIM}{line}{DIM:#}", "")?;
    }
    rows(&mut out, story, &axis, width)?;
    if let Some(note) = &story.note
        && story.bars.iter().any(|bar| !bar.agrees())
    {
        for line in wrapped(&format!("{MARK} differs, because {note}."), width - INDENT) {
            writeln!(out, "{:INDENT$}{DIM}{line}{DIM:#}", "")?;
        }
    }
    Ok(out)
}

/// Returns how many bounds hold, in colour.
pub(super) fn bounds(held: usize, all: usize) -> String {
    let (style, sign) = if held == all { (GOOD, '✔') } else { (BAD, '✘') };
    format!("{style}{sign} {held} of {all} bounds hold{style:#}")
}

/// What the bars show.
fn caption(story: &Story, axis: &Axis) -> String {
    let mut said = story.what.clone();
    if !story.unit.is_empty() {
        let _ = write!(said, ", {}", story.unit);
    }
    let is_marked = story.bars.iter().any(|bar| bar.published.is_some());
    match (is_marked, axis.is_log) {
        (true, true) => said + &format!(" (log scale, {MARK} published)"),
        (true, false) => said + &format!(" ({MARK} published)"),
        (false, true) => said + " (log scale)",
        (false, false) => said,
    }
}

/// The rows of the bars, and the axis below them.
fn rows(out: &mut String, story: &Story, axis: &Axis, width: usize) -> fmt::Result {
    let longest = |texts: &mut dyn Iterator<Item = String>| {
        texts.map(|text| text.chars().count()).max().unwrap_or_default()
    };
    let labels = longest(&mut story.bars.iter().map(|bar| bar.label.clone()));
    let values = longest(&mut story.bars.iter().map(|bar| short(bar.value)));
    let compared = |bar: &Bar| {
        let is_roomy = width >= ROOMY;
        if is_roomy { comparison(story, bar) } else { String::new() }
    };
    let changes = longest(&mut story.bars.iter().map(compared));
    let marks = longest(&mut story.bars.iter().map(mark));
    // Two columns stand between neighbours, and none beside one that is empty.
    let gap = |columns: usize| if columns > 0 { columns + 2 } else { 0 };
    let left = INDENT + labels + 2 + values + 2;
    let cells = width.saturating_sub(left + gap(changes) + gap(marks)).max(8);
    for bar in &story.bars {
        let style = colour(bar.role);
        let name = if bar.role == Role::Neap { style.bold() } else { Style::new() };
        write!(out, "{:INDENT$}{name}{:labels$}  ", "", bar.label)?;
        write!(out, "{:>values$}{name:#}  ", short(bar.value))?;
        let (change, mark) = (compared(bar), mark(bar));
        let is_last = change.is_empty() && mark.is_empty();
        write!(out, "{}", drawn(bar, axis, cells, is_last))?;
        if !change.is_empty() {
            write!(out, "  {name}{change}{name:#}")?;
        }
        if !mark.is_empty() {
            let space = gap(changes) - gap(change.len());
            write!(out, "{:space$}  {MARKED}{mark}{MARKED:#}", "")?;
        }
        writeln!(out)?;
    }
    writeln!(out, "{:left$}{DIM}{}{DIM:#}", "", axis.labels(cells))
}

/// The published value beside its mark.
fn mark(bar: &Bar) -> String {
    bar.published_text().map(|text| format!("{MARK} {text}")).unwrap_or_default()
}

/// How a bar compares with the first one, as in "17x less".
fn comparison(story: &Story, bar: &Bar) -> String {
    let Some(first) = story.bars.first() else { return String::new() };
    if std::ptr::eq(first, bar) || first.value <= 0.0 || bar.value <= 0.0 {
        return String::new();
    }
    let (ratio, word) = if bar.value < first.value {
        (first.value / bar.value, "less")
    } else {
        (bar.value / first.value, "more")
    };
    if ratio <= 1.0 + SAME {
        return "as before".to_owned();
    }
    let digits = usize::from(ratio < 10.0);
    format!("{ratio:.digits$}x {word}")
}

const fn colour(role: Role) -> Style {
    match role {
        Role::Before => AnsiColor::Yellow.on_default(),
        Role::Published => AnsiColor::Cyan.on_default(),
        Role::Neap => AnsiColor::Green.on_default(),
        _ => Style::new(),
    }
}

/// A bar, the mark of what was published, and the ticks that neither covers. Blanks at the end are
/// left away if nothing stands behind.
fn drawn(bar: &Bar, axis: &Axis, cells: usize, is_last: bool) -> String {
    let eighths = (axis.place(bar.value) * (cells * 8) as f64).round() as usize;
    // A bar that is there is seen.
    let eighths = if bar.value > 0.0 { eighths.max(1) } else { 0 };
    let mut row: Vec<char> = vec![' '; cells];
    for tick in &axis.ticks {
        row[cell(axis.place(*tick), cells)] = TICK;
    }
    row.iter_mut().take(eighths / 8).for_each(|one| *one = FULL);
    if let Some(part) = row.get_mut(eighths / 8)
        && !eighths.is_multiple_of(8)
    {
        *part = EIGHTHS[eighths % 8];
    }
    let marked = bar.published.map(|value| cell(axis.place(value), cells));
    if let Some(marked) = marked {
        row[marked] = MARK;
    }
    while is_last && row.last() == Some(&' ') {
        row.pop();
    }
    let style = colour(bar.role);
    let style_of = |index: usize| match row[index] {
        MARK => MARKED,
        ' ' | TICK => DIM,
        _ => style,
    };
    let (mut out, mut from) = (String::new(), 0);
    while from < row.len() {
        let style = style_of(from);
        let until = (from..row.len()).find(|&index| style_of(index) != style);
        let until = until.unwrap_or(row.len());
        let text: String = row[from..until].iter().collect();
        out.push_str(&format!("{style}{text}{style:#}"));
        from = until;
    }
    out
}

/// The cell at a share of the axis.
fn cell(share: f64, cells: usize) -> usize {
    ((share * cells as f64) as usize).min(cells - 1)
}

/// The axis of a chart, from 0 or, if it is logarithmic, from below the least value.
struct Axis {
    is_log: bool,
    least: f64,
    most: f64,
    ticks: Vec<f64>,
}

impl Axis {
    fn of(story: &Story) -> Self {
        let (least, most) = story.range();
        if !story.needs_log() {
            let most = if most > 0.0 { most } else { 1.0 };
            return Self { is_log: false, least: 0.0, most, ticks: steps(most) };
        }
        // The least bar is at least a third of a decade long.
        let decade = (least / 2.0).log10().floor() as i32;
        let decades = (decade..).map(|power| 10f64.powi(power)).take_while(|&tick| tick <= most);
        Self { is_log: true, least: 10f64.powi(decade), most, ticks: decades.collect() }
    }

    /// The place of a value, as a share of the axis.
    fn place(&self, value: f64) -> f64 {
        let share = if self.is_log {
            (value.max(self.least) / self.least).ln() / (self.most / self.least).ln()
        } else {
            value / self.most
        };
        share.clamp(0.0, 1.0)
    }

    /// The numbers of the ticks. Each begins at its tick, or ends where the axis does.
    fn labels(&self, cells: usize) -> String {
        let mut row = String::new();
        let mut taken = 0;
        for tick in &self.ticks {
            let text = format!("{tick}");
            let at = cell(self.place(*tick), cells).min(cells.saturating_sub(text.len()));
            if taken > 0 && at <= taken {
                continue;
            }
            row.push_str(&" ".repeat(at - taken));
            row.push_str(&text);
            taken = at + text.len();
        }
        row
    }
}

/// Round numbers from 0 to `most`: two to five of them beside 0.
fn steps(most: f64) -> Vec<f64> {
    let decade = 10f64.powf(most.log10().floor());
    let step = [0.5, 1.0, 2.0].into_iter().map(|part| part * decade);
    let step = step.into_iter().find(|step| most / step < 6.0).unwrap_or(decade);
    // A product such as 3 * 0.2 has a tail of digits. The quotient 3 / 5 has none.
    let per_one = (1.0 / step).round();
    let tick = |count: u32| match f64::from(count) {
        count if step < 1.0 => count / per_one,
        count => count * step,
    };
    (0..).map(tick).take_while(|&tick| tick <= most).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(label: &str, role: Role, value: f64, published: Option<f64>) -> Bar {
        Bar { label: label.into(), role, value, published, published_bound: None }
    }

    fn story(values: [f64; 3]) -> Story {
        Story {
            heading: "A change (2012)".into(),
            sentence: "word ".repeat(40).trim_end().into(),
            what: "delay of a flow".into(),
            unit: "ms".into(),
            bars: vec![
                bar("before", Role::Before, values[0], Some(values[0] * 1.2)),
                bar("Linux 2012", Role::Published, values[1], Some(values[1])),
                bar("neap", Role::Neap, values[2], None),
            ],
            note: Some("the machines were others".into()),
            bounds_held: 3,
            bounds: 3,
        }
    }

    fn plain(story: &Story, width: usize) -> String {
        anstream::adapter::strip_str(&draw(story, width).expect("a string takes all")).to_string()
    }

    #[test]
    fn a_chart_is_as_wide_as_it_may_be() {
        for values in [[122.0, 7.02, 0.49], [654.0, 164.0, 169.0], [0.0, 0.0, 0.0]] {
            for width in 60..=110 {
                let text = plain(&story(values), width);
                let widest = text.lines().map(|line| line.chars().count()).max();
                assert!(widest.is_some_and(|widest| widest <= width), "{width}:\n{text}");
                assert!(text.lines().all(|line| line.trim_end() == line), "{text}");
            }
        }
    }

    #[test]
    fn values_that_are_far_apart_have_a_logarithmic_axis() {
        let log = plain(&story([122.0, 7.02, 0.49]), 80);
        assert!(log.contains("(log scale, ◆ published)") && log.contains("249x less"), "{log}");
        let labels = log.lines().rfind(|line| line.contains("100")).expect("an axis");
        assert_eq!(labels.split_whitespace().collect::<Vec<_>>(), ["0.1", "1", "10", "100"]);
        let linear = plain(&story([654.0, 164.0, 169.0]), 80);
        assert!(linear.contains("(◆ published)") && linear.contains("4.0x less"), "{linear}");
        let labels = linear.lines().rfind(|line| line.contains("400")).expect("an axis");
        assert_eq!(labels.split_whitespace().collect::<Vec<_>>(), ["0", "200", "400", "600"]);
    }

    #[test]
    fn labels_of_an_axis_have_no_more_digits_than_its_steps() {
        for (most, expected) in [
            (0.7, "0 0.2 0.4 0.6"),
            (0.4, "0 0.1 0.2 0.3 0.4"),
            (0.2, "0 0.05 0.1 0.15 0.2"),
            (7.0, "0 2 4 6"),
            (30.0, "0 10 20 30"),
        ] {
            let labels: Vec<_> = steps(most).iter().map(f64::to_string).collect();
            assert_eq!(labels.join(" "), expected);
        }
    }

    #[test]
    fn bars_are_as_long_as_their_values_say() {
        let text = plain(&story([100.0, 50.0, 25.0]), 80);
        let full = |label: &str| {
            let line = text.lines().find(|line| line.trim_start().starts_with(label));
            line.expect("a bar").chars().filter(|&one| one == FULL).count()
        };
        let (before, half, quarter) = (full("before"), full("Linux 2012"), full("neap"));
        // The published value covers a cell of the second bar, or stands behind it.
        assert!(before.abs_diff(half * 2) <= 3 && before.abs_diff(quarter * 4) <= 3, "{text}");
    }

    #[test]
    fn a_published_value_is_a_mark_with_its_number_and_a_reason_where_it_differs() {
        let text = plain(&story([100.0, 50.0, 25.0]), 80);
        let before = text.lines().find(|line| line.trim_start().starts_with("before"));
        assert!(before.expect("a bar").ends_with("◆ 120"), "{text}");
        assert!(text.contains("◆ differs, because the machines were others."), "{text}");
        let mut same = story([100.0, 50.0, 25.0]);
        same.bars[0].published = Some(101.0);
        assert!(!plain(&same, 80).contains("differs"));
    }
}
