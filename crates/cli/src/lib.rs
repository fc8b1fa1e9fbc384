//! The command line `atoll`: it starts the server, and it talks to one.
//!
//! `cli` is the map: every command and the file that does it.

mod arguments;
pub mod cli;
pub mod failure;
pub mod output;
mod serve;
mod settings;
