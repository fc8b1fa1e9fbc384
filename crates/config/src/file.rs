//! Finds the configuration files and parses them into keys.

use crate::env;
use crate::error::{ConfigProblem, quote_input};
use crate::key::{KEYS, Key};
use crate::load::Inputs;
use crate::source::SettingSource;
use crate::suggest;
use crate::yaml::{self, MapEntry, Node, NodeContent};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

const FILE_NAME: &str = "atoll.yaml";
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// A configuration file with its content.
pub(crate) struct ConfigFile {
    pub(crate) path: PathBuf,
    pub(crate) bytes: Vec<u8>,
}

/// The value of one key in one file.
pub(crate) struct FileValue {
    pub(crate) key: &'static Key,
    pub(crate) node: Node,
    pub(crate) source: SettingSource,
}

/// Reads the files that apply, in order: later ones win. A missing required file is a problem.
pub(crate) fn read_files(inputs: &Inputs, problems: &mut Vec<ConfigProblem>) -> Vec<ConfigFile> {
    let profile = inputs.env.get(env::PROFILE).filter(|name| !name.is_empty());
    if let Some(profile) = profile.filter(|name| !is_profile_name(name)) {
        problems.push(ConfigProblem::InvalidProfile { profile: quote_input(profile) });
    }
    let profile = profile.map(String::as_str).filter(|name| is_profile_name(name));

    let mut files = Vec::new();
    let mut searched = Vec::new();
    let mut has_profile_file = false;
    let is_explicit = !inputs.config_paths.is_empty();
    let bases = match is_explicit {
        true => inputs.config_paths.iter().map(|path| inputs.cwd.join(path)).collect(),
        false => default_paths(inputs),
    };
    for base in bases {
        let before = files.len();
        read_file(&base, is_explicit, &mut files, problems);
        if let Some(profile) = profile {
            let path = profile_path(&base, profile);
            has_profile_file |= read_file(&path, false, &mut files, problems);
            searched.push(path);
        }
        // Explicit files all apply; of the default locations, only the first that has a file.
        if !is_explicit && files.len() > before {
            break;
        }
    }
    if let Some(profile) = profile.filter(|_| !has_profile_file) {
        problems.push(ConfigProblem::MissingProfile { profile: profile.to_owned(), searched });
    }
    files
}

fn is_profile_name(name: &str) -> bool {
    name.len() <= 64 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

/// The default locations of the file.
fn default_paths(inputs: &Inputs) -> Vec<PathBuf> {
    let user =
        inputs.absolute_dir(env::XDG_CONFIG_HOME).or_else(|| inputs.home.as_ref().map(|home| home.join(".config")));
    let here = inputs.cwd.join(FILE_NAME);
    [here].into_iter().chain(user.map(|directory| directory.join("atoll").join(FILE_NAME))).collect()
}

/// `atoll.yaml` → `atoll.<profile>.yaml`.
fn profile_path(base: &Path, profile: &str) -> PathBuf {
    let mut name = base.file_stem().unwrap_or_default().to_owned();
    name.push(".");
    name.push(profile);
    if let Some(extension) = base.extension() {
        name.push(".");
        name.push(extension);
    }
    base.with_file_name(name)
}

/// Reads one file and returns whether it exists. An existing file that cannot be read is a problem.
fn read_file(path: &Path, is_required: bool, files: &mut Vec<ConfigFile>, problems: &mut Vec<ConfigProblem>) -> bool {
    match read_bytes(path) {
        Ok(bytes) => files.push(ConfigFile { path: path.to_owned(), bytes }),
        Err(error) if error.kind() == io::ErrorKind::NotFound && !is_required => return false,
        Err(error) => problems.push(ConfigProblem::Unreadable { path: path.to_owned(), error }),
    }
    true
}

fn read_bytes(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {MAX_FILE_BYTES} bytes")));
    }
    Ok(bytes)
}

/// The keys that a file sets. A null value is included: it resets the key to its default.
pub(crate) fn parse_file(file: &ConfigFile, problems: &mut Vec<ConfigProblem>) -> Vec<FileValue> {
    let path = &file.path;
    let Ok(text) = std::str::from_utf8(&file.bytes) else {
        problems.push(ConfigProblem::InvalidYaml {
            path: path.clone(),
            line: None,
            detail: "it is not UTF-8".to_owned(),
        });
        return Vec::new();
    };
    let mut parser = FileParser { path, entries: Vec::new(), problems };
    match yaml::parse_document(text) {
        Ok(Some(node)) if node.is_null() => {}
        Ok(Some(Node { content: NodeContent::Map(entries), .. })) => parser.read_section("", entries),
        Ok(Some(node)) => parser.report_malformed(Some(node.line), "expected keys with values".to_owned()),
        Ok(None) => {}
        Err(yaml::YamlError { line, detail }) => parser.report_malformed(line, detail),
    }
    parser.entries
}

struct FileParser<'a> {
    path: &'a Path,
    entries: Vec<FileValue>,
    problems: &'a mut Vec<ConfigProblem>,
}

impl FileParser<'_> {
    fn report_malformed(&mut self, line: Option<usize>, detail: String) {
        self.problems.push(ConfigProblem::InvalidYaml { path: self.path.to_owned(), line, detail });
    }

    fn read_section(&mut self, prefix: &str, entries: Vec<MapEntry>) {
        for MapEntry { key, line, value } in entries {
            let name = if prefix.is_empty() { key } else { format!("{prefix}.{key}") };
            let place = SettingSource::File(self.path.to_owned(), Some(line));
            if let Some(key) =
                KEYS.iter().copied().find(|key| key.name == name || key.file_aliases.contains(&name.as_str()))
            {
                self.add_entry(key, &name, value, place);
            } else if is_section(&name) {
                match value.content {
                    NodeContent::Map(entries) => self.read_section(&name, entries),
                    _ if value.is_null() => {}
                    NodeContent::Scalar { .. } => self.report_non_section(name, place, "a single value"),
                    NodeContent::List(_) => self.report_non_section(name, place, "a list"),
                }
            } else {
                let nearest = suggest::find_nearest(&name, key_paths().chain(section_paths()));
                self.problems.push(ConfigProblem::UnknownKey { key: quote_input(&name), place, nearest });
            }
        }
    }

    fn add_entry(&mut self, key: &'static Key, name: &str, node: Node, source: SettingSource) {
        match self.entries.iter().find(|entry| entry.key.name == key.name) {
            Some(first) => {
                let first = first.source.clone();
                self.problems.push(ConfigProblem::DuplicateKey { key: name.to_owned(), place: source, first });
            }
            None => self.entries.push(FileValue { key, node, source }),
        }
    }

    fn report_non_section(&mut self, key: String, place: SettingSource, found: &'static str) {
        let inside = key_paths().filter(|name| name.strip_prefix(&key).is_some_and(|rest| rest.starts_with('.')));
        let expected = format!("a section with the keys {}", inside.collect::<Vec<_>>().join(", "));
        self.problems.push(ConfigProblem::WrongType { key, place, found, expected });
    }
}

fn key_paths() -> impl Iterator<Item = &'static str> + Clone {
    KEYS.iter().flat_map(|key| key.file_aliases.iter().copied().chain([key.name]))
}

fn section_paths() -> impl Iterator<Item = &'static str> + Clone {
    key_paths()
        .filter_map(|name| name.rsplit_once('.'))
        .flat_map(|(section, _)| section.match_indices('.').map(|(end, _)| &section[..end]).chain([section]))
}

fn is_section(name: &str) -> bool {
    section_paths().any(|section| section == name)
}
