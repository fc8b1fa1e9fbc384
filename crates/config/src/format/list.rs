//! Formats of lists. A flag or an environment variable holds the items separated by commas.

use super::{Mismatch, PlainFormat, RawInput};
use crate::yaml::{Node, NodeContent};
use atoll_core::network::{AddressException, AllowEntry, MAX_ALLOW_ENTRIES};
use atoll_core::protected_paths;
use std::net::Ipv6Addr;
use std::path::PathBuf;

fn read_items(input: &RawInput<'_>) -> Result<Vec<String>, Mismatch> {
    match input {
        RawInput::Text(text) => {
            Ok(text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect())
        }
        RawInput::Node(Node { content: NodeContent::List(items), .. }) => {
            let texts = items.iter().map(|item| match &item.content {
                NodeContent::Scalar { text, .. } => Ok(text.clone()),
                NodeContent::List(_) | NodeContent::Map(_) => Err(Mismatch::Type("a list with other items than text")),
            });
            texts.collect()
        }
        RawInput::Node(Node { content: NodeContent::Scalar { .. }, .. }) => Err(Mismatch::Type("a single value")),
        RawInput::Node(Node { content: NodeContent::Map(_), .. }) => Err(Mismatch::Type("a mapping")),
    }
}

fn show_items(items: impl IntoIterator<Item = impl ToString>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    format!("[{}]", items.join(", "))
}

/// Host names in lower case, each with an optional port.
pub(crate) const HOSTS: PlainFormat<Vec<String>> = PlainFormat {
    expected: "a list of host names, each with an optional port and without a scheme",
    parse: |input, _| {
        let hosts = read_items(input)?;
        match hosts.iter().find(|host| !is_host(host)) {
            Some(bad) => Err(Mismatch::new(bad)),
            None => Ok(hosts.into_iter().map(|host| host.to_ascii_lowercase()).collect()),
        }
    },
    show: |hosts| show_items(hosts),
};

/// A host name or address with an optional port.
pub(crate) fn is_host(text: &str) -> bool {
    if let Some(rest) = text.strip_prefix('[') {
        return rest.split_once(']').is_some_and(|(address, tail)| {
            address.parse::<Ipv6Addr>().is_ok() && (tail.is_empty() || tail.strip_prefix(':').is_some_and(is_port))
        });
    }
    let (name, port) = text.split_once(':').map_or((text, None), |(name, port)| (name, Some(port)));
    let is_name = (1..=253).contains(&name.len())
        && !name.starts_with(['-', '.'])
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
    is_name && port.is_none_or(is_port)
}

fn is_port(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit()) && text.parse::<u16>().is_ok()
}

/// Hosts of a network policy.
pub(crate) const ALLOWED_HOSTS: PlainFormat<Vec<String>> = PlainFormat {
    expected: "a list of hosts: NAME, *.NAME, or either with :PORT",
    parse: |input, _| {
        let hosts = read_items(input)?;
        if hosts.len() > MAX_ALLOW_ENTRIES {
            return Err(Mismatch::with_detail(&hosts.join(", "), format!("at most {MAX_ALLOW_ENTRIES} hosts")));
        }
        match hosts.iter().find_map(|host| Some((host, AllowEntry::parse(host).err()?))) {
            Some((bad, error)) => Err(Mismatch::with_detail(bad, error.to_string())),
            None => Ok(hosts),
        }
    },
    // `*` begins an alias in YAML.
    show: |hosts| show_items(hosts.iter().map(|host| format!("\"{host}\""))),
};

pub(crate) const ABSOLUTE_PATHS: PlainFormat<Vec<PathBuf>> = PlainFormat {
    expected: "a list of absolute paths",
    parse: |input, _| {
        let paths = read_items(input)?;
        match paths.iter().find(|path| !path.starts_with('/') || path.chars().any(char::is_control)) {
            Some(bad) => Err(Mismatch::with_detail(bad, "it is not absolute")),
            None => Ok(paths.into_iter().map(PathBuf::from).collect()),
        }
    },
    show: |paths| show_items(paths.iter().map(|path| path.display())),
};

/// Paths below a workspace, sorted and without duplicates.
pub(crate) const WORKSPACE_PATHS: PlainFormat<Vec<String>> = PlainFormat {
    expected: "a list of files and directories, relative to the workspace",
    parse: |input, _| {
        let paths = read_items(input)?;
        protected_paths::join_protected_paths("protected", &paths)
            .map_err(|error| Mismatch::with_detail(&paths.join(", "), error.detail))
    },
    show: |paths| show_items(paths),
};

/// Hosts with a port, addresses, and address ranges.
pub(crate) const PRIVATE_RANGES: PlainFormat<Vec<AddressException>> = PlainFormat {
    expected: "a list of host:port, addresses, and ranges like 10.1.0.0/16",
    parse: |input, _| {
        let items = read_items(input)?.into_iter();
        items.map(|item| item.parse().map_err(|_| Mismatch::new(&item))).collect()
    },
    show: |ranges| show_items(ranges),
};
