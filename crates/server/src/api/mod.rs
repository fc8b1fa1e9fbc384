//! HTTP handlers, one file per resource. A handler parses the request, calls one function of `app` and responds.
//!
//! Handlers contain no rules and do not use the store. Their arguments include the access that they require.

pub mod agents;
pub mod approvals;
pub mod blobs;
pub mod commands;
pub mod diff;
pub mod events;
pub mod files;
pub mod gc;
pub mod health;
pub mod images;
pub mod limits;
pub mod messages;
pub mod network;
pub mod projects;
pub mod sandboxes;
pub mod secrets;
pub mod sessions;
pub mod snapshots;
pub mod tokens;
pub mod users;
pub mod worker;
