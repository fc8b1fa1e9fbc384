//! The control plane.
//!
//! Two flows go through it, each in one direction. A request: `router` → `api` → `app` → one transaction → `jobs` →
//! provider. An event: worker → `api::worker` → `app::ingest` → store → `hub` → `follow` → `live`.

pub mod agents;
mod api;
pub mod app;
mod auth;
mod blobs;
mod circuits;
mod conductor;
mod connections;
mod cursor;
mod data_dir;
mod egress;
mod event_follower;
mod extract;
pub mod forge_access;
mod forge_logins;
mod gateway;
mod guard;
mod host_load;
mod hub;
mod idempotency;
mod ingest_gates;
mod job_queue;
mod jobs;
mod keyed_locks;
mod limiter;
mod listener;
mod live;
mod metrics;
mod openapi;
pub mod options;
mod page;
mod previews;
pub mod problem;
mod providers;
mod read_only;
mod repositories;
mod retention;
pub mod router;
mod samples;
pub mod secrets;
mod serve;
mod shares;
pub mod state;
mod telemetry;
mod terminals;
mod uses;
mod worker_link;

pub use data_dir::secure_data_dir;
pub use options::Options;
pub use page::PageFile;
pub use read_only::ReadOnlyServer;
pub use serve::{Error, Server};
