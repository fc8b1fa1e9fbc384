//! Agents' programs on this machine: which there are, how they are found, and how they are installed.
//!
//! [`find`] looks at the place that the configuration names, in the data directory, and in `PATH`, and says what of it a
//! sandbox has to be shown. Nothing is started for that, and nothing fetched: [`version`] starts a program once and
//! remembers, [`install`] takes a package that somebody else fetched.

#![warn(clippy::wildcard_enum_match_arm)]

pub mod find;
pub mod install;
pub mod known;
pub mod version;

pub use find::{Found, Missing, Origin, Places};
pub use known::Agent;

/// Where in the data directory agents are installed.
pub const DIRECTORY: &str = "agents";
