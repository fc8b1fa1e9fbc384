//! `atoll completions`: prints shell completions.

use crate::cli::Cli;
use crate::failure::Result;
use crate::output::Output;
use clap::CommandFactory;
use clap_complete::Shell;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll completions bash > ~/.local/share/bash-completion/completions/atoll
  atoll completions zsh > ~/.zfunc/_atoll
  atoll completions fish > ~/.config/fish/completions/atoll.fish")]
pub struct Completions {
    shell: Shell,
}

pub fn run(completions: &Completions, output: &Output) -> Result {
    let mut script = Vec::new();
    clap_complete::generate(completions.shell, &mut Cli::command(), "atoll", &mut script);
    output.print_line(String::from_utf8_lossy(&script).trim_end())
}
