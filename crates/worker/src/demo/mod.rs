//! The demo agent: a program that needs no model. It obeys the lines of `atoll_core::demo_line`, in its prompt and in
//! what is said to it during a turn, and given prose it does a little work that can be watched.
//!
//! `wire` is how it is spoken to, `inbox` what has been said to it, `turn` a turn of its work, `tool` how it writes
//! files and runs commands, `survey` and `work` what it makes of prose, `misfortune` how it goes wrong on purpose.

use inbox::Inbox;
use std::process::ExitCode;
use turn::Agent;

mod inbox;
mod misfortune;
mod survey;
mod tool;
mod turn;
pub mod wire;
mod work;

/// Runs the agent until its input ends. The arguments are how many turns there were before, and whether it is watched.
pub fn main(arguments: &[String]) -> ExitCode {
    let turns = arguments.first().and_then(|turns| turns.parse().ok()).unwrap_or(0);
    let watched = arguments.get(1).is_some_and(|word| word == wire::WATCHED);
    match Inbox::start(std::io::stdin()) {
        Ok(inbox) => Agent::new(inbox, turns, watched).run(),
        Err(_) => ExitCode::FAILURE,
    }
}
