//! Finding the files of a configuration and turning them into keys.

use crate::env;
use crate::error::{Problem, quotable};
use crate::keys::{KEYS, Key};
use crate::load::Inputs;
use crate::source::Source;
use crate::suggest;
use crate::yaml::{self, Content, Entry, Node};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

const NAME: &str = "atoll.yaml";
const MOST_BYTES: u64 = 1024 * 1024;

/// A file that was there, in the order in which later ones win.
pub(crate) struct Found {
    pub(crate) path: PathBuf,
    pub(crate) bytes: Vec<u8>,
}

/// What one file says about one key.
pub(crate) struct Said {
    pub(crate) key: &'static Key,
    pub(crate) node: Node,
    pub(crate) source: Source,
}

/// Reads every file that counts; what must be there and is not becomes a problem.
pub(crate) fn find(inputs: &Inputs, problems: &mut Vec<Problem>) -> Vec<Found> {
    let profile = inputs.env.get(env::PROFILE).filter(|name| !name.is_empty());
    if let Some(profile) = profile.filter(|name| !is_profile_name(name)) {
        problems.push(Problem::BadProfile { profile: quotable(profile) });
    }
    let profile = profile.map(String::as_str).filter(|name| is_profile_name(name));

    let mut found = Vec::new();
    let mut looked = Vec::new();
    let mut with_profile = false;
    let named = !inputs.config_paths.is_empty();
    for base in
        if named { inputs.config_paths.iter().map(|path| inputs.cwd.join(path)).collect() } else { usual(inputs) }
    {
        let before = found.len();
        take(&base, named, &mut found, problems);
        if let Some(profile) = profile {
            let beside = beside(&base, profile);
            with_profile |= take(&beside, false, &mut found, problems);
            looked.push(beside);
        }
        // The first usual place that holds anything is the one; the files that were named count all.
        if !named && found.len() > before {
            break;
        }
    }
    if let Some(profile) = profile.filter(|_| !with_profile) {
        problems.push(Problem::NoProfile { profile: profile.to_owned(), looked });
    }
    found
}

fn is_profile_name(name: &str) -> bool {
    name.len() <= 64 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

/// Where a file is looked for when none is named.
fn usual(inputs: &Inputs) -> Vec<PathBuf> {
    let user = inputs.absolute(env::XDG_CONFIG_HOME).or_else(|| inputs.home.as_ref().map(|home| home.join(".config")));
    let here = inputs.cwd.join(NAME);
    [here].into_iter().chain(user.map(|directory| directory.join("atoll").join(NAME))).collect()
}

/// `atoll.yaml` → `atoll.<profile>.yaml`.
fn beside(base: &Path, profile: &str) -> PathBuf {
    let mut name = base.file_stem().unwrap_or_default().to_owned();
    name.push(".");
    name.push(profile);
    if let Some(extension) = base.extension() {
        name.push(".");
        name.push(extension);
    }
    base.with_file_name(name)
}

/// Whether the file is there. One that is there and cannot be read is a problem, never passed over.
fn take(path: &Path, must_be_there: bool, found: &mut Vec<Found>, problems: &mut Vec<Problem>) -> bool {
    match read(path) {
        Ok(bytes) => found.push(Found { path: path.to_owned(), bytes }),
        Err(error) if error.kind() == io::ErrorKind::NotFound && !must_be_there => return false,
        Err(error) => problems.push(Problem::Unreadable { path: path.to_owned(), error }),
    }
    true
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {MOST_BYTES} bytes")));
    }
    Ok(bytes)
}

/// The keys that a file sets. A key written as nothing is there too: it takes back what earlier files said.
pub(crate) fn keys(found: &Found, problems: &mut Vec<Problem>) -> Vec<Said> {
    let path = &found.path;
    let Ok(text) = std::str::from_utf8(&found.bytes) else {
        problems.push(Problem::Malformed { path: path.clone(), line: None, detail: "it is not UTF-8".to_owned() });
        return Vec::new();
    };
    let mut walk = Walk { path, said: Vec::new(), problems };
    match yaml::parse(text) {
        Ok(Some(node)) if node.is_null() => {}
        Ok(Some(Node { content: Content::Map(entries), .. })) => walk.section("", entries),
        Ok(Some(node)) => walk.malformed(Some(node.line), "it does not hold keys with values".to_owned()),
        Ok(None) => {}
        Err(yaml::Malformed { line, detail }) => walk.malformed(line, detail),
    }
    walk.said
}

struct Walk<'a> {
    path: &'a Path,
    said: Vec<Said>,
    problems: &'a mut Vec<Problem>,
}

impl Walk<'_> {
    fn malformed(&mut self, line: Option<usize>, detail: String) {
        self.problems.push(Problem::Malformed { path: self.path.to_owned(), line, detail });
    }

    fn section(&mut self, prefix: &str, entries: Vec<Entry>) {
        for Entry { key, line, value } in entries {
            let name = if prefix.is_empty() { key } else { format!("{prefix}.{key}") };
            let place = Source::File(self.path.to_owned(), Some(line));
            if let Some(key) = KEYS.iter().find(|key| key.name == name || key.file_aliases.contains(&name.as_str())) {
                self.say(key, &name, value, place);
            } else if is_section(&name) {
                match value.content {
                    Content::Map(entries) => self.section(&name, entries),
                    _ if value.is_null() => {}
                    Content::Scalar { .. } => self.not_a_section(name, place, "a single value"),
                    Content::List(_) => self.not_a_section(name, place, "a list"),
                }
            } else {
                let nearest = suggest::nearest(&name, file_names().chain(sections()));
                self.problems.push(Problem::UnknownKey { key: quotable(&name), place, nearest });
            }
        }
    }

    fn say(&mut self, key: &'static Key, name: &str, node: Node, source: Source) {
        match self.said.iter().find(|said| said.key.name == key.name) {
            Some(first) => {
                let first = first.source.clone();
                self.problems.push(Problem::GivenTwice { key: name.to_owned(), place: source, first });
            }
            None => self.said.push(Said { key, node, source }),
        }
    }

    fn not_a_section(&mut self, key: String, place: Source, found: &'static str) {
        let inside = file_names().filter(|name| name.strip_prefix(&key).is_some_and(|rest| rest.starts_with('.')));
        let allowed = format!("the keys {}", inside.collect::<Vec<_>>().join(", "));
        self.problems.push(Problem::WrongType { key, place, found, allowed });
    }
}

fn file_names() -> impl Iterator<Item = &'static str> + Clone {
    KEYS.iter().flat_map(|key| key.file_aliases.iter().copied().chain([key.name]))
}

fn sections() -> impl Iterator<Item = &'static str> + Clone {
    file_names()
        .filter_map(|name| name.rsplit_once('.'))
        .flat_map(|(section, _)| section.match_indices('.').map(|(end, _)| &section[..end]).chain([section]))
}

fn is_section(name: &str) -> bool {
    sections().any(|section| section == name)
}
