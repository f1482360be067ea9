//! Bars side by side on one scale: the picture that opens an experiment. It is a table with text,
//! so that it needs no script, fits a phone, and can be read aloud.

use super::{escape, put};

/// Values that differ by more than this get a logarithmic scale.
const WIDE: f64 = 10.0;
/// Part of a decade that the shortest bar has at least.
const SHORTEST: f64 = 0.2;

/// Bar of a picture.
#[derive(Clone, Debug, PartialEq)]
pub struct BarView {
    /// Name of what is shown.
    pub label: String,
    /// Class that gives the bar its colour: `before`, `published`, `today`, `neap`; or empty.
    pub role: String,
    /// Value that was measured.
    pub value: f64,
    /// Value that was published for the same, which is marked, and in words.
    pub published: Option<(f64, String)>,
}

/// Scale of a picture.
struct Scale {
    from: f64,
    to: f64,
    is_log: bool,
}

impl Scale {
    fn new(bars: &[BarView]) -> Self {
        let published = |bar: &BarView| bar.published.as_ref().map(|(value, _)| *value);
        let values = || bars.iter().flat_map(|bar| [Some(bar.value), published(bar)]).flatten();
        let most = values().fold(0.0, f64::max);
        let least = values().filter(|value| *value > 0.0).fold(most, f64::min);
        if most > WIDE * least {
            let mut from = least.log10().floor();
            if least.log10() - from < SHORTEST {
                from -= 1.0;
            }
            return Self { from: 10f64.powf(from), to: most * 1.05, is_log: true };
        }
        Self { from: 0.0, to: if most > 0.0 { most * 1.05 } else { 1.0 }, is_log: false }
    }

    /// Part of the width, in percent.
    fn place(&self, value: f64) -> f64 {
        let share = if self.is_log {
            (value.max(self.from) / self.from).ln() / (self.to / self.from).ln()
        } else {
            value / self.to
        };
        share.clamp(0.0, 1.0) * 100.0
    }

    fn ticks(&self) -> Vec<f64> {
        if self.is_log {
            let powers = self.from.log10().round() as i32..=self.to.log10().floor() as i32;
            return powers.map(|power| 10f64.powi(power)).collect();
        }
        let rough = self.to / 4.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
        let step = step.into_iter().find(|step| *step >= rough * 0.999).unwrap_or(power);
        (0..=(self.to / step) as u32).map(|index| f64::from(index) * step).collect()
    }
}

/// A number as people say it: three digits that count, and a prefix if it is large.
pub(super) fn short(value: f64) -> String {
    let (value, prefix) = match value.abs() {
        size if size >= 999_500.0 => (value / 1e6, " million"),
        _ => (value, ""),
    };
    let digits = match value.abs() {
        size if size >= 99.95 => 0,
        size if size >= 9.995 => 1,
        _ => 2,
    };
    let text = format!("{value:.digits$}");
    let text = if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        grouped(&text)
    };
    format!("{text}{prefix}")
}

/// Digits with a comma before each group of three, if there are more than four.
fn grouped(digits: &str) -> String {
    if digits.len() <= 4 {
        return digits.to_owned();
    }
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Writes the picture.
pub(super) fn write(html: &mut String, unit: &str, bars: &[BarView]) {
    let scale = Scale::new(bars);
    let has_marks = bars.iter().any(|bar| bar.published.is_some());
    let log = if scale.is_log { "; log scale" } else { "" };
    let marks = if has_marks { "; \u{25c7} published" } else { "" };
    put(
        html,
        format_args!(
            "<table class=\"bars\"><caption>{}{log}{marks}</caption><tbody>\n",
            escape(unit)
        ),
    );
    let lines: String = scale.ticks().iter().map(|tick| line(scale.place(*tick))).collect();
    for BarView { label, role, value, published } in bars {
        let (label, role, width) = (escape(label), escape(role), scale.place(*value));
        put(
            html,
            format_args!(
                "<tr class=\"{role}\"><th scope=\"row\">{label}</th><td><div class=\"track\">{lines}\
                 <span class=\"fill\" style=\"width:{width:.2}%\"></span>"
            ),
        );
        if let Some((published, _)) = published {
            let place = scale.place(*published);
            put(html, format_args!("<span class=\"mark\" style=\"left:{place:.2}%\"></span>"));
        }
        put(html, format_args!("</div></td><td class=\"number\">{}", short(*value)));
        if let Some((_, said)) = published {
            put(html, format_args!("<small>published {}</small>", escape(said)));
        }
        if let Some(text) = compared(bars, *value) {
            put(html, format_args!("<small>{text}</small>"));
        }
        html.push_str("</td></tr>\n");
    }
    html.push_str("<tr class=\"axis\" aria-hidden=\"true\"><td></td><td><div class=\"track\">");
    for tick in scale.ticks() {
        let place = scale.place(tick);
        put(html, format_args!("<span style=\"left:{place:.2}%\">{}</span>", short(tick)));
    }
    html.push_str("</div></td><td></td></tr></tbody></table>\n");
}

/// How much less or more a value is than that before the change, if it is half as much again.
fn compared(bars: &[BarView], value: f64) -> Option<String> {
    let before = bars.iter().find(|bar| bar.role == "before")?.value;
    let (ratio, word) =
        if value < before { (before / value, "less") } else { (value / before, "more") };
    let says_much = ratio.is_finite() && ratio >= 1.5;
    let digits = usize::from(ratio < 9.95);
    says_much.then(|| format!("{ratio:.digits$} \u{d7} {word}"))
}

fn line(place: f64) -> String {
    format!("<i style=\"left:{place:.2}%\"></i>")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(value: f64, published: Option<f64>) -> BarView {
        let published = published.map(|value| (value, value.to_string()));
        BarView { label: "a < b".to_owned(), role: "neap".to_owned(), value, published }
    }

    #[test]
    fn values_that_differ_much_get_a_logarithmic_scale() {
        let wide = Scale::new(&[bar(350.0, Some(132.0)), bar(0.49, None)]);
        assert!(wide.is_log && wide.from == 0.1);
        assert_eq!(wide.ticks(), [0.1, 1.0, 10.0, 100.0]);
        let near = Scale::new(&[bar(360.0, None), bar(344.0, None)]);
        assert!(!near.is_log && near.place(0.0) == 0.0 && near.place(360.0) > 90.0);
        assert_eq!(near.ticks(), [0.0, 100.0, 200.0, 300.0]);
        for odd in [vec![], vec![bar(0.0, None)], vec![bar(0.0, None), bar(1e9, Some(0.0))]] {
            let mut html = String::new();
            write(&mut html, "ms", &odd);
            assert!(!html.contains("NaN") && !html.contains("inf"), "{html}");
            assert!(!html.contains("a < b"));
        }
    }

    #[test]
    fn numbers_are_short() {
        let said = [0.0, 0.49, 35.36, 350.2, 1_407.0, 20_936.0, 1_657_816.0, 811_080.0].map(short);
        let short = ["0", "0.49", "35.4", "350", "1407", "20,936", "1.66 million", "811,080"];
        assert_eq!(said, short);
    }
}
