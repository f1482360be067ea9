//! Page for people: text, tables and plots in one file that needs no other.

use super::plot::{Line, Plot, Shape, escape, put};
use super::record::{Quantity, Recording, Track};
use core::fmt::Display;

/// Lines of one plot, and stacks of one case, at the most: those with the largest means.
const LINES: usize = 8;
const STACKS: usize = 4;

/// Light and dark, phone and paper.
const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1b1f24;--dim:#59636e;--paper:#fff;--rule:#d5dae0;--bad:#b3261e;--good:#1a7f37;\
--0:#0072b2;--1:#d55e00;--2:#009e73;--3:#cc79a7;--4:#e69f00;--5:#56b4e9;--6:#8c6d31;--7:#6a6a6a}\
@media(prefers-color-scheme:dark){:root{--ink:#e6e8eb;--dim:#9aa4ae;--paper:#14171a;--rule:#363c43;--bad:#ff8a80;--good:#7ddc94;\
--0:#4aa8e0;--1:#ff8c42;--6:#c7a35a;--7:#aaa}}\
*{box-sizing:border-box}\
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:70rem;margin:0 auto;padding:1rem}\
h1{font-size:1.5rem;line-height:1.2;margin:.5rem 0}h2{font-size:1.2rem;border-top:1px solid var(--rule);padding-top:1rem;margin:1.5rem 0 .5rem}\
p{max-width:45rem;margin:.5rem 0}\
.t{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.9rem}\
th,td{padding:.2rem .7rem;border-bottom:1px solid var(--rule);text-align:right;white-space:nowrap}\
th:first-child,td:first-child{text-align:left;padding-left:0}th{color:var(--dim);font-weight:600}\
.v{padding-left:0;list-style:none}.v li:before{content:'\\2713  ';color:var(--good)}\
.v .n{color:var(--bad)}.v .n:before{content:'\\2717  ';color:var(--bad)}\
.p{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,22rem),1fr));gap:1rem}\
figure{margin:0;break-inside:avoid;min-width:0}figcaption{font-weight:600}\
svg{width:100%;height:auto;display:block}\
svg text{font-size:13px;fill:var(--dim)}.e{text-anchor:end}.m{text-anchor:middle}\
.g{stroke:var(--rule);stroke-width:.7;fill:none}.l{fill:none;stroke-width:1.6;stroke-linejoin:round}.a{stroke:none;opacity:.85}\
figure ul{list-style:none;margin:.2rem 0;padding:0;font-size:.85rem;display:flex;flex-wrap:wrap;gap:.1rem .9rem}\
figure li:before{content:'';display:inline-block;width:.8em;height:.8em;margin-right:.35em;background:var(--k);\
print-color-adjust:exact;-webkit-print-color-adjust:exact}\
@media print{:root{color-scheme:light}body{max-width:none;font-size:11pt;padding:0}h2{break-after:avoid}.p{grid-template-columns:1fr 1fr}\
.t{overflow:visible}}";

/// One run on a page.
#[derive(Clone, Debug)]
pub struct Case<'a> {
    /// Values that distinguish the run from others; empty if it is the only one.
    pub name: String,
    /// Recording that is drawn.
    pub recording: &'a Recording,
}

/// Page that is being made.
pub struct Page {
    html: String,
}

impl Page {
    /// Begins a page.
    pub fn new(title: &str) -> Self {
        let mut style = STYLE.to_owned();
        for colour in 0..super::plot::COLOURS {
            let rules = format_args!(
                ".l.c{colour}{{stroke:var(--{colour})}}.a.c{colour}{{fill:var(--{colour})}}\
                 .k{colour}{{--k:var(--{colour})}}"
            );
            put(&mut style, rules);
        }
        let title = escape(title);
        let html = format!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
             <title>{title}</title><style>{style}</style></head>\n<body><h1>{title}</h1>\n"
        );
        Self { html }
    }

    /// Begins a section.
    pub fn heading(&mut self, text: &str) {
        put(&mut self.html, format_args!("<h2>{}</h2>\n", escape(text)));
    }

    /// Adds a paragraph.
    pub fn text(&mut self, text: &str) {
        put(&mut self.html, format_args!("<p>{}</p>\n", escape(text)));
    }

    /// Adds a table. Its first column is text.
    pub fn table<C: Display>(&mut self, head: &[&str], rows: &[Vec<C>]) {
        self.html.push_str("<div class=\"t\"><table><thead><tr>");
        for cell in head {
            put(&mut self.html, format_args!("<th>{}</th>", escape(cell)));
        }
        self.html.push_str("</tr></thead><tbody>\n");
        for row in rows {
            self.html.push_str("<tr>");
            for cell in row {
                put(&mut self.html, format_args!("<td>{}</td>", escape(&cell.to_string())));
            }
            self.html.push_str("</tr>\n");
        }
        self.html.push_str("</tbody></table></div>\n");
    }

    /// Adds the list of expectations that hold and that do not.
    pub fn verdicts<'a>(&mut self, verdicts: impl IntoIterator<Item = (&'a str, bool)>) {
        let mut verdicts = verdicts.into_iter().peekable();
        if verdicts.peek().is_none() {
            return;
        }
        self.html.push_str("<ul class=\"v\">");
        for (text, holds) in verdicts {
            let class = if holds { "" } else { " class=\"n\"" };
            put(&mut self.html, format_args!("<li{class}>{}</li>", escape(text)));
        }
        self.html.push_str("</ul>\n");
    }

    /// Adds all plots that these runs have data for: each quantity in one plot for all runs, and
    /// for each run the places of its applications' bytes.
    pub fn cases(&mut self, cases: &[Case<'_>]) {
        self.html.push_str("<div class=\"p\">");
        for (title, quantity, unit, shape) in OVER_TIME {
            let tracks = cases
                .iter()
                .flat_map(|case| case.recording.of(quantity).map(move |track| (case, track)));
            let lines = largest(tracks.collect());
            self.plot(&Plot { title: title.to_owned(), x: "ms", y: unit, shape, lines });
        }
        for case in cases {
            stacks(case).iter().for_each(|plot| self.plot(plot));
        }
        let title = "Share of all that took at most so long".to_owned();
        let lines = cases.iter().flat_map(|case| {
            case.recording.distributions.iter().map(|times| Line {
                name: label(case, &times.subject),
                points: times.points.clone(),
            })
        });
        let lines: Vec<Line> = lines.take(LINES).collect();
        self.plot(&Plot { title, x: "ms", y: "share", shape: Shape::Cdf, lines });
        self.html.push_str("</div>\n");
    }

    fn plot(&mut self, plot: &Plot) {
        self.html.push_str(&plot.to_svg());
    }

    /// Returns the whole page.
    pub fn finish(mut self) -> String {
        self.html.push_str("</body></html>\n");
        self.html
    }
}

const OVER_TIME: [(&str, Quantity, &str, Shape); 8] = [
    ("Queue delay below the socket, from TCP to the wire", Quantity::Below, "ms", Shape::Peaks),
    ("Smoothed round-trip time", Quantity::Srtt, "ms", Shape::Lines),
    ("Congestion windows", Quantity::Cwnd, "segments", Shape::Lines),
    ("Queue at the hop", Quantity::Backlog, "bytes", Shape::Lines),
    ("Frames with data, super-frames once", Quantity::Frames, "per second", Shape::Lines),
    ("Goodput", Quantity::Goodput, "Mbit/s", Shape::Lines),
    ("Wake-ups of applications", Quantity::Wakeups, "per second", Shape::Lines),
    ("Memory of sockets", Quantity::Memory, "bytes", Shape::Lines),
];

fn label(case: &Case<'_>, subject: &str) -> String {
    if case.name.is_empty() { subject.to_owned() } else { format!("{}: {subject}", case.name) }
}

fn line(name: String, ms: &[f64], track: &Track) -> Line {
    Line { name, points: ms.iter().copied().zip(track.values.iter().copied()).collect() }
}

/// The lines with the largest means, in the order in which they came.
fn largest(mut tracks: Vec<(&Case<'_>, &Track)>) -> Vec<Line> {
    if tracks.len() > LINES {
        let mut sums: Vec<f64> = tracks.iter().map(|(_, track)| sum(track)).collect();
        sums.sort_by(|a, b| b.total_cmp(a));
        tracks.retain(|(_, track)| sum(track) >= sums[LINES - 1]);
        tracks.truncate(LINES);
    }
    let lines = tracks
        .into_iter()
        .map(|(case, track)| line(label(case, &track.subject), &case.recording.ms, track));
    lines.collect()
}

fn sum(track: &Track) -> f64 {
    track.values.iter().sum()
}

/// Where the bytes of the applications are.
fn stacks(case: &Case<'_>) -> Vec<Plot> {
    let recording = case.recording;
    let layers = [
        (Quantity::InFlight, "in flight"),
        (Quantity::Device, "device"),
        (Quantity::Qdisc, "qdisc"),
        (Quantity::Unsent, "unsent"),
    ];
    let mut apps: Vec<(f64, &str)> = Vec::new();
    for track in layers.iter().flat_map(|(quantity, _)| recording.of(*quantity)) {
        match apps.iter_mut().find(|(_, subject)| *subject == track.subject) {
            Some((total, _)) => *total += sum(track),
            None => apps.push((sum(track), &track.subject)),
        }
    }
    apps.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    apps.truncate(STACKS);
    let plot = |(_, subject): (f64, &str)| {
        let track = |quantity| {
            recording.tracks.iter().find(|t| t.quantity == quantity && t.subject == subject)
        };
        let lines = layers.iter().filter_map(|(quantity, name)| {
            Some(line((*name).to_owned(), &recording.ms, track(*quantity)?))
        });
        let title = format!("Where the bytes are: {}", label(case, subject));
        Plot { title, x: "ms", y: "bytes", shape: Shape::Stacked, lines: lines.collect() }
    };
    apps.into_iter().map(plot).collect()
}
