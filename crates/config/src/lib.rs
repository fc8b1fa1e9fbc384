//! Atoll's settings: one set of keys, taken from **flag > environment > file > default**, each with its origin.
//!
//! Everything starts from the table in `keys.rs`: what may be written, how it is read, what it is without being
//! written, and the sentence that explains it. [`load`] asks nothing of the process it runs in, so a test can hand
//! it any world; [`Inputs::of_this_process`] collects the real one. A load either gives a [`Config`] that is valid
//! as a whole or an [`Error`] with every problem that was found.

#![allow(unexpected_cfgs, reason = "`words!` asks for a feature of the crates that describe an HTTP interface")]

mod assemble;
mod checks;
mod config;
mod duration;
pub mod env;
mod error;
mod example;
mod fake;
mod file;
mod keys;
mod kind;
mod load;
mod models;
mod source;
mod suggest;
mod url;
mod value;
mod yaml;

#[cfg(test)]
mod tests;

pub use config::{
    Agent, Agents, Config, Continuous, CreateTimeout, Database, Daytona, Docker, Github, Heartbeat, Level, Limits, Log,
    LogFormat, Messages, Metrics, Orchestrator, Provider, Providers, Retention, Sandbox, Server, Timeout, Tls,
};
pub use error::{Error, Problem};
pub use example::example;
pub use fake::{Fake, Fault, FaultAt, FaultKind};
pub use load::{Inputs, Loaded, load};
pub use models::{Model, Models, Upstream};
pub use source::{Shown, Source, Warning};
pub use yaml::yaml_value;
