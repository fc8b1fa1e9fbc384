//! Submodules of a commit.

use crate::error::Error;
use crate::repository::HostRepository;
use std::collections::BTreeMap;

const ACTION: &str = "looking for submodules";

/// The mode of a submodule's entry in a tree.
const SUBMODULE_MODE: &str = "160000";

const MAX_SUBMODULES: usize = 100;

/// Size of the file `.gitmodules`.
const MAX_MODULES_BYTES: u64 = 1 << 20;

/// A submodule of a commit. Name and URL are from a file of the commit, which is untrusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Submodule {
    pub path: String,
    pub commit: String,
    /// Name and URL; `None` if the file `.gitmodules` does not have the path.
    pub source: Option<SubmoduleSource>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubmoduleSource {
    /// A relative path without `..`.
    pub name: String,
    pub url: String,
}

impl HostRepository {
    /// Lists a commit's submodules; of very many, the first ones.
    pub fn list_submodules(&self, commit: &str) -> Result<Vec<Submodule>, Error> {
        let command = self.git_command(ACTION, self.limits.bulk_timeout)?;
        let mut found = Vec::new();
        let listed = command.args(["ls-tree", "-r", "-z", "--full-tree", commit]);
        let listed = listed.read_records(self.limits.listing_bytes, &mut |record| {
            if found.len() < MAX_SUBMODULES {
                found.extend(parse_entry(record));
            }
        });
        listed?.require_success()?;
        if found.is_empty() {
            return Ok(found);
        }
        let mut sources = self.read_submodule_sources(commit)?;
        for submodule in &mut found {
            submodule.source = sources.remove(&submodule.path);
        }
        Ok(found)
    }

    /// Reads the file `.gitmodules` of a commit: names and URLs by path.
    fn read_submodule_sources(&self, commit: &str) -> Result<BTreeMap<String, SubmoduleSource>, Error> {
        let blob = format!("--blob={commit}:.gitmodules");
        let reading = self.git_command(ACTION, self.limits.lookup_timeout)?;
        let read = reading.args(["config", &blob, "--no-includes", "--null", "--list"]);
        let read = read.capture_output(MAX_MODULES_BYTES)?;
        // Without the file, no submodule has a source.
        Ok(if read.is_success() { parse_modules(&read.stdout) } else { BTreeMap::new() })
    }
}

/// Parses a record of `git ls-tree`: `160000 commit ID<tab>path`.
fn parse_entry(record: &[u8]) -> Option<Submodule> {
    let tab = record.iter().position(|byte| *byte == b'\t')?;
    let mut columns = std::str::from_utf8(&record[..tab]).ok()?.split(' ');
    let (mode, commit) = (columns.next()?, columns.nth(1)?);
    (mode == SUBMODULE_MODE).then(|| Submodule {
        path: String::from_utf8_lossy(&record[tab + 1..]).into_owned(),
        commit: commit.to_owned(),
        source: None,
    })
}

/// Parses `submodule.NAME.KEY<newline>VALUE` records.
fn parse_modules(listed: &[u8]) -> BTreeMap<String, SubmoduleSource> {
    let mut named: BTreeMap<&str, [Option<&str>; 2]> = BTreeMap::new();
    for record in listed.split(|byte| *byte == 0).filter_map(|record| std::str::from_utf8(record).ok()) {
        let Some((key, value)) = record.split_once('\n') else { continue };
        let Some((name, field)) = key.strip_prefix("submodule.").and_then(|key| key.rsplit_once('.')) else { continue };
        let place = match field {
            "path" => 0,
            "url" => 1,
            _ => continue,
        };
        if is_submodule_name(name) {
            named.entry(name).or_default()[place] = Some(value);
        }
    }
    let sources = named.into_iter().filter_map(|(name, [path, url])| {
        Some((path?.to_owned(), SubmoduleSource { name: name.to_owned(), url: url?.to_owned() }))
    });
    sources.collect()
}

/// The name is a path below the directory `modules` of a repository.
fn is_submodule_name(name: &str) -> bool {
    name.len() <= 255
        && !name.contains(|character: char| character.is_control() || character == '\\')
        && name.split('/').all(|part| !matches!(part, "" | "." | "..") && !part.eq_ignore_ascii_case(".git"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stays_below_its_directory() {
        let listed: Vec<u8> = [
            "submodule.lib/a.b.path\nlib",
            "submodule.lib/a.b.url\n../lib.git",
            "submodule.lib/a.b.update\n!touch /tmp/canary",
            "submodule.../../x.path\nx",
            "submodule.../../x.url\nhttps://h/x",
            "submodule./x.path\ny",
            "submodule./x.url\nhttps://h/y",
            "submodule.a/.git/hooks.path\nz",
            "submodule.a/.git/hooks.url\nhttps://h/z",
            "submodule.only.path\nonly",
            "core.fsmonitor\n/tmp/canary",
        ]
        .join("\0")
        .into_bytes();
        let sources = parse_modules(&listed);
        let expected = SubmoduleSource { name: "lib/a.b".to_owned(), url: "../lib.git".to_owned() };
        assert_eq!(sources, BTreeMap::from([("lib".to_owned(), expected)]));
    }
}
