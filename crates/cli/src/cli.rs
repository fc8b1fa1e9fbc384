//! The map: every command and the file that does it.

use crate::failure::Result;
use crate::output::Output;
use crate::serve;
use clap::{Parser, Subcommand};

/// Run coding agents in sandboxes you own.
#[derive(Debug, Parser)]
#[command(name = "atoll", version, max_term_width = 110)]
pub struct Cli {
    /// Print JSON, one object a line
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start the server
    Serve(serve::Serve),
}

pub fn run(cli: &Cli, output: &Output) -> Result {
    match &cli.command {
        Command::Serve(serve) => serve::run(serve, output),
    }
}
