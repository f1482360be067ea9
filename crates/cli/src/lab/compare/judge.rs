//! Verdicts of predictions: each figure is judged by itself, with its tolerance beside it.

use super::Sender;
use serde::Serialize;
use std::io::Write;

/// Figure that was predicted and measured.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Judged {
    pub(super) what: &'static str,
    pub(super) predicted: f64,
    pub(super) measured: f64,
    /// How far the prediction is from what was measured, in percent of that; none if that is not
    /// more than nothing.
    off_percent: Option<f64>,
    /// How far it may be.
    tolerance_percent: f64,
    pub(super) agrees: bool,
    /// Known reason of a difference.
    #[serde(skip_serializing_if = "str::is_empty")]
    why: &'static str,
}

impl Judged {
    /// Judges a prediction. `tolerance` is a part of what was measured; `why` is a reason why the
    /// figure may differ.
    pub(super) fn new(
        what: &'static str,
        [predicted, measured]: [f64; 2],
        tolerance: f64,
        why: &'static str,
    ) -> Self {
        let off_percent = (measured > 0.0).then(|| (predicted / measured - 1.0) * 100.0);
        let agrees = (predicted - measured).abs() <= tolerance * measured;
        let why = if agrees { "" } else { why };
        let tolerance_percent = tolerance * 100.0;
        Self { what, predicted, measured, off_percent, tolerance_percent, agrees, why }
    }

    fn print(&self, out: &mut impl Write) -> std::io::Result<()> {
        let Self { what, predicted, measured, off_percent, tolerance_percent, why, .. } = self;
        let digits = match measured.abs() {
            100.0.. => 0,
            1.0.. => 2,
            _ => 3,
        };
        let verdict = if self.agrees { "ok, within" } else { "differs by more than" };
        let off = off_percent.map_or(String::new(), |percent| format!("{percent:+.1} %: "));
        writeln!(
            out,
            "  {what:<42}{predicted:>12.digits$}{measured:>12.digits$}  {off}\
             {verdict} {tolerance_percent:.0} %"
        )?;
        if !why.is_empty() {
            writeln!(out, "    {why}")?;
        }
        Ok(())
    }
}

/// All figures of one comparison.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Judgement {
    pub(super) name: &'static str,
    pub(super) sender: Sender,
    pub(super) figures: Vec<Judged>,
    /// What must be known of a figure in any case.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) notes: Vec<String>,
}

impl Judgement {
    pub(super) fn print(&self, out: &mut impl Write) -> std::io::Result<()> {
        print(out, self.name, self.sender, &self.figures)?;
        self.notes.iter().try_for_each(|note| writeln!(out, "  {note}"))?;
        writeln!(out)
    }
}

/// Prints a table of figures.
pub(super) fn print(
    out: &mut impl Write,
    name: &str,
    sender: Sender,
    figures: &[Judged],
) -> std::io::Result<()> {
    let who = if sender == Sender::Neap { "neap" } else { "the kernel" };
    writeln!(out, "{name}, {who} sends")?;
    writeln!(out, "  {:<42}{:>12}{:>12}", "", "predicted", "measured")?;
    figures.iter().try_for_each(|figure| figure.print(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_has_its_verdict_and_its_tolerance() {
        let print = |predicted| {
            let mut out = Vec::new();
            let judged = Judged::new("goodput, Mbit/s", [predicted, 50.0], 0.1, "for a reason");
            judged.print(&mut out).expect("memory");
            (judged.agrees, String::from_utf8(out).expect("text"))
        };
        let (agrees, text) = print(45.1);
        assert!(agrees && text.contains("-9.8 %: ok, within 10 %") && !text.contains("reason"));
        let (agrees, text) = print(55.1);
        assert!(!agrees && text.contains("+10.2 %: differs by more than 10 %"), "{text}");
        assert!(text.ends_with("    for a reason\n"), "{text}");
    }

    #[test]
    fn a_figure_that_is_not_more_than_nothing_has_no_percentage() {
        for measured in [0.0, -80.0] {
            let judged = Judged::new("interrupts", [1.0, measured], 0.1, "");
            assert!(!judged.agrees && judged.off_percent.is_none());
            let (name, sender) = ("a twin", Sender::Kernel);
            let notes = vec!["a note".to_owned()];
            let mut out = Vec::new();
            let all = Judgement { name, sender, figures: vec![judged], notes };
            all.print(&mut out).expect("memory");
            let text = String::from_utf8(out).expect("text");
            assert!(text.ends_with("  differs by more than 10 %\n  a note\n\n"), "{text}");
        }
    }
}
