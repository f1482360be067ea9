//! Plots as inline SVG, drawn without script; colours come from the page's style.

use core::fmt::Write;

/// Units of the drawing; it is scaled to the width of its place.
const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 250.0;
/// Room for the numbers.
const LEFT: f64 = 50.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 40.0;

/// Points of a line at the most; more are joined.
const POINTS: usize = 240;

/// Colours of the page's style.
pub(super) const COLOURS: usize = 8;

/// Line or layer of a plot.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Name in the legend.
    pub name: String,
    /// Points, ascending in `x`.
    pub points: Vec<(f64, f64)>,
}

/// Way in which lines are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Lines by themselves. Of points that are too close the mean is drawn.
    Lines,
    /// Lines by themselves. Of points that are too close the largest is drawn.
    Peaks,
    /// Layers, each on top of those before it. All lines have the same `x`.
    Stacked,
    /// Distributions: shares from 0 to 1 over a logarithmic axis.
    Cdf,
}

/// Plot. Lines beyond the eighth are drawn in the colours of the first.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    /// The title of the plot.
    pub title: String,
    /// The label of the horizontal axis, with its unit.
    pub x: &'static str,
    /// The label of the vertical axis. Bytes get a prefix.
    pub y: &'static str,
    /// How the lines are drawn.
    pub shape: Shape,
    /// The lines, in the order of the legend.
    pub lines: Vec<Line>,
}

/// The text with what HTML does not take replaced.
pub(super) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            other => safe.push(other),
        }
    }
    safe
}

/// At most [`POINTS`] of these points.
fn thinned(points: &[(f64, f64)], shape: Shape) -> Vec<(f64, f64)> {
    let step = points.len().div_ceil(POINTS).max(1);
    let join = |bin: &[(f64, f64)]| {
        let len = bin.len() as f64;
        let x = bin.iter().map(|point| point.0).sum::<f64>() / len;
        let y = match shape {
            Shape::Peaks => bin.iter().map(|point| point.1).fold(f64::MIN, f64::max),
            _ => bin.iter().map(|point| point.1).sum::<f64>() / len,
        };
        (x, y)
    };
    points.chunks(step).map(join).collect()
}

/// The distance of the ticks of an axis of this length: 1, 2 or 5 times a power of ten.
fn tick(length: f64) -> f64 {
    let rough = (length / 5.0).max(1e-9);
    let power = 10f64.powi(rough.log10().floor() as i32);
    let fits = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * power >= rough * 0.999);
    fits.unwrap_or(10.0) * power
}

/// A number of an axis, without digits that say nothing.
fn number(value: f64) -> String {
    let text = format!("{value:.4}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text.is_empty() || text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// A divisor and the prefix for it.
fn prefix(max: f64) -> (f64, &'static str) {
    match max {
        max if max >= 2e9 => (1e9, "G"),
        max if max >= 2e6 => (1e6, "M"),
        max if max >= 2e3 => (1e3, "k"),
        _ => (1.0, ""),
    }
}

/// From values to places in the drawing.
#[derive(Clone, Copy)]
struct Frame {
    x: (f64, f64),
    y: f64,
    is_log: bool,
}

impl Frame {
    fn x(&self, value: f64) -> f64 {
        let share = if self.is_log {
            (value.max(self.x.0) / self.x.0).ln() / (self.x.1 / self.x.0).ln()
        } else {
            (value - self.x.0) / (self.x.1 - self.x.0)
        };
        LEFT + share * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - value / self.y * (HEIGHT - TOP - BOTTOM)
    }

    fn x_ticks(&self) -> Vec<f64> {
        if self.is_log {
            let first = self.x.0.log10().ceil() as i32;
            let last = self.x.1.log10().floor() as i32;
            return (first..=last).map(|power| 10f64.powi(power)).collect();
        }
        let step = tick(self.x.1 - self.x.0);
        let first = (self.x.0 / step).ceil() as i64;
        let last = (self.x.1 / step * 1.0001).floor() as i64;
        (first..=last).map(|index| index as f64 * step).collect()
    }
}

impl Plot {
    fn lines(&self) -> Vec<Line> {
        let lines = self.lines.iter().filter(|line| line.points.len() > 1);
        let mut lines: Vec<Line> = match self.shape {
            Shape::Cdf => lines.cloned().collect(),
            shape => lines
                .map(|line| Line { name: line.name.clone(), points: thinned(&line.points, shape) })
                .collect(),
        };
        if self.shape == Shape::Stacked {
            for upper in 1..lines.len() {
                let (below, above) = lines.split_at_mut(upper);
                for (own, under) in above[0].points.iter_mut().zip(&below[upper - 1].points) {
                    own.1 += under.1;
                }
            }
        }
        lines
    }

    /// Its axes, and the largest value.
    fn frame(&self, lines: &[Line]) -> Frame {
        let points = || lines.iter().flat_map(|line| &line.points);
        let most = points().map(|point| point.1).fold(0.0, f64::max);
        let last = points().map(|point| point.0).fold(f64::MIN_POSITIVE, f64::max);
        if self.shape == Shape::Cdf {
            let first = points().map(|point| point.0).filter(|&x| x > 0.0).fold(last, f64::min);
            // At least a decade is shown, so that the axis has numbers.
            let first = 10f64.powf(first.log10().floor()).max(last / 1e6);
            let last = 10f64.powf(last.log10().ceil()).max(first * 10.0);
            return Frame { x: (first, last), y: 1.0, is_log: true };
        }
        Frame { x: (0.0, last), y: if most > 0.0 { most * 1.05 } else { 1.0 }, is_log: false }
    }

    /// Returns the figure as SVG; empty if there is nothing to draw.
    pub fn to_svg(&self) -> String {
        let lines = self.lines();
        if lines.is_empty() {
            return String::new();
        }
        let frame = self.frame(&lines);
        let title = escape(&self.title);
        let mut svg = format!(
            "<figure><figcaption>{title}</figcaption>\
             <svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\">"
        );
        self.draw_axes(&mut svg, frame);
        for (index, line) in lines.iter().enumerate() {
            let mut path = String::new();
            for (step, &(x, y)) in line.points.iter().enumerate() {
                let command = if step == 0 { 'M' } else { 'L' };
                put(&mut path, format_args!("{command}{:.1} {:.1}", frame.x(x), frame.y(y)));
            }
            let colour = index % COLOURS;
            if self.shape == Shape::Stacked {
                let under = index.checked_sub(1).map(|under| &lines[under].points);
                for (step, &(x, _)) in line.points.iter().enumerate().rev() {
                    let floor =
                        under.and_then(|under| under.get(step)).map_or(0.0, |point| point.1);
                    put(&mut path, format_args!("L{:.1} {:.1}", frame.x(x), frame.y(floor)));
                }
                put(&mut svg, format_args!("<path class=\"a c{colour}\" d=\"{path}Z\"/>"));
            } else {
                put(&mut svg, format_args!("<path class=\"l c{colour}\" d=\"{path}\"/>"));
            }
        }
        svg.push_str("</svg><ul>");
        for (index, line) in lines.iter().enumerate() {
            let (name, colour) = (escape(&line.name), index % COLOURS);
            put(&mut svg, format_args!("<li class=\"k{colour}\">{name}</li>"));
        }
        svg.push_str("</ul></figure>\n");
        svg
    }

    fn draw_axes(&self, svg: &mut String, frame: Frame) {
        let (floor, edge) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        let (divisor, prefix) = match self.shape {
            Shape::Cdf => (1.0, ""),
            _ => prefix(if self.y == "bytes" || self.y == "per second" { frame.y } else { 0.0 }),
        };
        let step = tick(frame.y / divisor);
        let count = (frame.y / divisor / step * 1.0001).floor() as u32;
        for index in 0..=count {
            let value = f64::from(index) * step;
            let (y, text) = (frame.y(value * divisor), number(value));
            put(svg, format_args!("<path class=\"g\" d=\"M{LEFT} {y:.1}H{edge}\"/>"));
            let (x, y) = (LEFT - 5.0, y + 4.0);
            put(svg, format_args!("<text class=\"e\" x=\"{x}\" y=\"{y:.1}\">{text}</text>"));
        }
        for value in frame.x_ticks() {
            let (x, text) = (frame.x(value), number(value));
            put(svg, format_args!("<path class=\"g\" d=\"M{x:.1} {TOP}V{floor}\"/>"));
            let y = floor + 15.0;
            put(svg, format_args!("<text class=\"m\" x=\"{x:.1}\" y=\"{y}\">{text}</text>"));
        }
        let (x, y) = (LEFT.midpoint(edge), HEIGHT - 6.0);
        put(svg, format_args!("<text class=\"m\" x=\"{x}\" y=\"{y}\">{}</text>", escape(self.x)));
        let unit = match (self.y, prefix) {
            ("bytes", prefix) => format!("{prefix}B"),
            (other, "") => other.to_owned(),
            (other, prefix) => format!("{prefix} {other}"),
        };
        let y = TOP.midpoint(floor);
        put(
            svg,
            format_args!(
                "<text class=\"m\" transform=\"translate(11 {y})rotate(-90)\">{unit}</text>"
            ),
        );
    }
}

pub(super) fn put(text: &mut String, what: core::fmt::Arguments<'_>) {
    text.write_fmt(what).expect("a string takes all");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, values: &[f64]) -> Line {
        let points = values.iter().enumerate().map(|(x, &y)| (x as f64, y)).collect();
        Line { name: name.to_owned(), points }
    }

    #[test]
    fn layers_stand_on_each_other_and_peaks_survive_thinning() {
        let lines = vec![line("one", &[1.0, 2.0, 3.0]), line("two", &[10.0, 10.0, 0.0])];
        let (title, x, y) = ("a < b".to_owned(), "ms", "bytes");
        let plot = Plot { title, x, y, shape: Shape::Stacked, lines };
        let tops: Vec<f64> = plot.lines()[1].points.iter().map(|point| point.1).collect();
        assert_eq!(tops, [11.0, 12.0, 3.0]);
        let svg = plot.to_svg();
        assert!(svg.contains("a &lt; b") && !svg.contains("NaN") && !svg.contains("inf"));

        let mut values = vec![1.0; 10_000];
        values[5_000] = 100.0;
        let long = line("long", &values);
        let peak = |shape| thinned(&long.points, shape).iter().map(|p| p.1).fold(0.0, f64::max);
        assert_eq!(peak(Shape::Peaks), 100.0);
        assert!(peak(Shape::Lines) < 10.0);
        assert!(thinned(&long.points, Shape::Peaks).len() <= POINTS);
    }

    #[test]
    fn ticks_are_round_and_few() {
        for length in [0.0003, 0.7, 1.0, 3.3, 1000.0, 47_000.0] {
            let count = length / tick(length);
            assert!((1.9..=5.1).contains(&count), "{length}: {count} ticks");
        }
        assert_eq!(
            (number(0.5), number(20.0), number(0.0)),
            ("0.5".into(), "20".into(), "0".into())
        );
    }

    #[test]
    fn odd_data_gives_sound_drawings() {
        for points in [vec![(0.0, 0.0), (0.0, 0.0)], vec![(0.0, 0.0), (1e-7, 1.0)], vec![]] {
            for shape in [Shape::Lines, Shape::Peaks, Shape::Stacked, Shape::Cdf] {
                let lines = vec![Line { name: String::new(), points: points.clone() }];
                let svg = Plot { title: String::new(), x: "ms", y: "", shape, lines }.to_svg();
                assert!(
                    !svg.contains("NaN") && !svg.contains("inf"),
                    "{shape:?} {points:?}: {svg}"
                );
            }
        }
    }
}
