//! The user's own settings that decide how files and trees correspond.
//!
//! Git runs without the user's configuration, so the settings are passed on one by one. Filters are off on both sides:
//! the sandbox gets the files as the user sees them.

use crate::error::Error;
use crate::plumbing::filters;
use crate::plumbing::sync::split_records;
use crate::repository::HostRepository;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

const READING: &str = "reading the user's settings";

#[derive(Debug, Clone, Default)]
pub(super) struct UserSettings {
    /// Conversions between files and trees, by name.
    pub conversions: BTreeMap<String, String>,
    /// Patterns of ignored files from the user's own file.
    pub excludes: Vec<u8>,
    attributes_file: Option<PathBuf>,
    /// Names of the configured filters.
    pub filters: Vec<String>,
    pub filter_env: Vec<(OsString, OsString)>,
    pub is_sparse: bool,
}

impl UserSettings {
    pub fn read(repository: &HostRepository) -> Result<Self, Error> {
        // One process lists all settings.
        let command = repository.git_command(READING, repository.limits.lookup_timeout)?;
        // Root does not use its own settings for the repository of another user.
        let command = if repository.owner.is_current_user() { command.with_user_configuration() } else { command };
        let listed = command.args(["config", "--null", "--list"]).capture_output(repository.limits.listing_bytes)?;
        let listed = listed.require_success()?.stdout;
        let mut found = Self::default();
        let mut excludes_file = None;
        let mut filter_names = Vec::new();
        for record in split_records(&listed) {
            let mut parts = record.splitn(2, |byte| *byte == b'\n');
            let name = String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
            let value = parts.next().unwrap_or(b"true");
            let text = || String::from_utf8_lossy(value).into_owned();
            match name.as_str() {
                "core.autocrlf" | "core.eol" | "core.filemode" => drop(found.conversions.insert(name, text())),
                "core.excludesfile" => excludes_file = Some(expand_home(value)),
                "core.attributesfile" => found.attributes_file = Some(expand_home(value)),
                "core.sparsecheckout" => found.is_sparse = !matches!(value, b"false" | b"no" | b"off" | b"0"),
                _ if name.starts_with("filter.") => filter_names.extend([name.as_bytes(), b"\0"].concat()),
                _ => {}
            }
        }
        found.filter_env = filters::disabling_env(&filter_names);
        found.filters = filter_drivers(&filter_names);
        let default = || user_config_dir().map(|dir| dir.join("ignore"));
        let own_user = repository.owner.is_current_user();
        if let Some(path) = excludes_file.or_else(|| own_user.then(default).flatten()) {
            found.excludes = std::fs::read(path).unwrap_or_default();
        }
        if found.attributes_file.is_none() && own_user {
            found.attributes_file = user_config_dir().map(|dir| dir.join("attributes")).filter(|path| path.exists());
        }
        Ok(found)
    }

    /// Options of git that apply the settings.
    pub fn command_arguments(&self, excludes: &Path) -> Vec<OsString> {
        let mut arguments = Vec::new();
        let mut set = |name: &str, value: &[u8]| {
            arguments.push("-c".into());
            arguments.push(OsString::from_vec([name.as_bytes(), b"=", value].concat()));
        };
        self.conversions.iter().for_each(|(name, value)| set(name, value.as_bytes()));
        set("core.excludesFile", excludes.as_os_str().as_bytes());
        if let Some(path) = &self.attributes_file {
            set("core.attributesFile", path.as_os_str().as_bytes());
        }
        arguments
    }
}

fn filter_drivers(names: &[u8]) -> Vec<String> {
    let mut drivers: Vec<String> = split_records(names)
        .filter_map(|name| String::from_utf8(name.strip_prefix(b"filter.")?.to_vec()).ok())
        .filter_map(|name| name.rsplit_once('.').map(|(driver, _)| driver.to_owned()))
        .collect();
    drivers.sort_unstable();
    drivers.dedup();
    drivers
}

fn user_config_dir() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("XDG_CONFIG_HOME").or_else(|| set("HOME").map(|home| home.join(".config"))).map(|dir| dir.join("git"))
}

fn expand_home(value: &[u8]) -> PathBuf {
    let path = PathBuf::from(OsString::from_vec(value.to_vec()));
    match (path.strip_prefix("~"), std::env::var_os("HOME")) {
        (Ok(rest), Some(home)) => PathBuf::from(home).join(rest),
        _ => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_have_names() {
        assert_eq!(filter_drivers(b"filter.lfs.clean\0filter.lfs.smudge\0filter.a.b.clean\0"), ["a.b", "lfs"]);
        assert_eq!(filter_drivers(b""), Vec::<String>::new());
    }
}
