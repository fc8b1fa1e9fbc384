//! The words and rules of Atoll.
//!
//! Everything here is pure: no I/O, no clock of its own, no async runtime. What the rest of the
//! system does is decided here and carried out elsewhere.

#![warn(clippy::wildcard_enum_match_arm)]

pub mod agent;
pub mod approval;
pub mod bounds;
pub mod budget;
pub mod continuous;
pub mod demo_line;
pub mod event;
pub mod guardian;
pub mod id;
pub mod inbox;
pub mod job;
pub mod json;
pub mod lifecycle;
pub mod limit;
pub mod login;
pub mod message;
pub mod mode;
pub mod model;
pub mod network;
pub mod observe;
pub mod policy;
pub mod principal;
pub mod protected;
pub mod provider;
pub mod redact;
pub mod sandbox;
pub mod secret;
pub mod session;
pub mod time;
pub mod word;

/// A future that can be named, for the few traits that are used as trait objects.
pub type BoxFuture<'a, T> = std::pin::Pin<Box<dyn Future<Output = T> + Send + 'a>>;
