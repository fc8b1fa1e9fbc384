//! Values on the command line.

use std::str::FromStr;

/// One of a closed set of words; the refusal lists them.
pub fn word<T>(text: &str) -> Result<T, String>
where
    T: FromStr,
    T::Err: std::fmt::Display,
{
    text.parse().map_err(|error: T::Err| error.to_string())
}
