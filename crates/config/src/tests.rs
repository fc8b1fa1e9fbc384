//! What a load promises, told through the whole of it.

mod example;
mod layers;
mod problems;
mod secrets;

use crate::{Inputs, Loaded, Shown, Source, load};
use std::path::{Path, PathBuf};

/// A world of its own: a home and a working directory that nobody else sees.
struct World {
    root: tempfile::TempDir,
    inputs: Inputs,
}

impl World {
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

    fn load(&self) -> Loaded {
        load(&self.inputs).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The problems as people see them, with the temporary directory taken out.
    fn refused(&self) -> Vec<String> {
        let Err(error) = load(&self.inputs) else { panic!("was accepted") };
        let root = format!("{}/", self.root.path().display());
        error.problems().iter().map(|problem| problem.to_string().replace(&root, "")).collect()
    }
}

impl Loaded {
    fn at(&self, key: &str) -> &Shown {
        self.shown.iter().find(|shown| shown.key == key).unwrap_or_else(|| panic!("no key {key}"))
    }

    fn value(&self, key: &str) -> Option<&str> {
        self.at(key).value.as_deref()
    }
}

fn file(path: &Path, line: usize) -> Source {
    Source::File(path.to_owned(), Some(line))
}
