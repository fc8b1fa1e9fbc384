//! The command line `atoll`: it starts the server, and it talks to one.
//!
//! `cli` is the map: every command and the file that does it. A command asks `client`, and shows
//! the answer through `render` and `output`, or ends with a `failure`.

mod agents;
mod approvals;
mod arguments;
mod backup;
pub mod cli;
mod client;
mod compare;
mod config;
mod doctor;
mod embedded;
pub mod failure;
mod gc;
mod hidden;
mod image;
mod inbox;
pub mod launcher;
mod model_script;
mod openapi;
pub mod output;
mod project;
mod reading;
mod render;
mod run;
mod sandbox;
mod secret;
mod serve;
mod session;
mod settings;
mod snapshot;
mod token;
mod user;
mod verify;
mod worker_start;
mod working;
