//! Formats of single values.

use super::{BaseDirs, Format, Mismatch, PlainFormat, RawInput, resolve_path};
use crate::duration;
use crate::yaml::parse_plain_bool;
use secrecy::SecretString;
use std::fmt::Display;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Text on one line.
pub(crate) const TEXT: PlainFormat<String> = PlainFormat {
    expected: "text on one line",
    parse: |input, _| input.single_line().map(str::to_owned),
    show: String::clone,
};

/// Text that Atoll never prints.
pub(crate) struct SecretText;

impl Format for SecretText {
    type Value = SecretString;
    const IS_SECRET: bool = true;

    fn describe_expected(&self) -> String {
        "text on one line (the value is a secret and not shown)".to_owned()
    }

    fn parse_value(&self, input: &RawInput<'_>, _: &BaseDirs<'_>) -> Result<SecretString, Mismatch> {
        input.single_line().map(SecretString::from)
    }

    fn show_value(&self, _: &SecretString) -> String {
        "***".to_owned()
    }

    fn secret_parts(&self, value: &SecretString) -> Vec<SecretString> {
        vec![value.clone()]
    }
}

/// A path; a leading `~/` is the home directory, and a relative path starts at the working directory.
pub(crate) const FILE_PATH: PlainFormat<PathBuf> = PlainFormat {
    expected: "a path",
    parse: |input, dirs| resolve_path(input.single_line()?, dirs),
    show: |path| path.display().to_string(),
};

pub(crate) const SWITCH: PlainFormat<bool> = PlainFormat {
    expected: "true or false",
    parse: |input, _| {
        let text = input.unquoted_text()?;
        let value = match input {
            RawInput::Node(_) => parse_plain_bool(text),
            RawInput::Text(_) => match text.to_ascii_lowercase().as_str() {
                "true" | "1" => Some(true),
                "false" | "0" => Some(false),
                _ => None,
            },
        };
        value.ok_or_else(|| Mismatch::new(text))
    },
    show: bool::to_string,
};

/// A whole number from the first to the second bound.
pub(crate) struct Integer<T>(pub(crate) T, pub(crate) T);

impl<T: FromStr + Display + PartialOrd> Format for Integer<T> {
    type Value = T;

    fn describe_expected(&self) -> String {
        format!("a whole number from {} to {}", self.0, self.1)
    }

    fn parse_value(&self, input: &RawInput<'_>, _: &BaseDirs<'_>) -> Result<T, Mismatch> {
        let text = input.unquoted_text()?;
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let number = text.parse().ok().filter(|number| digits && *number >= self.0 && *number <= self.1);
        number.ok_or_else(|| Mismatch::new(text))
    }

    fn show_value(&self, value: &T) -> String {
        value.to_string()
    }
}

/// A rate per minute; 0 is no limit.
pub(crate) struct PerMinute;

const RATE_FORMAT: Integer<u32> = Integer(0, 10_000_000);

impl Format for PerMinute {
    type Value = Option<NonZeroU32>;

    fn describe_expected(&self) -> String {
        RATE_FORMAT.describe_expected()
    }

    fn parse_value(&self, input: &RawInput<'_>, dirs: &BaseDirs<'_>) -> Result<Self::Value, Mismatch> {
        RATE_FORMAT.parse_value(input, dirs).map(NonZeroU32::new)
    }

    fn show_value(&self, value: &Self::Value) -> String {
        value.map_or(0, NonZeroU32::get).to_string()
    }
}

/// A number above zero and at most this one.
pub(crate) struct Number(pub(crate) f64);

impl Format for Number {
    type Value = f64;

    fn describe_expected(&self) -> String {
        format!("a number above 0, at most {}", self.0)
    }

    fn parse_value(&self, input: &RawInput<'_>, _: &BaseDirs<'_>) -> Result<f64, Mismatch> {
        let text = input.unquoted_text()?;
        let number = text.parse().ok().filter(|number| *number > 0.0 && *number <= self.0);
        number.ok_or_else(|| Mismatch::new(text))
    }

    fn show_value(&self, value: &f64) -> String {
        value.to_string()
    }
}

/// A time above zero.
pub(crate) const TIME: PlainFormat<Duration> = PlainFormat {
    expected: "a time above 0 like 500ms, 30s, 10m, 24h or 7d",
    parse: |input, dirs| {
        let time = TIME_OR_ZERO.parse_value(input, dirs)?;
        if time.is_zero() { Err(Mismatch::new(input.scalar_text()?.0)) } else { Ok(time) }
    },
    show: |time| duration::format_duration(*time),
};

pub(crate) const TIME_OR_ZERO: PlainFormat<Duration> = PlainFormat {
    expected: "a time like 0s, 500ms, 30s, 10m, 24h or 7d",
    parse: |input, _| {
        let (text, _) = input.scalar_text()?;
        duration::parse_duration(text).ok_or_else(|| Mismatch::new(text))
    },
    show: |time| duration::format_duration(*time),
};

/// A time above zero, or `never`, which is `None`.
pub(crate) const TIME_OR_NEVER: PlainFormat<Option<Duration>> = PlainFormat {
    expected: "a time above 0 like 500ms, 30s, 10m, 24h or 7d, or never",
    parse: |input, dirs| {
        if input.scalar_text()?.0 == "never" { Ok(None) } else { TIME.parse_value(input, dirs).map(Some) }
    },
    show: |time| time.map_or_else(|| "never".to_owned(), duration::format_duration),
};

pub(crate) const ADDRESS: PlainFormat<SocketAddr> = PlainFormat {
    expected: "an IP address with a port, like 127.0.0.1:7700 or \"[::1]:7700\"",
    parse: |input, _| {
        let (text, _) = input.scalar_text()?;
        text.parse().map_err(|_| Mismatch::new(text))
    },
    show: SocketAddr::to_string,
};

/// One word of a closed set.
pub(crate) struct OneOf<T: 'static>(pub(crate) &'static [T]);

impl<T: FromStr + Display> Format for OneOf<T> {
    type Value = T;

    fn describe_expected(&self) -> String {
        format!("one of {}", self.0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
    }

    fn parse_value(&self, input: &RawInput<'_>, _: &BaseDirs<'_>) -> Result<T, Mismatch> {
        let (text, _) = input.scalar_text()?;
        text.parse().map_err(|_| Mismatch::new(text))
    }

    fn show_value(&self, value: &T) -> String {
        value.to_string()
    }
}
