//! Merges the layers of a configuration: flag over environment over file over default.

use crate::checks;
use crate::env;
use crate::error::{ConfigProblem, Error, quote_input};
use crate::file;
use crate::format::{BaseDirs, Mismatch, RawInput};
use crate::git_section;
use crate::key::{KEYS, Key, RejectedValue, find_key};
use crate::models;
use crate::sections::Config;
use crate::source::{Setting, SettingSource, Warning};
use crate::suggest;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// Everything that a load reads. Without `Debug`, since the environment holds secrets.
#[derive(Clone, Default)]
pub struct Inputs {
    /// Keys, by their dotted name, that command-line flags set.
    pub flags: Vec<(String, String)>,
    pub env: BTreeMap<String, String>,
    /// The files of `--config`, in order.
    pub config_paths: Vec<PathBuf>,
    pub cwd: PathBuf,
    pub home: Option<PathBuf>,
}

impl Inputs {
    /// Takes the environment and the directories of this process.
    pub fn of_this_process(flags: Vec<(String, String)>, config_paths: Vec<PathBuf>) -> std::io::Result<Self> {
        let env = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())))
            .collect();
        Ok(Self { flags, env, config_paths, cwd: std::env::current_dir()?, home: std::env::home_dir() })
    }

    /// A directory named by an environment variable, ignored unless it is absolute.
    pub(crate) fn absolute_dir(&self, variable: &str) -> Option<PathBuf> {
        self.env.get(variable).map(PathBuf::from).filter(|path| path.is_absolute())
    }

    fn base_dirs(&self) -> BaseDirs<'_> {
        BaseDirs { cwd: &self.cwd, home: self.home.as_deref() }
    }

    fn default_data_dir(&self) -> Option<PathBuf> {
        let in_home = || self.home.as_ref().map(|home| home.join(".local/share"));
        self.absolute_dir(env::XDG_DATA_HOME).or_else(in_home).map(|dir| dir.join("atoll"))
    }
}

/// A valid configuration.
#[derive(Debug)]
pub struct LoadedConfig {
    pub config: Config,
    /// Every key with its value and source, in the order of the declarations.
    pub settings: Vec<Setting>,
    /// The files that were read; later ones win.
    pub files: Vec<PathBuf>,
    pub warnings: Vec<Warning>,
}

/// Loads a configuration, or returns every problem with it.
pub fn load_config(inputs: &Inputs) -> Result<LoadedConfig, Error> {
    let mut layers =
        Layers { inputs, config: Config::default(), provenance: Provenance::default(), problems: Vec::new() };
    layers.config.data_dir = inputs.default_data_dir().unwrap_or_default();
    let files = layers.apply_files();
    layers.apply_environment();
    layers.apply_flags();

    let Layers { mut config, provenance, mut problems, .. } = layers;
    checks::check_config(&config, &provenance, &mut problems);
    models::resolve_upstreams(&mut config, &provenance, &inputs.env, &mut problems);
    git_section::resolve_tokens(&mut config, &inputs.env);
    if !problems.is_empty() {
        return Err(Error::new(problems));
    }
    let (settings, warnings) = (list_settings(&config, &provenance), list_warnings(&config, &provenance));
    Ok(LoadedConfig { config, settings, files, warnings })
}

/// The source of each key's value, and the keys with a rejected value.
#[derive(Default)]
pub(crate) struct Provenance {
    sources: BTreeMap<&'static str, SettingSource>,
    rejected: BTreeSet<&'static str>,
}

impl Provenance {
    pub(crate) fn source_of(&self, key: &str) -> SettingSource {
        self.sources.get(key).cloned().unwrap_or(SettingSource::Default)
    }

    /// No layer has a rejected value for any of these keys.
    pub(crate) fn are_valid(&self, keys: &[&str]) -> bool {
        !keys.iter().any(|key| self.rejected.contains(key))
    }
}

struct Layers<'a> {
    inputs: &'a Inputs,
    config: Config,
    provenance: Provenance,
    problems: Vec<ConfigProblem>,
}

impl Layers<'_> {
    fn set_key(&mut self, key: &'static Key, input: &RawInput<'_>, source: SettingSource) {
        match (key.read)(&mut self.config, input, &self.inputs.base_dirs()) {
            Ok(secrets) => {
                // A value that a later layer replaces is still a secret.
                self.config.secret_values.extend(secrets);
                self.provenance.sources.insert(key.name, source);
            }
            Err(rejection) => {
                self.provenance.rejected.insert(key.name);
                self.problems.push(rejection_problem(key, source, rejection));
            }
        }
    }

    fn reset_key(&mut self, key: &'static Key) {
        (key.reset)(&mut self.config);
        self.provenance.sources.remove(key.name);
        if key.name == "data_dir" {
            self.config.data_dir = self.inputs.default_data_dir().unwrap_or_default();
        }
    }

    fn apply_files(&mut self) -> Vec<PathBuf> {
        let files = file::read_files(self.inputs, &mut self.problems);
        for file in &files {
            for entry in file::parse_file(file, &mut self.problems) {
                // A null value resets the key to its default.
                if entry.node.is_null() {
                    self.reset_key(entry.key);
                } else {
                    self.set_key(entry.key, &RawInput::Node(&entry.node), entry.source);
                }
            }
        }
        files.into_iter().map(|file| file.path).collect()
    }

    fn apply_environment(&mut self) {
        let env = &self.inputs.env;
        for key in KEYS.iter() {
            for name in key.env_names() {
                if let Some(text) = env.get(&name).filter(|text| !text.is_empty()) {
                    self.set_key(key, &RawInput::Text(text), SettingSource::Env(name));
                }
            }
        }
        let known = env::variable_names();
        let names = || known.iter().map(|(name, _)| name.as_str());
        for name in env.keys().filter(|name| name.starts_with(env::PREFIX) && !env::is_reserved(name)) {
            if names().all(|known| known != name) {
                let nearest = suggest::find_nearest(name, names());
                self.problems.push(ConfigProblem::UnknownVariable { name: quote_input(name), nearest });
            }
        }
    }

    fn apply_flags(&mut self) {
        let mut seen = BTreeSet::new();
        for (name, text) in &self.inputs.flags {
            let Some((key, flag)) = find_key(name).and_then(|key| Some((key, key.flag?))) else {
                let with_flag = KEYS.iter().filter(|key| key.flag.is_some()).map(|key| key.name);
                let nearest = suggest::find_nearest(name, with_flag);
                self.problems.push(ConfigProblem::UnknownFlag { key: quote_input(name), nearest });
                continue;
            };
            let source = SettingSource::Flag(format!("--{flag}"));
            if seen.insert(key.name) {
                self.set_key(key, &RawInput::Text(text), source);
            } else {
                let (place, first) = (source.clone(), source);
                self.problems.push(ConfigProblem::DuplicateKey { key: key.name.to_owned(), place, first });
            }
        }
    }
}

fn rejection_problem(key: &Key, place: SettingSource, rejection: RejectedValue) -> ConfigProblem {
    let RejectedValue { mismatch, expected, is_secret } = rejection;
    let key = key.name.to_owned();
    match mismatch {
        Mismatch::Type(found) => ConfigProblem::WrongType { key, place, found, expected },
        Mismatch::Value { value, detail } => {
            let value = (!is_secret).then(|| quote_input(&value));
            ConfigProblem::InvalidValue { key, place, value, detail, expected }
        }
    }
}

fn list_settings(config: &Config, provenance: &Provenance) -> Vec<Setting> {
    let setting = |key: &&'static Key| Setting {
        key: key.name,
        value: (key.show)(config),
        source: provenance.source_of(key.name),
        help: key.help,
    };
    KEYS.iter().map(setting).collect()
}

/// Warns about each key that is set and has no effect. A switch that is off needs no warning.
fn list_warnings(config: &Config, provenance: &Provenance) -> Vec<Warning> {
    let warning = |key: &&'static Key| {
        let (text, source) = (key.no_effect?, provenance.source_of(key.name));
        let is_off = (key.show)(config).is_none_or(|value| value == "false");
        (source != SettingSource::Default && !is_off).then_some(Warning { key: key.name, source, text })
    };
    KEYS.iter().filter_map(warning).collect()
}
