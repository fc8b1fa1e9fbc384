//! Domain types and rules of Atoll.
//!
//! Everything here is pure: no I/O, no clock of its own, no async runtime. This crate makes decisions; other crates
//! execute them.

#![warn(clippy::wildcard_enum_match_arm)]

pub mod agent;
pub mod agent_status;
pub mod approval;
pub mod bounds;
pub mod branch_workflow;
pub mod budget;
pub mod conductor;
pub mod continuous;
pub mod demo_line;
pub mod event;
mod event_types;
pub mod fake_options;
pub mod forge;
pub mod git_settings;
pub mod guardian;
pub mod health;
pub mod id;
pub mod inbox;
pub mod job;
pub mod json;
pub mod lifecycle;
pub mod limit;
pub mod log_quota;
pub mod login;
pub mod message;
pub mod mode;
pub mod model;
pub mod network;
pub mod observation;
pub mod policy;
pub mod price_table;
pub mod principal;
pub mod protected_paths;
pub mod provider;
pub mod pull_request;
pub mod redact;
pub mod reference;
pub mod registry;
pub mod sandbox;
pub mod secret;
pub mod service;
pub mod session;
pub mod session_key;
pub mod setup;
pub mod setup_phase;
pub mod size;
pub mod sparse_checkout;
pub mod string_enum;
pub mod task;
pub mod ticket;
pub mod time;
pub mod trace;

/// A boxed future, for the few traits used as trait objects.
pub type BoxFuture<'a, T> = std::pin::Pin<Box<dyn Future<Output = T> + Send + 'a>>;
