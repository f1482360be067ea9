//! The pages of `--html` in Chromium: what one does with them, and that they fit.

mod browser;
#[path = "../common/folder.rs"]
mod folder;

use browser::Browser;
use folder::Folder;
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Names that HTML and scripts have to be kept from, and two runs that differ much.
const SCENARIO: &str = r#"about = "an <upload> & a \"game\"</script>"
look_at = "<b>&amp;"
duration = "400ms"
[host.home]
qdisc = "pfifo_fast"
[host.server]
[link.uplink]
ends = ["home", "server"]
rate = "20mbit"
delay = "5ms"
[app."<i>up&load</i>"]
kind = "bulk"
from = "home"
to = "server"
[app.game]
kind = "request-response"
from = "home"
to = "server"
request = 200
response = 200
[sweep]
"host.home.sysctl.neap.tcp_small_queues" = [0, 1]
[[expect]]
figure = "app.game.latency_p50_ms"
at_least = 1
"#;

/// A page and a browser in which it is open.
struct Open {
    browser: Browser,
    page: PathBuf,
    _folder: Folder,
}

/// Writes a page and opens it; nothing if there is no browser here.
fn open(name: &str, scenario: &str, arguments: &[&str]) -> Option<Open> {
    let folder = Folder::new(name);
    let Some(mut browser) = Browser::start(&folder.path().join("browser")) else {
        writeln!(std::io::stderr(), "SKIP: no Chromium, or no right to make a namespace").ok()?;
        return None;
    };
    folder.write("own.toml", scenario);
    let output = Command::new(env!("CARGO_BIN_EXE_neap"))
        .current_dir(folder.path())
        .arg("lab")
        .args(arguments)
        .args(["--html", "page.html"])
        .output()
        .expect("neap runs");
    let error = String::from_utf8_lossy(&output.stderr);
    let page = folder.path().join("page.html");
    assert!(fs::metadata(&page).is_ok_and(|page| page.len() > 0), "{error}");
    browser.open(&page, 1600, 900);
    Some(Open { browser, page, _folder: folder })
}

fn sweep(name: &str) -> Option<Open> {
    open(name, SCENARIO, &["sweep", "own.toml", "--out", "own.jsonl"])
}

/// Charts over time that are drawn.
const CHARTS: &str = "[...document.querySelectorAll('.row')].filter((row) => \
    row.row.isSeen && row.row.axis.unit === 'ms' && !row.row.axis.isLog).flatMap((row) => \
    row.row.charts)";

impl Open {
    /// The place of the part `x` of the width of the first chart.
    fn place(&mut self, x: f64) -> [f64; 2] {
        let find = "(() => { const plot = document.querySelector('.chart > svg'); \
             plot.closest('.row').scrollIntoView(); \
             const { left, top, width, height } = plot.getBoundingClientRect(); \
             return [left, top, width, height]; })()";
        self.browser.evaluate(find);
        self.browser.settle();
        let place: Vec<f64> = serde_json::from_value(self.browser.evaluate(find)).expect("numbers");
        let chart = self.browser.evaluate(&format!(
            "(() => {{ const {{ x, svg }} = {CHARTS}[0]; const box = svg.getBoundingClientRect(); \
             return [box.left + 50, x.length, box.top]; }})()"
        ));
        let chart: Vec<f64> = serde_json::from_value(chart).expect("numbers");
        assert!(place.len() == 4 && chart[1] > 50.0, "{place:?}");
        [chart[0] + chart[1] * x, chart[2] + 60.0]
    }

    fn point(&mut self, x: f64) {
        let place = self.place(x);
        self.browser.pointer("mouseMoved", place, 0);
        self.browser.settle();
    }

    /// What part of the time is shown, and where the cursor is: the same in all charts.
    fn view(&mut self) -> [f64; 3] {
        let all = format!("{CHARTS}.map(({{ axis, x }}) => [x.from, x.to, axis.cursor])");
        let all: Vec<[f64; 3]> =
            serde_json::from_value(self.browser.evaluate(&all)).expect("views");
        assert!(all.len() > 1 && all.iter().all(|view| *view == all[0]), "{all:?}");
        all[0]
    }

    /// Where the cursors of all charts are drawn, each once.
    fn cursors(&mut self) -> Vec<String> {
        let all = format!(
            "[...new Set({CHARTS}.map(({{ cursor }}) => cursor.getAttribute('d').split('V')[0]))]"
        );
        serde_json::from_value(self.browser.evaluate(&all)).expect("texts")
    }

    fn quiet(&mut self) {
        let complaints = self.browser.complaints();
        assert!(complaints.is_empty(), "{complaints:#?}");
    }
}

#[test]
fn a_page_is_well_formed_needs_nothing_and_complains_of_nothing() {
    let Some(mut open) = sweep("page-form") else { return };
    let text = fs::read_to_string(&open.page).expect("the page");
    for outside in ["src=", "url(", "@import", "https:", "fetch(", "XMLHttpRequest"] {
        assert!(!text.contains(outside), "the page has {outside}");
    }
    assert!(!text.contains("<i>up") && !text.contains("<upload>"), "names are escaped");
    let parse = format!(
        "new DOMParser().parseFromString({}, 'application/xhtml+xml')\
         .querySelector('parsererror')?.textContent ?? ''",
        json!(text.replacen("<!DOCTYPE html>", "", 1))
    );
    assert_eq!(open.browser.text(&parse), "");
    assert_eq!(open.browser.text("document.title"), "an <upload> & a \"game\"</script>");
    let heads =
        open.browser.text("[...document.querySelectorAll('h3')].map((h) => h.textContent).join()");
    assert!(heads.contains("Where the bytes of <i>up&load</i> are"), "{heads}");
    open.quiet();
}

#[test]
fn the_cursor_shows_one_moment_in_all_charts_and_in_the_flows_picture() {
    let Some(mut open) = sweep("page-hover") else { return };
    let picture = "document.querySelector('.flow').textContent";
    open.point(0.25);
    let [from, to, at] = open.view();
    assert!((at - (from + (to - from) * 0.25)).abs() < (to - from) * 0.01, "{from} {at} {to}");
    let (cursors, early) = (open.cursors(), open.browser.text(picture));
    assert_eq!(cursors.len(), 1, "{cursors:?}");
    let clock = open.browser.number("parseFloat(document.querySelector('output').textContent)");
    assert!((clock - at).abs() <= at * 0.01, "{clock} {at}");
    // What the legend reads is the sample at that time.
    let read = format!(
        "(() => {{ const {{ series, keys, unit }} = {CHARTS}[0]; const {{ xs, ys }} = series[0]; \
         const near = [...xs].reduce((best, x, index) => Math.abs(x - {at}) < Math.abs(xs[best] - {at}) \
         ? index : best, 0); return [ys[near], parseFloat(keys[0].value.textContent), unit]; }})()"
    );
    let read = open.browser.evaluate(&read);
    assert_eq!(read[2], "bytes");
    let (value, said) = (read[0].as_f64().expect("a number"), read[1].as_f64().expect("a number"));
    let scales = [1.0, 1e3, 1e6].map(|scale| (said * scale - value).abs() <= value * 0.01);
    assert!(scales.contains(&true), "{value} is told as {said}");
    open.point(0.9);
    assert_ne!(open.browser.text(picture), early);
    assert_ne!(open.cursors(), cursors);
    open.quiet();
}

#[test]
fn a_drag_zooms_all_charts_of_a_comparison_and_a_double_click_resets_them() {
    let Some(mut open) = sweep("page-zoom") else { return };
    let [first, last, _] = open.view();
    let (begin, end) = (open.place(0.2), open.place(0.6));
    open.browser.pointer("mouseMoved", begin, 0);
    open.browser.pointer("mousePressed", begin, 1);
    open.browser.pointer("mouseMoved", end, 1);
    open.browser.pointer("mouseReleased", end, 1);
    open.browser.settle();
    let [from, to, _] = open.view();
    let share = |at: f64| (at - first) / (last - first);
    assert!((share(from) - 0.2).abs() < 0.02 && (share(to) - 0.6).abs() < 0.02, "{from} {to}");
    for clicks in [1, 2] {
        open.browser.pointer("mousePressed", begin, clicks);
        open.browser.pointer("mouseReleased", begin, clicks);
    }
    open.browser.settle();
    assert_eq!(open.view()[..2], [first, last]);
    open.quiet();
}

#[test]
fn a_legend_hides_its_series_in_all_runs_and_a_button_changes_the_scale() {
    let Some(mut open) = sweep("page-toggle") else { return };
    let row = "document.querySelector('.row')";
    let layers = format!("{row}.querySelectorAll('.layer').length");
    let before = open.browser.number(&layers);
    let click = format!("{row}.querySelector('.key').click()");
    open.browser.evaluate(&click);
    open.browser.settle();
    assert!(open.browser.number(&layers) < before, "of {before} layers none is gone");
    let pressed = format!("{row}.querySelector('.key').getAttribute('aria-pressed')");
    assert_eq!(open.browser.text(&pressed), "false");
    open.browser.evaluate(&click);
    open.browser.settle();
    assert_eq!(open.browser.number(&layers), before);
    let labels =
        format!("[...{row}.querySelectorAll('.end')].map((text) => text.textContent).join()");
    let linear = open.browser.text(&labels);
    open.browser.evaluate(&format!("{row}.querySelector('.scale').click()"));
    open.browser.settle();
    assert_ne!(open.browser.text(&labels), linear);
    // All runs have the same scale.
    let scales =
        format!("new Set({row}.row.charts.map(({{ y }}) => `${{y.from}} ${{y.to}}`)).size");
    assert_eq!(open.browser.number(&scales), 1.0);
    assert_eq!(open.browser.number(&format!("{row}.querySelectorAll('.layer').length")), 0.0);
    open.quiet();
}

#[test]
fn keys_move_the_cursor_and_zoom() {
    let Some(mut open) = sweep("page-keys") else { return };
    open.browser.evaluate("document.querySelector('.chart').focus()");
    open.browser.press("Home");
    let [first, last, begin] = open.view();
    assert_eq!(begin, first);
    open.browser.press("ArrowRight");
    let moved = open.view()[2];
    assert!(moved > begin && moved < last);
    open.browser.press("End");
    assert_eq!(open.view()[2], last);
    open.browser.press("+");
    let [from, to, _] = open.view();
    assert!(to - from < (last - first) * 0.6);
    open.browser.press("Escape");
    assert_eq!(open.view()[..2], [first, last]);
    // The slider is the same cursor.
    open.browser.evaluate(
        "(() => { const slider = document.querySelector('.tools input'); slider.value = 500; \
         slider.dispatchEvent(new Event('input')); })()",
    );
    open.browser.settle();
    assert!((open.view()[2] - first.midpoint(last)).abs() < (last - first) * 0.01);
    let label = open.browser.text("document.querySelector('.chart').getAttribute('aria-label')");
    assert!(label.contains("Where the bytes of") && label.contains(" from "), "{label}");
    open.quiet();
}

/// What is wider than the window, tables that can be scrolled aside.
const CUT: &str = "[...document.querySelectorAll('main *')].filter((one) => \
    !one.closest('.scroll') && one.getBoundingClientRect().right > innerWidth + 0.5)\
    .map((one) => `${one.tagName} ${one.className.baseVal ?? one.className} ${one.textContent.slice(0, 40)}`)";

/// Keeps pictures in the folder that `NEAP_SCREENSHOTS` names, for `base64 -d`.
fn keep(open: &mut Open, name: &str) {
    let Some(folder) = std::env::var_os("NEAP_SCREENSHOTS") else { return };
    let height = open.browser.number("document.documentElement.scrollHeight");
    let width = open.browser.number("innerWidth");
    open.browser.resize(width as u32, (height as u32).min(8000));
    let picture = open.browser.call("Page.captureScreenshot", &json!({ "format": "png" }));
    let text = picture["data"].as_str().expect("base64");
    let file = Path::new(&folder).join(format!("{name}.png.base64"));
    fs::write(file, text).expect("the folder is there");
}

#[test]
fn nothing_is_cut_on_a_phone_a_tablet_and_a_desk_nor_in_the_dark_nor_on_paper() {
    let Some(mut open) = open_autosizing() else { return };
    for width in [400, 900, 1600] {
        for scheme in ["light", "dark"] {
            let media =
                json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
            open.browser.call("Emulation.setEmulatedMedia", &media);
            open.browser.open(&open.page.clone(), width, 900);
            let cut = open.browser.evaluate(CUT);
            assert_eq!(cut, json!([]), "{width} {scheme}");
            keep(&mut open, &format!("{width}-{scheme}"));
            open.browser.resize(width, 900);
        }
    }
    let background = "getComputedStyle(document.body).backgroundColor";
    let dark = open.browser.text(background);
    let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": "light" }] });
    open.browser.call("Emulation.setEmulatedMedia", &media);
    assert_ne!(open.browser.text(background), dark);
    let paper = open.browser.call("Page.printToPDF", &json!({ "preferCSSPageSize": true }));
    assert!(paper["data"].as_str().is_some_and(|data| data.len() > 10_000));
    // What was opened for the paper is closed again.
    let opened = "document.querySelectorAll('details[open]:not(.comparison details)').length";
    assert_eq!(open.browser.number(opened), 0.0);
    open.browser.evaluate("dispatchEvent(new Event('beforeprint'))");
    assert!(open.browser.number(opened) > 0.0);
    open.browser.evaluate("dispatchEvent(new Event('afterprint'))");
    assert_eq!(open.browser.number(opened), 0.0);
    open.quiet();
}

fn open_autosizing() -> Option<Open> {
    open("page-sizes", SCENARIO, &["sweep", "autosizing", "--out", "own.jsonl"])
}

#[test]
fn the_opening_of_an_experiment_shows_its_story() {
    let Some(mut open) =
        open("page-story", SCENARIO, &["sweep", "autosizing", "--out", "own.jsonl"])
    else {
        return;
    };
    let roles =
        "[...document.querySelectorAll('.story tbody tr')].map((row) => row.className).join()";
    assert_eq!(open.browser.text(roles), "before,published,today,neap,axis");
    let lost = "[...document.querySelectorAll('a')].filter((link) => \
         !document.querySelector(link.getAttribute('href'))).length";
    assert_eq!(open.browser.number(lost), 0.0, "links lead somewhere");
    // Bars are as long as their values are large, and published values are marked.
    let widths = "[...document.querySelectorAll('.story .fill')].map((bar) => bar.offsetWidth)";
    let widths: Vec<f64> = serde_json::from_value(open.browser.evaluate(widths)).expect("numbers");
    assert!(widths[0] > 2.0 * widths[1] && widths[3] > 10.0, "{widths:?}");
    assert_eq!(open.browser.number("document.querySelectorAll('.story .mark').length"), 2.0);
    // The gate that holds the flow is named, and why it had its rate.
    let gates = open.browser.text("document.querySelector('.flow tbody').textContent");
    assert!(gates.contains("congestion window"), "{gates}");
    let why = open.browser.text("document.querySelector('.whys').textContent");
    assert!(why.contains("The flow got") && why.contains("Longest pauses"), "{why}");
    open.quiet();
}

#[test]
fn a_hundred_thousand_samples_are_drawn_with_few_points_and_keep_their_peaks() {
    let fine = SCENARIO.replace("duration = \"400ms\"", "duration = \"400ms\"\nsample = \"4us\"");
    let Some(mut open) = open("page-points", &fine, &["run", "own.toml"]) else { return };
    let samples = format!("{CHARTS}[0].series[0].xs.length");
    let samples = open.browser.number(&samples);
    // A page carries some 260,000 values of a comparison.
    assert!(samples >= 7_000.0, "{samples} samples");
    let size = fs::metadata(&open.page).expect("the page").len();
    assert!(size < 3_000_000, "{size} bytes");
    let longest = format!(
        "Math.max(...{CHARTS}.flatMap(({{ lines }}) => [...lines.children])\
         .map((path) => path.getAttribute('d').split('L').length))"
    );
    let longest = open.browser.number(&longest);
    let width = open.browser.number(&format!("{CHARTS}[0].width"));
    assert!(longest <= 2.0 * width + 8.0, "{longest} points on {width} pixels");
    // The largest value of each line is the largest that is drawn.
    let peaks = format!(
        "{CHARTS}.filter(({{ kind }}) => kind === 'lines').flatMap(({{ drawings }}) => drawings)\
         .every(({{ one, ys }}) => Math.max(...ys) === one.ys.reduce((a, b) => Math.max(a, b)))"
    );
    assert_eq!(open.browser.evaluate(&peaks), Value::Bool(true));
    open.point(0.5);
    open.view();
    open.quiet();
}
