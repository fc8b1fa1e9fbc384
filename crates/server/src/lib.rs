//! The control plane.
//!
//! Two flows go through it, each in one direction. A request: `router` → `api` → `app` → one
//! transaction → `jobs` → provider. An event: worker → `api::worker` → `app::ingest` → store →
//! `hub` → `follow` → `live`.

pub mod agents;
mod api;
pub mod app;
mod auth;
mod blobs;
mod cursor;
mod egress;
mod extract;
mod follow;
mod gateway;
mod guard;
mod holds;
mod hub;
mod jobs;
mod limiter;
mod linked;
mod listener;
mod live;
mod metrics;
mod once;
mod openapi;
pub mod options;
pub mod problem;
mod providers;
mod repo;
mod retention;
pub mod router;
mod samples;
pub mod secrets;
mod serve;
pub mod state;
mod terminals;

pub use options::Options;
pub use serve::{Error, Server};
