//! Parsers for values on the command line.

use crate::failure::{Failure, Result};
use atoll_core::sandbox::{ProviderKind, Repo};
use atoll_forge::remote::RemoteUrl;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::de::DeserializeOwned;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::str::FromStr;

/// Parses a word of a closed set; the error lists the set.
pub fn parse_word<T>(text: &str) -> Result<T, String>
where
    T: FromStr,
    T::Err: fmt::Display,
{
    text.parse().map_err(|error: T::Err| error.to_string())
}

/// Parses a provider's name; help and completion list all of them.
pub fn provider_parser() -> impl TypedValueParser<Value = ProviderKind> {
    PossibleValuesParser::new(ProviderKind::ALL.iter().map(|kind| kind.as_str())).try_map(|name| name.parse())
}

/// Parses `KEY=VALUE`.
pub fn parse_pair(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    if key.is_empty() { Err("the key before `=` is empty".to_owned()) } else { Ok((key.to_owned(), value.to_owned())) }
}

/// Reads a setting from a file with JSON.
pub fn parse_json_file<T: DeserializeOwned>(path: &str) -> Result<T, String> {
    /// More than the server accepts in any request.
    const MAX_FILE_BYTES: u64 = 4 << 20;
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(MAX_FILE_BYTES).read_to_string(&mut text));
    read.map_err(|error| format!("cannot read the file: {error}"))?;
    serde_json::from_str(&text).map_err(|error| format!("not valid: {error}"))
}

/// Returns the argument, or all of stdin for `-`.
pub async fn text_or_stdin(argument: &str) -> Result<String> {
    if argument != "-" {
        return Ok(argument.to_owned());
    }
    // The blocking read has its own thread, so that an interrupt can end the command.
    let text = tokio::task::spawn_blocking(read_stdin).await.map_err(std::io::Error::other).flatten();
    text.map_err(|error| Failure::input(format!("cannot read the text from stdin: {error}")))
}

/// Reads all of stdin.
pub fn read_stdin() -> std::io::Result<String> {
    /// More than the server accepts in any request.
    const MAX_STDIN_BYTES: u64 = 4 << 20;
    let mut text = String::new();
    std::io::stdin().lock().take(MAX_STDIN_BYTES).read_to_string(&mut text).map(|_| text)
}

/// The URL or the absolute path of a repository; the server checks that it is one.
pub fn parse_repository(directory: &Path) -> Result<Repo> {
    if let Some(text) = directory.to_str().filter(|text| RemoteUrl::is_url(text) && !directory.exists()) {
        let url = RemoteUrl::parse(text).map_err(|error| {
            Failure::input(format!("--repo: {error}"))
                .with_hint("Use https://HOST/PATH, ssh://USER@HOST/PATH, USER@HOST:PATH or file:///PATH.")
        })?;
        return Ok(Repo { url: Some(url.as_str().to_owned()), ..Repo::default() });
    }
    let path = std::fs::canonicalize(directory).map_err(|error| {
        Failure::input(format!("--repo: cannot use {}: {error}", directory.display()))
            .with_hint("Name a directory with a git repository.")
    })?;
    let path = path.to_str().ok_or_else(|| {
        Failure::input(format!("--repo: the name of {} is not UTF-8", path.display()))
            .with_hint("Rename the directory: the server accepts only UTF-8 paths.")
    })?;
    Ok(Repo { path: Some(path.to_owned()), ..Repo::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinguishes_urls_from_paths() {
        for url in ["https://example.org/x.git", "ssh://git@example.org/x", "git@example.org:x/y.git"] {
            assert_eq!(parse_repository(Path::new(url)).unwrap().url.as_deref(), Some(url));
        }
        for refused in ["https://user:secret@example.org/x", "ext::sh", "git://example.org/x", "http://example.org/x"] {
            let failure = parse_repository(Path::new(refused)).unwrap_err();
            assert!(failure.exit_code() == 2 && !format!("{failure:?}").contains("secret"), "{refused}");
        }
        assert!(parse_repository(Path::new(".")).unwrap().path.unwrap().starts_with('/'));
        assert!(parse_repository(Path::new("/nowhere/at/all")).is_err());
    }

    #[test]
    fn rejects_a_pair_without_a_key() {
        assert_eq!(parse_pair("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert!(parse_pair("a").is_err() && parse_pair("=a").is_err());
    }
}
