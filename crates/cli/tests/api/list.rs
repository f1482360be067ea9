//! From rustdoc's JSON to the lines of the list.

use public_api::Builder;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Paths of other crates, by which an item may be mentioned, and its path in `neap`.
type Paths = BTreeMap<String, String>;

/// The lines of `public-api` for one crate, in its order: an item, then its members and impls.
pub(crate) fn lines_of(json: &Path) -> Vec<String> {
    let api = Builder::from_rustdoc_json(json)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .build()
        .unwrap_or_else(|error| panic!("{}: {error}", json.display()));
    api.items().map(ToString::to_string).collect()
}

/// The list, and the paths of other crates that it mentions and that `neap` does not re-export.
pub(crate) fn list(neap: &Value, crates: &[Vec<String>]) -> (String, BTreeSet<String>) {
    let mut paths = Paths::new();
    collect_paths(neap, &neap["root"], "neap", &mut paths);
    let own: BTreeSet<String> = paths.values().cloned().collect();
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for lines in crates {
        for (subject, line) in lines_that_count(lines, &paths) {
            let line = translate(&line, &paths);
            let is_known = line.strip_prefix("pub use ").is_some_and(|path| own.contains(path));
            let group = groups.entry(translate(&subject, &paths)).or_default();
            if !is_known && !group.contains(&line) {
                group.push(line);
            }
        }
    }
    let list: Vec<String> = groups.into_values().flatten().collect();
    let unreachable = list.iter().flat_map(|line| foreign_paths(line)).collect();
    (list.join("\n") + "\n", unreachable)
}

/// Notes each re-exported item by the path where it is defined, and by that of its `use`.
fn collect_paths(document: &Value, id: &Value, module: &str, paths: &mut Paths) {
    let Some(items) = document["index"][id.to_string()]["inner"]["module"]["items"].as_array()
    else {
        return;
    };
    for id in items {
        let item = &document["index"][id.to_string()];
        if let Some(name) = item["name"].as_str() {
            collect_paths(document, id, &format!("{module}::{name}"), paths);
        }
        let used = &item["inner"]["use"];
        let Some(name) = used["name"].as_str() else { continue };
        let path = format!("{module}::{name}");
        let source = used["source"].as_str().expect("the source of a use");
        let definition = &document["paths"][used["id"].to_string()]["path"];
        let definition: Vec<&str> =
            definition.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        for known in [source.to_owned(), definition.join("::")] {
            if is_ours(&known) {
                paths.insert(known, path.clone());
            }
        }
    }
}

/// The lines of a crate that `neap` promises, each with the item that it belongs to.
fn lines_that_count(lines: &[String], paths: &Paths) -> Vec<(String, String)> {
    let mut counting = Vec::new();
    let mut is_of_trait = false;
    for line in lines {
        if let Some(of) = implementation(line) {
            is_of_trait = of.is_of_trait;
            let counts = match item_of(of.subject, paths) {
                Some(_) => true,
                None => !is_ours(of.subject) && paths.keys().any(|path| mentions(line, path)),
            };
            // A trait that nobody can name is of no use to anybody.
            let names_trait = of.is_of_trait && {
                let mut of_trait = translate(line, paths);
                of_trait.truncate(of_trait.find(" for ").unwrap_or(of_trait.len()));
                foreign_paths(&of_trait).next().is_none()
            };
            let is_for_the_compiler = line.contains("::StructuralPartialEq for ");
            if counts && !is_for_the_compiler && (names_trait || !of.is_of_trait) {
                let subject = item_of(of.subject, paths).unwrap_or(of.subject);
                counting.push((subject.to_owned(), line.clone()));
            }
            continue;
        }
        let subject = subject_of(line);
        let Some(item) = item_of(subject, paths) else { continue };
        if !is_member(subject) {
            is_of_trait = false;
        }
        // What a trait demands is told by the trait, but for its types.
        if !is_of_trait || line.contains("pub type ") {
            counting.push((item.to_owned(), line.clone()));
        }
    }
    counting
}

/// What an `impl` line says.
struct Implementation<'a> {
    /// The type.
    subject: &'a str,
    /// Whether it implements a trait.
    is_of_trait: bool,
}

fn implementation(line: &str) -> Option<Implementation<'_>> {
    let rest = line.strip_prefix("unsafe ").unwrap_or(line).strip_prefix("impl")?;
    let rest = if rest.starts_with('<') { &rest[end_of_brackets(rest)..] } else { rest };
    let rest = rest.trim_start();
    match rest.split_once(" for ") {
        Some((_, subject)) => Some(Implementation { subject, is_of_trait: true }),
        None => Some(Implementation { subject: rest, is_of_trait: false }),
    }
}

/// Where the brackets that `text` begins with are closed.
fn end_of_brackets(text: &str) -> usize {
    let mut depth = 0;
    for (at, character) in text.char_indices() {
        match character {
            '<' => depth += 1,
            // Not that of an arrow.
            '>' if !text[..at].ends_with('-') => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    text.len()
}

/// The path of what a line declares.
fn subject_of(line: &str) -> &str {
    let words = ["#[non_exhaustive]", "pub", "const", "unsafe", "async", "fn", "struct", "enum"];
    let more = ["union", "trait", "type", "static", "mod", "use", "macro", "dyn"];
    let mut rest = line;
    while let Some((word, after)) = rest.split_once(' ') {
        let is_attribute = word.starts_with("#[");
        if !is_attribute && !words.contains(&word) && !more.contains(&word) {
            break;
        }
        rest = after;
    }
    rest
}

/// The re-exported item that a path begins with, or the item of `neap` itself.
fn item_of<'a>(path: &'a str, paths: &Paths) -> Option<&'a str> {
    let path = name_of(path);
    let mut known = path;
    loop {
        if paths.contains_key(known) {
            return Some(known);
        }
        match known.rfind("::") {
            Some(at) => known = &known[..at],
            None => break,
        }
    }
    // Of the crate itself everything counts; a member belongs to the type before it.
    (path == "neap" || path.starts_with("neap::")).then(|| {
        let is_type = |part: &str| part.starts_with(char::is_uppercase);
        let mut end = 0;
        for part in path.split("::") {
            end += part.len();
            if is_type(part) {
                break;
            }
            end += 2;
        }
        &path[..end.min(path.len())]
    })
}

/// The path that `text` begins with, without parameters, fields and types.
fn name_of(text: &str) -> &str {
    let end = text.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
    text[..end.unwrap_or(text.len())].trim_end_matches(':')
}

/// Whether a path goes on behind the name of a type.
fn is_member(path: &str) -> bool {
    let mut is_behind_type = false;
    let mut rest = path;
    loop {
        let end = rest.find("::").unwrap_or(rest.len()).min(rest.find('<').unwrap_or(rest.len()));
        let is_end = rest[end..].is_empty() || rest[..end].contains([' ', '(']);
        if is_behind_type || is_end {
            return is_behind_type;
        }
        is_behind_type = rest.starts_with(char::is_uppercase);
        rest = &rest[end..];
        if rest.starts_with('<') {
            rest = &rest[end_of_brackets(rest)..];
        }
        let Some(after) = rest.strip_prefix("::") else { return false };
        rest = after;
    }
}

/// Whether a path is one of the crates that `neap` is made of.
fn is_ours(path: &str) -> bool {
    ["neap_tcp", "neap_stack", "neap_device", "neap_posix"].iter().any(|name| {
        path.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    })
}

/// Whether `line` has this path, and not as a part of a longer name.
fn mentions(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| ends_name(&line[at + path.len()..]))
}

fn ends_name(rest: &str) -> bool {
    !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_')
}

/// A line with the paths of `neap`.
fn translate(line: &str, paths: &Paths) -> String {
    let mut line = line.to_owned();
    // Longer ones first: a module may be re-exported, and an item of it too.
    let mut known: Vec<(&String, &String)> = paths.iter().collect();
    known.sort_by_key(|(path, _)| core::cmp::Reverse(path.len()));
    for (path, ours) in known {
        let mut from = 0;
        while let Some(at) = line[from..].find(path.as_str()).map(|at| at + from) {
            from = at + 1;
            let is_whole = ends_name(&line[at + path.len()..]);
            if is_whole {
                line.replace_range(at..at + path.len(), ours);
                from = at + ours.len();
            }
        }
    }
    line
}

/// The paths in a line that lead into the crates that `neap` is made of.
fn foreign_paths(line: &str) -> impl Iterator<Item = String> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let paths = line.split(move |c: char| !is_part(c));
    paths.map(|path| path.trim_end_matches(':')).filter(|path| is_ours(path)).map(str::to_owned)
}
