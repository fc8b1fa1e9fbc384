//! Tests of whole loads.

mod example_tests;
mod layers;
mod model_tests;
mod problems;
mod secrets;

use crate::{Inputs, LoadedConfig, Setting, SettingSource, load_config};
use std::path::{Path, PathBuf};

/// The inputs of one load, with a temporary home and working directory.
struct Fixture {
    root: tempfile::TempDir,
    inputs: Inputs,
}

impl Fixture {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let inputs =
            Inputs { cwd: root.path().join("work"), home: Some(root.path().join("home")), ..Inputs::default() };
        std::fs::create_dir_all(&inputs.cwd).unwrap();
        Self { root, inputs }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn file(self, name: &str, text: &str) -> Self {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
        self
    }

    fn env(mut self, name: &str, value: &str) -> Self {
        self.inputs.env.insert(name.to_owned(), value.to_owned());
        self
    }

    fn flag(mut self, key: &str, value: &str) -> Self {
        self.inputs.flags.push((key.to_owned(), value.to_owned()));
        self
    }

    fn config(mut self, name: &str) -> Self {
        self.inputs.config_paths.push(name.into());
        self
    }

    fn load(&self) -> LoadedConfig {
        load_config(&self.inputs).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The problems of a failed load, without the temporary directory.
    fn problems(&self) -> Vec<String> {
        let Err(error) = load_config(&self.inputs) else { panic!("the load succeeds") };
        let root = format!("{}/", self.root.path().display());
        error.problems().iter().map(|problem| problem.to_string().replace(&root, "")).collect()
    }
}

impl LoadedConfig {
    fn setting(&self, key: &str) -> &Setting {
        self.settings.iter().find(|setting| setting.key == key).unwrap_or_else(|| panic!("no key {key}"))
    }

    fn value(&self, key: &str) -> Option<&str> {
        self.setting(key).value.as_deref()
    }
}

fn file_source(path: &Path, line: usize) -> SettingSource {
    SettingSource::File(path.to_owned(), Some(line))
}
