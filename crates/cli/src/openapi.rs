//! `atoll openapi` and `atoll completions`: what the program knows about itself.

use crate::cli::Cli;
use crate::failure::{Failure, Result};
use crate::output::Output;
use clap::CommandFactory;
use clap_complete::Shell;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll openapi > openapi.json
  atoll openapi --json | jq '.paths | keys'")]
pub struct OpenApi {}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll completions bash > ~/.local/share/bash-completion/completions/atoll
  atoll completions zsh > ~/.zfunc/_atoll
  atoll completions fish > ~/.config/fish/completions/atoll.fish")]
pub struct Completions {
    shell: Shell,
}

/// The document of the API, made from the handlers themselves.
pub fn run(output: &Output) -> Result {
    let document = atoll_server::router::openapi();
    let text = if output.json { document.to_json() } else { document.to_pretty_json() };
    let text = text.map_err(|error| Failure::work("openapi", error))?;
    if output.json { output.raw_object(&text) } else { output.line(&text) }
}

pub fn completions(completions: &Completions, output: &Output) -> Result {
    let mut script = Vec::new();
    clap_complete::generate(completions.shell, &mut Cli::command(), "atoll", &mut script);
    output.line(String::from_utf8_lossy(&script).trim_end())
}
