//! Builds the guide to `guide/book`, or to the folder that is given, and fails if a link in it leads
//! nowhere.

use mdbook_driver::MDBook;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

/// The pages below a folder.
fn pages(folder: &Path, found: &mut Vec<PathBuf>) -> Result<(), Box<dyn Error>> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            pages(&path, found)?;
        } else if path.extension().is_some_and(|end| end == "html") {
            found.push(path);
        }
    }
    Ok(())
}

/// The links of a page to other files of the book that are not there.
fn broken(page: &Path) -> Result<Vec<String>, Box<dyn Error>> {
    let text = fs::read_to_string(page)?;
    let folder = page.parent().ok_or("a page lies in a folder")?;
    let links = text.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next());
    let is_broken = |link: &&str| {
        let file = link.split('#').next().unwrap_or_default();
        !file.is_empty() && !file.contains(':') && !folder.join(file).exists()
    };
    // The page of errors is served from anywhere, so its links count from the root.
    let is_error = page.ends_with("404.html");
    Ok(links.filter(|link| !is_error && is_broken(link)).map(str::to_owned).collect())
}

fn main() -> Result<(), Box<dyn Error>> {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut book = MDBook::load(&guide)?;
    if let Some(folder) = std::env::args_os().nth(1) {
        book.config.build.build_dir = std::env::current_dir()?.join(folder);
    }
    book.build()?;
    let mut found = Vec::new();
    pages(&book.build_dir_for("html"), &mut found)?;
    let mut count = 0;
    for page in &found {
        let text = fs::read_to_string(page)?;
        if text.contains("{{#include") {
            eprintln!("{}: a file that it includes is not there", page.display());
            count += 1;
        }
        for link in broken(page)? {
            eprintln!("{}: {link} leads nowhere", page.display());
            count += 1;
        }
    }
    println!("{} pages", found.len());
    if count == 0 { Ok(()) } else { Err(format!("{count} faults in the guide").into()) }
}
