//! Claude Code over two pipes, with Atoll's driver and nothing else of Atoll: measures the agent's own time.

use anyhow::{Context, Result};
use atoll_core::message::{Delivery, MessageType};
use atoll_core::sandbox::ApprovalMode;
use atoll_drivers::AgentSettings;
use atoll_drivers::{self as driver, AgentOutput, AgentTurn, Driver, LaunchContext, RequestAnswer};
use atoll_protocol::{Gateway, LeasedMessage};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc;

const TURN_TIMEOUT: Duration = Duration::from_secs(120);

struct OutgoingMessage {
    text: String,
    kind: MessageType,
    turn_state: AgentTurn,
}

pub struct DirectAgent {
    child: Child,
    messages: mpsc::UnboundedSender<OutgoingMessage>,
    /// Times at which the agent became idle.
    idle_times: mpsc::UnboundedReceiver<Instant>,
}

impl DirectAgent {
    pub fn start_agent(program: &Path, model: &str, dir: &Path) -> Result<Self> {
        let (home, work) = (dir.join("home"), dir.join("work"));
        std::fs::create_dir_all(&home)?;
        std::fs::create_dir_all(&work)?;
        let settings = AgentSettings { approvals: Some(ApprovalMode::Full), ..AgentSettings::default() };
        let gateway = Gateway { base_url: model.to_owned(), key: "sk-scripted".to_owned(), apis: Vec::new() };
        let mut driver = driver::create_driver("claude").context("no driver for claude")?;
        let command = driver.build_command(&LaunchContext {
            worker_program: Path::new("/none"),
            workspace: &work,
            home: &home,
            previous_turns: 0,
            settings: &settings,
            agent_program: Some(program),
            gateway: Some(&gateway),
            native_id: None,
        });
        let mut process = Command::new(program);
        process.args(command.argv.iter().skip(1)).current_dir(&work).env_clear();
        process.env("HOME", &home).env("PATH", "/usr/bin:/bin").env("IS_SANDBOX", "1").envs(command.env);
        process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        let mut child = process.spawn()?;
        let input = child.stdin.take().context("stdin")?;
        let output = BufReader::new(child.stdout.take().context("stdout")?);
        let (messages, receiver) = mpsc::unbounded_channel();
        let (idle_sender, idle_times) = mpsc::unbounded_channel();
        tokio::spawn(run_driver(driver, input, output, receiver, idle_sender));
        Ok(Self { child, messages, idle_times })
    }

    pub fn send_message(&self, text: &str, turn_state: AgentTurn) {
        drop(self.messages.send(OutgoingMessage { text: text.to_owned(), kind: MessageType::UserMessage, turn_state }));
    }

    pub fn send_interrupt(&self) {
        drop(self.messages.send(OutgoingMessage {
            text: "enough".to_owned(),
            kind: MessageType::Interrupt,
            turn_state: AgentTurn::InTurn,
        }));
    }

    pub async fn wait_until_idle(&mut self) -> Result<Instant> {
        let idle = tokio::time::timeout(TURN_TIMEOUT, self.idle_times.recv()).await.context("the turn does not end")?;
        idle.context("the agent ended")
    }

    pub async fn kill_agent(mut self) -> Result<()> {
        drop(self.messages);
        self.child.kill().await?;
        Ok(())
    }
}

async fn run_driver(
    mut driver: Box<dyn Driver>,
    mut input: ChildStdin,
    output: BufReader<tokio::process::ChildStdout>,
    mut messages: mpsc::UnboundedReceiver<OutgoingMessage>,
    idle_sender: mpsc::UnboundedSender<Instant>,
) -> Result<()> {
    input.write_all(&driver.handshake()).await?;
    let mut lines = output.split(b'\n');
    loop {
        tokio::select! {
            message = messages.recv() => {
                let Some(OutgoingMessage { text, kind, turn_state }) = message else { return Ok(()) };
                let line = driver.encode_message(&LeasedMessage { message_type: kind, ..LeasedMessage::example(&text, Delivery::Steer) }, turn_state);
                input.write_all(&line).await?;
            }
            line = lines.next_segment() => {
                let Some(line) = line? else { return Ok(()) };
                for output in driver.handle_line(&line) {
                    let answer = match output {
                        AgentOutput::Reply(bytes) => bytes,
                        AgentOutput::Request(request) => driver.answer_request(&request.id, RequestAnswer::Allow { input: None, context: None }),
                        AgentOutput::AwaitingScan { tool_use_id } => driver.confirm_scan(&tool_use_id).unwrap_or_default(),
                        AgentOutput::Idle => {
                            let _receiver_gone = idle_sender.send(Instant::now());
                            continue;
                        }
                        _ => continue,
                    };
                    input.write_all(&answer).await?;
                }
            }
        }
    }
}
