//! The kinds of values that a key may have, and what each allows, in words.

use std::borrow::Cow;

/// What may stand as a key's value.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Text,
    /// A leading `~/` is the home directory; a relative path starts at the working directory.
    Path,
    Bool,
    Integer {
        least: u64,
        most: u64,
    },
    /// Above zero, with a fraction.
    Number {
        most: f64,
    },
    Duration {
        zero: bool,
        never: bool,
    },
    Address,
    /// Names of hosts, each with an optional port.
    Hosts,
    /// Absolute paths.
    Paths,
    /// Paths below a workspace.
    Protected,
    /// Hosts with a port, addresses and ranges of addresses.
    Places,
    /// Never shown.
    Secret,
    /// Shown without its password.
    SecretUrl {
        schemes: &'static [&'static str],
    },
    /// A base URL without credentials.
    Url,
    Word(fn() -> Vec<&'static str>),
    /// A value with a form of its own, checked and brought to its full form by the function.
    Structure {
        read: fn(serde_json::Value) -> Result<serde_json::Value, String>,
        form: &'static str,
    },
}

impl Kind {
    /// The end of the sentence "allowed: …".
    pub(crate) fn allowed(&self) -> Cow<'static, str> {
        match self {
            Self::Text => "text on one line".into(),
            Self::Path => "a path".into(),
            Self::Bool => "true or false".into(),
            Self::Integer { least, most } => format!("a whole number from {least} to {most}").into(),
            Self::Number { most } => format!("a number above 0, at most {most}").into(),
            Self::Duration { zero, never } => {
                let form = if *zero {
                    "a time like 0s, 500ms, 30s, 10m, 24h or 7d"
                } else {
                    "a time above 0 like 500ms, 30s, 10m, 24h or 7d"
                };
                if *never { format!("{form}, or never").into() } else { form.into() }
            }
            Self::Address => "an IP address with a port, like 127.0.0.1:7700 or \"[::1]:7700\"".into(),
            Self::Hosts => "a list of host names, each with an optional port and without a scheme".into(),
            Self::Paths => "a list of absolute paths".into(),
            Self::Protected => "a list of files and directories, relative to the workspace".into(),
            Self::Places => "a list of host:port, addresses, and ranges like 10.1.0.0/16".into(),
            Self::Secret => "text on one line; it is not repeated here".into(),
            Self::SecretUrl { schemes } => format!(
                "a URL that begins with {}, special characters in it percent-encoded; it is not repeated here",
                schemes.join(" or ")
            )
            .into(),
            Self::Url => "a URL that begins with http:// or https://, without user, query and fragment".into(),
            Self::Word(words) => words().join(", ").into(),
            Self::Structure { form, .. } => (*form).into(),
        }
    }

    pub(crate) fn is_secret(&self) -> bool {
        matches!(self, Self::Secret | Self::SecretUrl { .. })
    }
}
