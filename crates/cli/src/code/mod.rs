//! `atoll code`: sends this worktree to a sandbox, lets an agent work on it, and brings the changes back.

mod call;
mod report;
mod sync;
mod worktree_sandbox;

pub use worktree_sandbox::end_removed_worktrees;

use crate::connect::Connect;
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::references::SessionRef;
use crate::run::run_server::ServerChoice;
use crate::runtime::build_runtime;
use crate::setting_flags::WorktreeSettingFlags;
use crate::settings::{self, ConfigFiles};
use atoll_forge::worktree::{ApplyOutcome, Resolution, Worktree};
use report::CallReport;
use std::io::IsTerminal;
use tokio::runtime::Builder;

/// When to bring the agent's changes into the worktree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ApplyMode {
    /// When the agent succeeded
    Auto,
    /// After showing the changes
    Ask,
    /// Not now: later with --pull
    Never,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll code \"make the parser faster\"
  atoll code \"and now the tests\"
  atoll code --pull
  atoll code --undo
  atoll code --as-branch agent/parser \"rewrite the parser\"

The sandbox gets the worktree as it is: committed, staged, unstaged and untracked files, but no ignored ones.
Each worktree has one sandbox; later calls send only what changed. The agent's changes come back into the
worktree by a three-way merge, all or nothing. Staged files stay staged.
Ctrl-C interrupts the agent; a second Ctrl-C exits. The work stays in the sandbox: --pull brings it.

Exit codes: 0 success; 1 the work failed; 2 the sandbox or the set-up failed; 3 a conflict, nothing was
changed; 130 interrupted.")]
pub struct Code {
    /// Prompt; with `-` from stdin
    prompt: Option<String>,
    /// Use a new sandbox for this worktree
    #[arg(long, conflicts_with_all = ["session", "pull", "undo"])]
    new: bool,
    /// Wait while another command works on this worktree
    #[arg(long)]
    wait: bool,
    /// Continue this session; without a prompt, watch its current turn
    #[arg(long, value_name = "SESSION")]
    session: Option<SessionRef>,
    /// Only bring the sandbox's changes into the worktree
    #[arg(long, conflicts_with_all = ["prompt", "undo"])]
    pull: bool,
    /// Restore the worktree from before the last applied changes
    #[arg(long, conflicts_with_all = ["prompt", "session", "as_branch"])]
    undo: bool,
    /// When to apply the agent's changes
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto")]
    apply: ApplyMode,
    /// In a conflict, keep the worktree's version
    #[arg(long, conflicts_with = "theirs")]
    ours: bool,
    /// In a conflict, take the sandbox's version
    #[arg(long)]
    theirs: bool,
    /// Leave the result on a new branch, and the worktree unchanged
    #[arg(long, value_name = "NAME", conflicts_with_all = ["ours", "theirs"])]
    as_branch: Option<String>,
    /// Interrupt the agent after this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, value_parser = clap::value_parser!(u32).range(1..))]
    timeout: u32,
    #[command(flatten)]
    settings: WorktreeSettingFlags,
    #[command(flatten)]
    files: ConfigFiles,
    #[command(flatten)]
    connect: Connect,
}

impl Code {
    const fn resolution(&self) -> Resolution {
        match (self.ours, self.theirs) {
            (true, _) => Resolution::Ours,
            (false, true) => Resolution::Theirs,
            (false, false) => Resolution::Report,
        }
    }

    /// The prompt, which a call without another purpose needs.
    fn read_prompt(&self) -> Result<Option<String>> {
        let text = match self.prompt.as_deref() {
            Some("-") => crate::arguments::read_stdin()
                .map_err(|error| Failure::input(format!("cannot read the prompt from stdin: {error}")))?,
            Some(text) => text.to_owned(),
            None if self.pull || self.undo || self.session.is_some() => return Ok(None),
            None => {
                return Err(Failure::input("there is no prompt")
                    .with_hint("Run atoll code \"PROMPT\"; --pull brings earlier work."));
            }
        };
        if text.trim().is_empty() {
            return Err(Failure::input("the prompt is empty").with_hint("Pass the agent's task as the prompt."));
        }
        Ok(Some(text))
    }
}

pub fn run(code: &Code, output: &Output) -> Result {
    let report = CallReport::new(output);
    let done = run_call(code, output, &report);
    report.finish(done)
}

fn run_call(code: &Code, output: &Output, report: &CallReport<'_>) -> Result<u8> {
    let prompt = code.read_prompt()?;
    let here = std::env::current_dir()
        .map_err(|error| Failure::input(format!("the current directory cannot be read: {error}")))?;
    let worktree = Worktree::open(&here)?;
    if code.undo {
        let _lock = worktree.lock(&describe_holder("atoll code --undo"), code.wait)?;
        let undone = worktree.undo(code.resolution())?;
        return match undone {
            ApplyOutcome::Applied(counts) => report.print_undone(worktree.root(), counts),
            ApplyOutcome::Conflicts(conflicts) => report.print_conflicts(&conflicts, true),
        };
    }
    if code.apply == ApplyMode::Ask && (output.json || !std::io::stdin().is_terminal()) {
        return Err(Failure::input("--apply ask needs a terminal").with_hint("Use --apply never, then --pull."));
    }
    let loaded = settings::load_with_data_dir(code.connect.data_dir.as_deref(), &code.files)?;
    let choice = ServerChoice::choose("atoll code", &code.connect, &loaded.config)?;
    let runtime = build_runtime(Builder::new_multi_thread())?;
    let call = call::run_call(code, prompt, worktree, choice, &loaded.config, report, output);
    let done = runtime.block_on(Box::pin(call));
    runtime.shutdown_background();
    done
}

/// The text that a second command shows about this one.
fn describe_holder(command: &str) -> String {
    format!("process {}: {command}", std::process::id())
}
