//! The demo agent: an agent without a model. It follows the instructions of `atoll_core::demo_line` in its prompt and in
//! later messages; for prose it does a small, visible piece of work.
//!
//! It reaches files, commands and its input only through a [`DemoHost`]: the worker's `demo` process in a real sandbox, or
//! memory in a fake one. `inbox` receives input, `turn` runs a turn, `tool` writes files and runs commands,
//! `repository_survey`, `prose_task` and `phrase_function` handle prose.

use super::demo_wire::{DemoIdle, DemoInput, DemoOutput, DemoReceipt};
use atoll_api::events::EventData;
use atoll_core::id::MessageId;
use atoll_core::message::DeliveryMethod;
use atoll_core::provider::CommandExit;
use inbox::DemoInbox;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;
use turn::DemoStep;

pub use tool::MAX_OUTPUT;

mod inbox;
mod phrase_function;
mod prose_task;
mod repository_survey;
mod tool;
mod turn;

/// The environment of the demo agent.
pub trait DemoHost: Send {
    /// Monotonic time since a fixed moment.
    fn now(&self) -> Duration;
    /// Waits for the next input until the deadline; without a deadline until there is one.
    fn next_input(&mut self, deadline: Option<Duration>) -> impl Future<Output = Option<HostInput>> + Send;
    /// Writes a line of output, without a line break.
    fn write_line(&mut self, line: &[u8]);
    /// Lists the workspace's files with their relative paths, sorted.
    fn list_files(&self) -> Vec<String>;
    fn read_file(&self, path: &str) -> Option<String>;
    fn write_file(&mut self, path: &str, content: &str) -> Result<(), String>;
    fn has_program(&self, _program: &str) -> bool {
        false
    }
    fn is_git_repository(&self) -> bool {
        false
    }
    /// Starts a shell command; [`HostInput::CommandEnded`] follows.
    fn start_command(&mut self, command: &str) -> Result<(), String>;
    fn kill_command(&mut self);
    /// Makes the agent fail.
    fn fail(&mut self, failure: DemoFailure) -> impl Future<Output = Infallible> + Send;
}

#[derive(Debug)]
pub enum HostInput {
    Line(DemoInput),
    /// The input has ended.
    Closed,
    CommandEnded(CommandEnd),
}

/// The end of a command, with the start of its output.
#[derive(Debug)]
pub struct CommandEnd {
    pub exit: CommandExit,
    pub output: String,
    /// Size of the whole output.
    pub bytes: u64,
}

impl CommandEnd {
    /// The end of a command with its whole output.
    pub fn new(exit: CommandExit, output: String) -> Self {
        Self { exit, bytes: output.len() as u64, output }
    }
}

/// A failure that the agent's instructions ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DemoFailure {
    Crash,
    Hang,
    OutOfMemory,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct DemoOptions {
    pub previous_turns: i64,
    /// Ask before each tool call, and wait for the scan after it.
    pub is_watched: bool,
    /// Pause between the steps of a task, so that people can watch.
    pub step_pause: Duration,
}

/// The agent gave up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GaveUp;

pub struct DemoAgent<H> {
    host: H,
    inbox: DemoInbox,
    options: DemoOptions,
    turn: i64,
    tool_count: u64,
    task: prose_task::ProseTask,
    steps: VecDeque<DemoStep>,
    /// Id of the open approval.
    open_approval: Option<String>,
    approval_count: u64,
}

impl<H: DemoHost> DemoAgent<H> {
    pub fn new(host: H, options: DemoOptions) -> Self {
        Self {
            host,
            inbox: DemoInbox::default(),
            turn: options.previous_turns,
            options,
            tool_count: 0,
            task: prose_task::ProseTask::default(),
            steps: VecDeque::new(),
            open_approval: None,
            approval_count: 0,
        }
    }

    /// Runs until the input ends.
    pub async fn run(mut self) -> Result<(), GaveUp> {
        loop {
            self.poll_inputs().await;
            match self.inbox.take_next() {
                // A steer that arrived after the turn starts the next one.
                Some(DemoInput::Prompt(prompt) | DemoInput::Steer(prompt)) => {
                    self.run_turn(&prompt).await?;
                    let idle = Some(DemoIdle { turn: self.turn });
                    self.write_output(&DemoOutput { idle, ..DemoOutput::default() });
                }
                // No turn is running.
                Some(DemoInput::Interrupt(prompt)) => {
                    self.acknowledge_message(prompt.id, DeliveryMethod::Injected, None)
                }
                Some(DemoInput::Answer(_) | DemoInput::Seen { .. }) => {}
                None if self.inbox.is_closed() => return Ok(()),
                None => drop(self.wait_for_input(None).await),
            }
        }
    }

    fn acknowledge_message(&mut self, id: MessageId, how: DeliveryMethod, turn: Option<i64>) {
        self.write_output(&DemoOutput { receipt: Some(DemoReceipt { id, how, turn }), ..DemoOutput::default() });
    }

    fn emit_event(&mut self, event: &EventData) {
        let (event, data) = (Some(event.event_type().to_owned()), event.to_json());
        self.write_output(&DemoOutput { event, turn: Some(self.turn), data: Some(&data), ..DemoOutput::default() });
    }

    fn write_output(&mut self, output: &DemoOutput<'_>) {
        // Serialising this struct cannot fail.
        self.host.write_line(&serde_json::to_vec(output).unwrap_or_default());
    }
}
