//! Reading what was written for a key, by the key's kind.

use crate::duration;
use crate::kind::Kind;
use crate::url;
use crate::yaml::{Content, Node, plain_bool};
use atoll_core::network::Exception;
use atoll_core::protected;
use secrecy::{ExposeSecret, SecretString};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A value that has been read and found good.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    Text(String),
    Path(PathBuf),
    Bool(bool),
    Integer(u64),
    Number(f64),
    /// `None` is never.
    Duration(Option<Duration>),
    Address(SocketAddr),
    List(Vec<String>),
    Secret(SecretString),
    SecretUrl(SecretString),
    Structure(serde_json::Value),
}

/// What was written: text from a flag, the environment or the table of defaults, or a part of a file.
pub(crate) enum Written<'a> {
    Text(&'a str),
    Node(&'a Node),
}

/// Where relative paths and `~` start.
pub(crate) struct Places<'a> {
    pub(crate) cwd: &'a Path,
    pub(crate) home: Option<&'a Path>,
}

pub(crate) enum Refusal {
    WrongType(&'static str),
    BadValue { given: String, detail: Option<String> },
}

impl Value {
    /// As `atoll config` shows it, and, but for secrets, as YAML.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Path(path) => path.display().to_string(),
            Self::Bool(value) => value.to_string(),
            Self::Integer(value) => value.to_string(),
            Self::Number(value) => value.to_string(),
            Self::Duration(None) => "never".to_owned(),
            Self::Duration(Some(value)) => duration::show(*value),
            Self::Address(address) => address.to_string(),
            Self::List(items) => format!("[{}]", items.join(", ")),
            Self::Secret(_) => "***".to_owned(),
            Self::SecretUrl(value) => url::shown(value.expose_secret()),
            Self::Structure(value) => value.to_string(),
        }
    }

    /// Everything in it that must not be seen.
    pub(crate) fn secrets(&self) -> Vec<SecretString> {
        match self {
            Self::Secret(value) => vec![value.clone()],
            Self::SecretUrl(value) => {
                let passwords = url::passwords(value.expose_secret());
                let whole = (!passwords.is_empty()).then(|| value.clone());
                passwords.into_iter().map(SecretString::from).chain(whole).collect()
            }
            _ => Vec::new(),
        }
    }
}

pub(crate) fn read(kind: &Kind, written: &Written<'_>, places: &Places<'_>) -> Result<Value, Refusal> {
    match kind {
        Kind::Structure { read, .. } => structure(*read, written),
        Kind::Hosts => hosts(written),
        Kind::Paths => paths(written),
        Kind::Protected => protected(written),
        Kind::Places => places_of(written),
        _ => {
            let text = scalar(kind, written)?;
            let value = from_text(kind, text, matches!(written, Written::Node(_)), places);
            value.map_err(|detail| Refusal::BadValue { given: text.to_owned(), detail })
        }
    }
}

/// The text of a single value, if its form in the file suits the kind.
fn scalar<'a>(kind: &Kind, written: &Written<'a>) -> Result<&'a str, Refusal> {
    let (text, plain) = match written {
        Written::Text(text) => return Ok(text),
        Written::Node(node) => match &node.content {
            Content::Scalar { text, plain } => (text, *plain),
            Content::List(_) => return Err(Refusal::WrongType("a list")),
            Content::Map(_) => return Err(Refusal::WrongType("a mapping")),
        },
    };
    match kind {
        Kind::Bool | Kind::Integer { .. } | Kind::Number { .. } if !plain => Err(Refusal::WrongType("text in quotes")),
        Kind::Text | Kind::Path | Kind::Secret if plain && plain_bool(text).is_some() => {
            Err(Refusal::WrongType("true or false without quotes"))
        }
        _ => Ok(text),
    }
}

fn from_text(kind: &Kind, text: &str, in_file: bool, places: &Places<'_>) -> Result<Value, Option<String>> {
    let value = match kind {
        Kind::Text => one_line(text).map(|()| Value::Text(text.to_owned()))?,
        Kind::Secret => one_line(text).map(|()| Value::Secret(text.into()))?,
        Kind::Path => one_line(text).and_then(|()| path(text, places)).map(Value::Path)?,
        Kind::Bool if in_file => Value::Bool(plain_bool(text).ok_or(None)?),
        Kind::Bool => match text.to_ascii_lowercase().as_str() {
            "true" | "1" => Value::Bool(true),
            "false" | "0" => Value::Bool(false),
            _ => return Err(None),
        },
        Kind::Integer { least, most } => {
            let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            let number = text.parse().ok().filter(|number| digits && (least..=most).contains(&number));
            Value::Integer(number.ok_or(None)?)
        }
        Kind::Number { most } => {
            let number = text.parse().ok().filter(|number| *number > 0.0 && number <= most);
            Value::Number(number.ok_or(None)?)
        }
        Kind::Duration { never: true, .. } if text == "never" => Value::Duration(None),
        Kind::Duration { zero, .. } => {
            let read = duration::parse(text).filter(|duration| *zero || !duration.is_zero());
            Value::Duration(Some(read.ok_or(None)?))
        }
        Kind::Address => Value::Address(text.parse().map_err(|_| None)?),
        Kind::SecretUrl { schemes } => {
            one_line(text)?;
            url::check_secret(text, schemes)?;
            Value::SecretUrl(text.into())
        }
        Kind::Url => url::check_base(text).map(|()| Value::Text(text.trim_end_matches('/').to_owned()))?,
        Kind::Word(words) => {
            let known = words().contains(&text);
            known.then(|| Value::Text(text.to_owned())).ok_or(None)?
        }
        // These have been read before, since they are more than one word.
        Kind::Hosts | Kind::Paths | Kind::Protected | Kind::Places | Kind::Structure { .. } => return Err(None),
    };
    Ok(value)
}

fn one_line(text: &str) -> Result<(), String> {
    if text.trim().is_empty() {
        return Err("it is empty".to_owned());
    }
    if text.contains(char::REPLACEMENT_CHARACTER) {
        return Err("it is not UTF-8".to_owned());
    }
    if text.chars().any(char::is_control) {
        return Err("it has control characters or line breaks".to_owned());
    }
    Ok(())
}

pub(crate) fn path(text: &str, places: &Places<'_>) -> Result<PathBuf, String> {
    match text.strip_prefix("~/").or((text == "~").then_some("")) {
        Some(rest) => places.home.map(|home| home.join(rest)).ok_or_else(|| "there is no home directory".to_owned()),
        None => Ok(places.cwd.join(text)),
    }
}

/// The items of a list, which in the environment stands in one text with commas.
fn list(written: &Written<'_>) -> Result<Vec<String>, Refusal> {
    Ok(match written {
        Written::Text(text) => {
            text.split(',').map(str::trim).filter(|host| !host.is_empty()).map(str::to_owned).collect()
        }
        Written::Node(Node { content: Content::List(items), .. }) => {
            let texts = items.iter().map(|item| match &item.content {
                Content::Scalar { text, .. } => Ok(text.clone()),
                Content::List(_) | Content::Map(_) => Err(Refusal::WrongType("something other than text in the list")),
            });
            texts.collect::<Result<_, _>>()?
        }
        Written::Node(Node { content: Content::Scalar { .. }, .. }) => {
            return Err(Refusal::WrongType("a single value"));
        }
        Written::Node(Node { content: Content::Map(_), .. }) => return Err(Refusal::WrongType("a mapping")),
    })
}

fn paths(written: &Written<'_>) -> Result<Value, Refusal> {
    let paths = list(written)?;
    match paths.iter().find(|path| !path.starts_with('/') || path.chars().any(char::is_control)) {
        Some(bad) => Err(Refusal::BadValue { given: bad.clone(), detail: Some("it is not absolute".into()) }),
        None => Ok(Value::List(paths)),
    }
}

fn protected(written: &Written<'_>) -> Result<Value, Refusal> {
    let paths = list(written)?;
    match protected::paths("protected", &paths) {
        Ok(paths) => Ok(Value::List(paths)),
        Err(error) => Err(Refusal::BadValue { given: paths.join(", "), detail: Some(error.detail) }),
    }
}

fn places_of(written: &Written<'_>) -> Result<Value, Refusal> {
    let places = list(written)?;
    for place in &places {
        if let Err(error) = place.parse::<Exception>() {
            return Err(Refusal::BadValue { given: place.clone(), detail: Some(error.to_string()) });
        }
    }
    Ok(Value::List(places))
}

fn hosts(written: &Written<'_>) -> Result<Value, Refusal> {
    let hosts = list(written)?;
    match hosts.iter().find(|host| !is_host(host)) {
        Some(bad) => Err(Refusal::BadValue { given: bad.clone(), detail: None }),
        None => Ok(Value::List(hosts.into_iter().map(|host| host.to_ascii_lowercase()).collect())),
    }
}

fn is_host(text: &str) -> bool {
    if let Some(rest) = text.strip_prefix('[') {
        return rest.split_once(']').is_some_and(|(address, tail)| {
            address.parse::<std::net::Ipv6Addr>().is_ok()
                && (tail.is_empty() || tail.strip_prefix(':').is_some_and(is_port))
        });
    }
    let (name, port) = text.split_once(':').map_or((text, None), |(name, port)| (name, Some(port)));
    let name_is_good = (1..=253).contains(&name.len())
        && !name.starts_with(['-', '.'])
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
    name_is_good && port.is_none_or(is_port)
}

fn is_port(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit()) && text.parse::<u16>().is_ok()
}

fn structure(
    read: fn(serde_json::Value) -> Result<serde_json::Value, String>,
    written: &Written<'_>,
) -> Result<Value, Refusal> {
    let json = match written {
        Written::Text(text) => serde_json::from_str(text).map_err(|error| format!("not JSON: {error}")),
        Written::Node(node) => node.to_json(),
    };
    let given = |written: &Written<'_>| match written {
        Written::Text(text) => (*text).to_owned(),
        Written::Node(node) => node.to_json().map(|json| json.to_string()).unwrap_or_else(|_| "…".to_owned()),
    };
    json.and_then(read)
        .map(Value::Structure)
        .map_err(|detail| Refusal::BadValue { given: given(written), detail: Some(detail) })
}
