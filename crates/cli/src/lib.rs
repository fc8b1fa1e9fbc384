//! The command line `atoll`: starts a server and sends requests to one.
//!
//! `cli` lists every command and its module. A command finds its server with `connect`, sends typed requests, and
//! prints the response with `render` and `output`, or fails with a `failure::Failure`.

mod agents;
mod approvals;
mod arguments;
mod backup;
mod cache;
mod chunk_channel;
pub mod cli;
mod code;
mod compare;
pub mod completions;
mod config;
mod confirm;
mod connect;
mod current_repository;
mod doctor;
mod embedded;
mod event_log;
pub mod failure;
mod forge;
mod gc;
mod help;
mod image;
mod image_source;
mod inbox;
pub mod launcher;
mod model_script;
mod openapi;
pub mod output;
mod pages;
mod project;
mod providers;
mod pull_request;
mod references;
mod render;
mod run;
mod runtime;
mod sandbox;
mod sandbox_overview;
mod secret;
mod secret_prompt;
mod serve;
mod session;
mod setting_flags;
mod settings;
mod setup;
mod snapshot;
mod spinner;
mod stdin_stream;
mod stored_state;
mod ticket;
mod token;
mod user;
mod verify;
mod worker_command;
