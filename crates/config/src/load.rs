//! Putting the layers on top of each other.

use crate::assemble::Unusable;
use crate::checks;
use crate::config::Config;
use crate::env;
use crate::error::{Error, Problem, quotable};
use crate::file;
use crate::keys::{self, Default as KeyDefault, KEYS, Key};
use crate::models::{self, Models};
use crate::source::{Shown, Source, Warning};
use crate::suggest;
use crate::value::{self, Places, Refusal, Value, Written};
use secrecy::SecretString;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// Everything that a configuration is made from. Without `Debug`, since the environment holds secrets.
#[derive(Clone, Default)]
pub struct Inputs {
    /// Keys, by their dotted name, that flags of the command line set.
    pub flags: Vec<(String, String)>,
    pub env: BTreeMap<String, String>,
    /// The files of `--config`, in order.
    pub config_paths: Vec<PathBuf>,
    pub cwd: PathBuf,
    pub home: Option<PathBuf>,
}

impl Inputs {
    /// The world as it is for this process.
    pub fn of_this_process(flags: Vec<(String, String)>, config_paths: Vec<PathBuf>) -> std::io::Result<Self> {
        let env = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())))
            .collect();
        Ok(Self { flags, env, config_paths, cwd: std::env::current_dir()?, home: std::env::home_dir() })
    }

    /// A directory from the environment, which counts only if it is absolute.
    pub(crate) fn absolute(&self, name: &str) -> Option<PathBuf> {
        self.env.get(name).map(PathBuf::from).filter(|path| path.is_absolute())
    }

    fn places(&self) -> Places<'_> {
        Places { cwd: &self.cwd, home: self.home.as_deref() }
    }
}

/// A configuration that is good as a whole.
#[derive(Debug)]
pub struct Loaded {
    pub config: Config,
    /// Every key in the table's order.
    pub shown: Vec<Shown>,
    /// The files that were read, in the order in which later ones win.
    pub files: Vec<PathBuf>,
    pub warnings: Vec<Warning>,
}

/// Flag > environment > file > default, for every key by itself.
pub fn load(inputs: &Inputs) -> Result<Loaded, Error> {
    let mut layers = Layers { places: inputs.places(), values: Values::default(), problems: Vec::new() };
    KEYS.iter().for_each(|key| layers.default(key, inputs));
    let files = layers.files(inputs);
    layers.environment(inputs);
    layers.flags(inputs);

    let Layers { mut values, mut problems, .. } = layers;
    checks::check(&values, &mut problems);
    models::resolve(&mut values, &inputs.env, &mut problems);
    if !problems.is_empty() {
        return Err(Error::new(problems));
    }
    let config = Config::assemble(&values, &inputs.places()).map_err(|Unusable { key, detail }| {
        Error::new(vec![Problem::Conflict { key, place: values.source(key), detail }])
    })?;
    Ok(Loaded { config, shown: shown(&values), files, warnings: warnings(&values) })
}

/// What each key has in the end.
#[derive(Default)]
pub(crate) struct Values {
    values: BTreeMap<&'static str, (Value, Source)>,
    /// Keys of which some layer says something unusable.
    broken: BTreeSet<&'static str>,
    /// Also of values that another layer has taken the place of: they are secrets all the same.
    pub(crate) secrets: Vec<SecretString>,
    pub(crate) models: Models,
}

impl Values {
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key).map(|(value, _)| value)
    }

    pub(crate) fn source(&self, key: &str) -> Source {
        self.values.get(key).map_or(Source::Default, |(_, source)| source.clone())
    }

    /// Whether all that was written for these keys could be read.
    pub(crate) fn are_sound(&self, keys: &[&str]) -> bool {
        !keys.iter().any(|key| self.broken.contains(key))
    }
}

struct Layers<'a> {
    places: Places<'a>,
    values: Values,
    problems: Vec<Problem>,
}

impl Layers<'_> {
    fn put(&mut self, key: &'static Key, written: &Written<'_>, source: Source) {
        match value::read(&key.kind, written, &self.places) {
            Ok(value) => {
                self.values.secrets.extend(value.secrets());
                self.values.values.insert(key.name, (value, source));
            }
            Err(refusal) => {
                self.values.broken.insert(key.name);
                self.problems.push(problem(key, source, refusal));
            }
        }
    }

    fn default(&mut self, key: &'static Key, inputs: &Inputs) {
        match key.default {
            KeyDefault::None => {}
            KeyDefault::Is(text) => self.put(key, &Written::Text(text), Source::Default),
            KeyDefault::InDataHome => {
                let in_home = || inputs.home.as_ref().map(|home| home.join(".local/share"));
                if let Some(data) = inputs.absolute(env::XDG_DATA_HOME).or_else(in_home) {
                    self.values.values.insert(key.name, (Value::Path(data.join("atoll")), Source::Default));
                }
            }
        }
    }

    fn files(&mut self, inputs: &Inputs) -> Vec<PathBuf> {
        let found = file::find(inputs, &mut self.problems);
        for file in &found {
            for said in file::keys(file, &mut self.problems) {
                if said.node.is_null() {
                    // Written as nothing: the default again, whatever earlier files said.
                    self.values.values.remove(said.key.name);
                    self.default(said.key, inputs);
                } else {
                    self.put(said.key, &Written::Node(&said.node), said.source);
                }
            }
        }
        found.into_iter().map(|file| file.path).collect()
    }

    fn environment(&mut self, inputs: &Inputs) {
        for key in KEYS {
            for name in key.env_names() {
                if let Some(text) = inputs.env.get(&name).filter(|text| !text.is_empty()) {
                    self.put(key, &Written::Text(text), Source::Env(name));
                }
            }
        }
        let known = env::names();
        let names = || known.iter().map(|(name, _)| name.as_str());
        for name in inputs.env.keys().filter(|name| name.starts_with(env::PREFIX) && !env::belongs_elsewhere(name)) {
            if names().all(|known| known != name) {
                let nearest = suggest::nearest(name, names());
                self.problems.push(Problem::UnknownVariable { name: quotable(name), nearest });
            }
        }
    }

    fn flags(&mut self, inputs: &Inputs) {
        let mut seen = BTreeSet::new();
        for (name, text) in &inputs.flags {
            let Some((key, flag)) = keys::find(name).and_then(|key| Some((key, key.flag?))) else {
                let nearest = suggest::nearest(name, KEYS.iter().filter(|key| key.flag.is_some()).map(|key| key.name));
                self.problems.push(Problem::UnknownFlag { key: quotable(name), nearest });
                continue;
            };
            let source = Source::Flag(format!("--{flag}"));
            if seen.insert(key.name) {
                self.put(key, &Written::Text(text), source);
            } else {
                let (place, first) = (source.clone(), source);
                self.problems.push(Problem::GivenTwice { key: key.name.to_owned(), place, first });
            }
        }
    }
}

fn problem(key: &Key, place: Source, refusal: Refusal) -> Problem {
    let (key, allowed, secret) = (key.name.to_owned(), key.kind.allowed().into_owned(), key.kind.is_secret());
    match refusal {
        Refusal::WrongType(found) => Problem::WrongType { key, place, found, allowed },
        Refusal::BadValue { given, detail } => {
            let given = (!secret).then(|| quotable(&given));
            Problem::BadValue { key, place, given, detail, allowed }
        }
    }
}

fn shown(values: &Values) -> Vec<Shown> {
    KEYS.iter()
        .map(|key| Shown {
            key: key.name,
            value: values.get(key.name).map(Value::shown),
            source: values.source(key.name),
            doc: key.doc,
        })
        .collect()
}

fn warnings(values: &Values) -> Vec<Warning> {
    let set = |key: &Key| match values.get(key.name) {
        None | Some(Value::Bool(false)) => false,
        Some(_) => values.source(key.name) != Source::Default,
    };
    KEYS.iter()
        .filter(|key| set(key))
        .filter_map(|key| Some(Warning { key: key.name, source: values.source(key.name), text: key.without_effect? }))
        .collect()
}
