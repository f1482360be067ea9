//! Scenario files: those that neap brings along, and those of the user.

use neap_lab::library;
use std::path::{Path, PathBuf};

/// A scenario's text, what it is called, and where its files are.
pub(crate) struct ScenarioFile {
    pub(crate) name: String,
    pub(crate) text: String,
    folder: Option<PathBuf>,
}

/// Finds a scenario: a file, or one that neap brings along.
pub(crate) fn find(name: &str) -> Result<ScenarioFile, String> {
    match std::fs::read_to_string(name) {
        Ok(text) => {
            let folder = Path::new(name).parent().map(Path::to_path_buf);
            Ok(ScenarioFile { name: name.to_owned(), text, folder })
        }
        Err(error) => {
            let builtin = library::SCENARIOS.iter().find(|scenario| scenario.name == name);
            let Some(scenario) = builtin else {
                return Err(format!("{name}: {error}; for those that neap brings: neap lab list"));
            };
            let text = scenario.text.to_owned();
            Ok(ScenarioFile { name: name.to_owned(), text, folder: None })
        }
    }
}

impl ScenarioFile {
    /// The text of a file that the scenario names.
    pub(crate) fn read(&self, file: &str) -> Result<String, String> {
        match &self.folder {
            Some(folder) => std::fs::read_to_string(folder.join(file))
                .map_err(|error| format!("{}: {error}", folder.join(file).display())),
            None => library::FILES
                .iter()
                .find(|(name, _)| *name == file)
                .map(|(_, text)| (*text).to_owned())
                .ok_or_else(|| format!("there is no file {file}")),
        }
    }
}
