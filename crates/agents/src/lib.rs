//! Finds and installs the programs of agents on this machine.
//!
//! [`find`] searches the configured path, the data directory and `PATH`, and lists the mounts that a sandbox needs. It
//! starts and downloads nothing. [`version`] runs a program once to get its version and caches it. [`install`] installs
//! a package that the caller has downloaded.

#![warn(clippy::wildcard_enum_match_arm)]

pub mod find;
pub mod install;
pub mod known_agents;
pub mod version;

pub use find::{AgentLocations, InstalledAgent, MissingAgent, Origin};
pub use known_agents::Agent;

/// The subdirectory of the data directory that holds installed agents.
pub const AGENTS_DIR: &str = "agents";
