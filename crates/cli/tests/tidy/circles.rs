//! Circles among the modules of a crate.
//!
//! A folder has entries: its files and its subfolders, where `x.rs` and `x/` are one. An entry
//! points to another if a file of it names a module of the other behind `crate` or `super`. The
//! folder's own `mod.rs`, or the file beside it, speaks for all entries and is not counted; neither
//! are tests.

use super::source::{code, files, read, root, shown, without_tests};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

/// A module by its path from the root of the crate.
type Module = Vec<String>;

/// Entries of one folder that point to each other in a circle.
pub(crate) struct Circle {
    pub(crate) folder: String,
    pub(crate) entries: Vec<String>,
    /// One of them has files beneath it.
    pub(crate) has_folder: bool,
    arrows: Vec<(Module, Module)>,
}

impl fmt::Display for Circle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} form a circle:", self.folder, self.entries.join(", "))?;
        for (from, to) in &self.arrows {
            write!(f, "\n    {} -> {}", from.join("::"), to.join("::"))?;
        }
        Ok(())
    }
}

/// All circles of a crate, folder by folder.
pub(crate) fn of_crate(name: &str) -> Vec<Circle> {
    let folder = format!("crates/{name}/src");
    let base = root().join(&folder);
    let sources: BTreeMap<Module, String> = files(&folder, ".rs")
        .into_iter()
        .filter(|path| !is_test(path))
        .map(|path| (module_of(path.strip_prefix(&base).expect("beneath it")), path))
        .map(|(module, path)| (module, without_tests(&code(&read(&path)))))
        .collect();
    let arrows = arrows(&sources);
    let folders: BTreeSet<Module> = sources
        .keys()
        .flat_map(|module| (0..module.len()).map(|len| module[..len].to_vec()))
        .collect();
    let place = |folder: &Module| shown(&base.join(folder.join("/")));
    folders.iter().flat_map(|folder| within(folder, &place(folder), &arrows, &sources)).collect()
}

fn is_test(path: &Path) -> bool {
    path.file_stem().and_then(|name| name.to_str()).is_some_and(|name| name.ends_with("tests"))
}

fn module_of(path: &Path) -> Module {
    let mut parts: Module =
        path.with_extension("").iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if matches!(parts.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        parts.pop();
    }
    parts
}

/// Which module names which.
fn arrows(sources: &BTreeMap<Module, String>) -> BTreeSet<(Module, Module)> {
    let mut arrows = BTreeSet::new();
    for (module, code) in sources {
        for mut named in paths(code, module) {
            while !named.is_empty() && !sources.contains_key(&named) {
                named.pop();
            }
            if named != *module {
                arrows.insert((module.clone(), named));
            }
        }
    }
    arrows
}

/// The paths that begin with `crate` or `super`, from the root of the crate.
fn paths(code: &str, module: &Module) -> Vec<Module> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("crate::").chain(code.match_indices("super::")) {
        if code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':') {
            continue;
        }
        let mut rest = &code[at..];
        let mut base = module.clone();
        if let Some(after) = rest.strip_prefix("crate::") {
            (rest, base) = (after, Module::new());
        }
        while let Some(after) = rest.strip_prefix("super::") {
            base.pop();
            rest = after;
        }
        tree(rest, &base, &mut found);
    }
    found
}

/// Reads a path or a tree of paths and answers what is behind it.
fn tree<'a>(text: &'a str, base: &Module, found: &mut Vec<Module>) -> &'a str {
    let text = text.trim_start();
    if let Some(mut rest) = text.strip_prefix('{') {
        loop {
            rest = rest.trim_start();
            match rest.chars().next() {
                Some('}') => return &rest[1..],
                Some(',') => rest = &rest[1..],
                Some(_) => {
                    let after = tree(rest, base, found);
                    if after.len() == rest.len() {
                        return after;
                    }
                    rest = after;
                }
                None => return rest,
            }
        }
    }
    let end = text.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    let mut path = base.clone();
    if !name.is_empty() && name != "self" {
        path.push(name.to_owned());
    }
    match rest.trim_start().strip_prefix("::") {
        Some(rest) => tree(rest, &path, found),
        None => {
            found.push(path);
            let rest = rest.trim_start();
            // `as name` belongs to the path.
            match rest.strip_prefix("as ") {
                Some(rest) => {
                    rest.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_' || c == ' ')
                }
                None => rest.strip_prefix('*').unwrap_or(rest),
            }
        }
    }
}

/// The circles among the entries of one folder.
fn within(
    folder: &Module,
    place: &str,
    arrows: &BTreeSet<(Module, Module)>,
    sources: &BTreeMap<Module, String>,
) -> Vec<Circle> {
    let entry = |module: &Module| {
        module.starts_with(folder).then(|| module.get(folder.len()).cloned()).flatten()
    };
    let mut targets: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (from, to) in arrows {
        if let (Some(from), Some(to)) = (entry(from), entry(to))
            && from != to
        {
            targets.entry(from).or_default().insert(to);
        }
    }
    let reach = |start: &String| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![start]);
        while let Some(one) = next.pop() {
            for to in targets.get(one).into_iter().flatten() {
                if seen.insert(to) {
                    next.push(to);
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&String, BTreeSet<&String>> =
        targets.keys().map(|one| (one, reach(one))).collect();
    let mut circles: BTreeSet<Vec<String>> = BTreeSet::new();
    for (one, all) in &reached {
        if all.contains(*one) {
            let with = all
                .iter()
                .filter(|other| reached.get(**other).is_some_and(|back| back.contains(*one)));
            circles.insert(with.map(|&name| name.clone()).collect());
        }
    }
    circles
        .into_iter()
        .map(|entries| {
            let is_in = |module: &Module| entry(module).is_some_and(|one| entries.contains(&one));
            let arrows = arrows
                .iter()
                .filter(|(from, to)| is_in(from) && is_in(to) && entry(from) != entry(to))
                .cloned()
                .collect();
            let has_folder =
                sources.keys().any(|module| is_in(module) && module.len() > folder.len() + 1);
            Circle { folder: place.to_owned(), entries, has_folder, arrows }
        })
        .collect()
}

#[test]
fn paths_are_read_from_the_root_of_the_crate() {
    let module = vec!["a".to_owned(), "b".to_owned()];
    let code = "use crate::x::{self, y::{Z, W as V}, *};\nuse super::c::D;\nfn f(_: super::super::e::F) {}";
    let found: BTreeSet<String> = paths(code, &module).iter().map(|path| path.join("::")).collect();
    let expected = ["a::c::D", "e::F", "x", "x::y::W", "x::y::Z"];
    assert_eq!(found.into_iter().collect::<Vec<_>>(), expected);
}
