//! Confirmation of destructive commands: a question on a terminal, otherwise `--yes`.

use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::render::text;
use std::io::{BufRead, IsTerminal, Write};

#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub struct Confirm {
    /// Do not ask for confirmation
    #[arg(long, short = 'y')]
    yes: bool,
}

impl Confirm {
    /// Asks the user to confirm `action`, a sentence without its full stop that names what is lost.
    pub async fn require(self, action: &str, output: &Output) -> Result {
        if self.yes {
            return Ok(());
        }
        let is_interactive = std::io::stdin().is_terminal() && std::io::stderr().is_terminal() && !output.json;
        if !is_interactive {
            return Err(Failure::setup("not_confirmed", format!("this command {action}"))
                .with_hint("Confirm it with --yes: there is no terminal to ask on."));
        }
        output.flush()?;
        let question = format!("This command {}. Continue? [y/N] ", text::escape_line(action));
        // The blocking read has its own thread, so that an interrupt can end the command.
        let line = tokio::task::spawn_blocking(move || read_answer(&question)).await;
        if line.map_err(std::io::Error::other).flatten().is_ok_and(|line| is_yes(&line)) {
            return Ok(());
        }
        Err(Failure::setup("not_confirmed", "nothing was done"))
    }
}

fn read_answer(question: &str) -> std::io::Result<String> {
    let mut screen = std::io::stderr().lock();
    screen.write_all(question.as_bytes())?;
    screen.flush()?;
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).map(|_| line)
}

fn is_yes(answer: &str) -> bool {
    matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

#[cfg(test)]
mod tests {
    use super::is_yes;

    #[test]
    fn only_a_yes_confirms() {
        assert!(is_yes("y\n") && is_yes(" YES "));
        assert!(!is_yes("") && !is_yes("\n") && !is_yes("n") && !is_yes("yep"));
    }
}
