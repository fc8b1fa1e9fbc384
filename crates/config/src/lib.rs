//! Atoll's configuration: typed values from **flag > environment > file > default**, each with its source.
//!
//! `sections.rs` declares every key once. [`load_config`] reads nothing from the process, so a test can pass any [`Inputs`];
//! [`Inputs::of_this_process`] collects the real ones. A load returns a valid [`Config`], or an [`Error`] with every
//! problem.

#![allow(unexpected_cfgs, reason = "`string_enum!` uses a feature of the crates that describe an HTTP interface")]

mod acp_agents;
mod checks;
mod duration;
pub mod env;
mod error;
mod example;
mod file;
mod format;
mod git_section;
mod github_section;
mod guardian_section;
mod health_section;
mod key;
mod load;
mod models;
mod orchestrator_section;
mod packages;
mod page_sections;
mod registries;
mod sections;
mod setup_section;
mod source;
mod suggest;
mod telemetry_section;
mod values;
mod yaml;

#[cfg(test)]
mod tests;

pub use acp_agents::AcpAgent;
pub use error::{ConfigProblem, Error};
pub use example::example_file;
pub use git_section::{Git, GitCredential};
pub use github_section::Github;
pub use health_section::Health;
pub use key::flag_names;
pub use load::{Inputs, LoadedConfig, load_config};
pub use models::{Model, Upstream, UpstreamEntry};
pub use orchestrator_section::{Orchestrator, Retries};
pub use page_sections::{Preview, SignIn};
pub use registries::{Registries, RegistryEntry};
pub use sections::{
    Agent, Agents, Anthropic, Config, Continuous, CreateTimeout, Daytona, Docker, Gemini, Heartbeat, Limits, Local,
    Log, Messages, Metrics, Network, OpenAi, Provider, Providers, Retention, Sandbox, SecretKey, Server, Terminal,
    Timeout,
};
pub use setup_section::Setup;
pub use source::{Setting, SettingSource, Warning};
pub use telemetry_section::{Otlp, Telemetry};
pub use values::{Database, Level, LogFormat, Tls};
pub use yaml::parse_yaml;
