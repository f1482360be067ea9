//! Page for people: pictures, charts and tables in one file that needs no other.
//!
//! What can be said without charts is written here as text. The charts are drawn by the page's own
//! script, from series that the page carries. All of it is also well-formed XML.

mod bars;
mod compare;
mod encode;

pub use bars::BarView;

use super::record::Recording;
use compare::Comparison;
use core::fmt::{Display, Write};

/// Parts of the script, in the order in which they need each other.
const SCRIPT: [&str; 5] = [
    include_str!("page/data.js"),
    include_str!("page/scale.js"),
    include_str!("page/chart.js"),
    include_str!("page/flow.js"),
    include_str!("page/section.js"),
];
const STYLE: &str = include_str!("page/style.css");
/// What the page may load: nothing.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";

/// One run on a page.
#[derive(Clone, Debug)]
pub struct Case<'a> {
    /// What distinguishes the run from those that are shown beside it.
    pub name: String,
    /// Class that gives the run its colour: `before`, `published`, `today`, `neap`; or empty.
    pub role: &'a str,
    /// Other parameters of the run with their values, of which one combination is shown at a time.
    /// All runs of a comparison have the same parameters.
    pub picks: Vec<(String, String)>,
    /// Recording that is drawn.
    pub recording: &'a Recording,
}

/// Opening of one experiment.
#[derive(Clone, Debug)]
pub struct Card<'a> {
    /// Name of the experiment.
    pub heading: &'a str,
    /// What it shows, in one sentence.
    pub sentence: &'a str,
    /// What the bars show, and its unit.
    pub what: String,
    /// Bars, from top to bottom.
    pub bars: Vec<BarView>,
    /// What follows the bars.
    pub more: String,
}

/// Page that is being made.
pub struct Page {
    html: String,
    sections: usize,
}

impl Page {
    /// Begins a page.
    pub fn new(title: &str) -> Self {
        let title = escape(title);
        let html = format!(
            "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\"><head>\
             <meta charset=\"utf-8\"/>\
             <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"/>\
             <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\"/>\
             <title>{title}</title>\n<style>/*<![CDATA[*/\n{STYLE}/*]]>*/</style></head>\n\
             <body><main><h1>{title}</h1>\n"
        );
        Self { html, sections: 0 }
    }

    /// Adds a card for each experiment, each with a link to the section of its number.
    pub fn cards(&mut self, cards: &[Card<'_>]) {
        self.html.push_str("<div class=\"stories\">\n");
        for (index, Card { heading, sentence, what, bars, more }) in cards.iter().enumerate() {
            let [heading, sentence, more] = [*heading, *sentence, more.as_str()].map(escape);
            let section = index + 1;
            put(&mut self.html, format_args!("<article class=\"story\"><h2>{heading}</h2>\n"));
            bars::write(&mut self.html, what, bars);
            put(
                &mut self.html,
                format_args!(
                    "<p>{sentence}</p><p class=\"more\">{more} <a href=\"#section-{section}\">Look closer</a></p>\
                     </article>\n"
                ),
            );
        }
        self.html.push_str("</div>\n");
    }

    /// Adds bars for each of these figures.
    pub fn bars(&mut self, figures: &[(&str, Vec<BarView>)]) {
        self.html.push_str("<div class=\"pictures\">\n");
        figures.iter().for_each(|(unit, bars)| bars::write(&mut self.html, unit, bars));
        self.html.push_str("</div>\n");
    }

    /// Begins a section.
    pub fn heading(&mut self, text: &str) {
        self.sections += 1;
        let number = self.sections;
        put(&mut self.html, format_args!("<h2 id=\"section-{number}\">{}</h2>\n", escape(text)));
    }

    /// Adds a paragraph.
    pub fn text(&mut self, text: &str) {
        put(&mut self.html, format_args!("<p>{}</p>\n", escape(text)));
    }

    /// Adds a table that is folded until somebody opens it. Its first column is text.
    pub fn table<C: Display>(&mut self, title: &str, head: &[&str], rows: &[Vec<C>]) {
        put(
            &mut self.html,
            format_args!(
                "<details><summary>{}</summary><div class=\"scroll\" tabindex=\"0\" role=\"group\">\
                 <table class=\"plain\"><thead><tr>",
                escape(title)
            ),
        );
        for cell in head {
            put(&mut self.html, format_args!("<th scope=\"col\">{}</th>", escape(cell)));
        }
        self.html.push_str("</tr></thead><tbody>\n");
        for row in rows {
            self.html.push_str("<tr>");
            for cell in row {
                put(&mut self.html, format_args!("<td>{}</td>", escape(&cell.to_string())));
            }
            self.html.push_str("</tr>\n");
        }
        self.html.push_str("</tbody></table></div></details>\n");
    }

    /// Adds a list that is folded until somebody opens it; nothing if it is empty. Those entries
    /// that are marked stand out.
    pub fn list<'a>(&mut self, title: &str, entries: impl IntoIterator<Item = (&'a str, bool)>) {
        let mut entries = entries.into_iter().peekable();
        if entries.peek().is_none() {
            return;
        }
        let title = escape(title);
        put(
            &mut self.html,
            format_args!("<details><summary>{title}</summary><ul class=\"verdicts\">\n"),
        );
        for (text, is_marked) in entries {
            let class = if is_marked { " class=\"fails\"" } else { "" };
            put(&mut self.html, format_args!("<li{class}>{}</li>\n", escape(text)));
        }
        self.html.push_str("</ul></details>\n");
    }

    /// Adds charts of these runs side by side: each quantity on one scale. Of the parameters that
    /// are picked, these values are shown first.
    pub fn compare(&mut self, cases: &[Case<'_>], picked: &[(String, String)]) {
        if cases.is_empty() {
            return;
        }
        let data = Comparison::new(cases, picked);
        let data = serde_json::to_string(&data).expect("names and numbers");
        // Neither HTML nor XML looks for anything but these in a script.
        let data = data.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026");
        put(
            &mut self.html,
            format_args!(
                "<div class=\"comparison\"><noscript><p>The charts need JavaScript.</p></noscript>\
                 <script type=\"application/json\">{data}</script></div>\n"
            ),
        );
    }

    /// Returns the whole page.
    pub fn finish(mut self) -> String {
        self.html.push_str("</main><script>//<![CDATA[\n\"use strict\";\n(() => {\n");
        SCRIPT.iter().for_each(|part| self.html.push_str(part));
        self.html.push_str("})();\n//]]></script></body></html>\n");
        self.html
    }
}

/// The text with what HTML does not take replaced.
fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            // XML has no other control characters.
            control if control.is_control() && !matches!(control, '\n' | '\t') => safe.push(' '),
            other => safe.push(other),
        }
    }
    safe
}

fn put(text: &mut String, what: core::fmt::Arguments<'_>) {
    text.write_fmt(what).expect("a string takes all");
}
