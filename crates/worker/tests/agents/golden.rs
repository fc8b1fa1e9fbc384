//! Replays recorded transcripts of the real agents and compares the drivers' output, also where no agent is installed.
//!
//! `ATOLL_TEST_RECORD=1` records transcripts (see `record`); `ATOLL_TEST_WRITE=1` writes the expected output. Review
//! the diff.

use crate::harness::{leased_message, model_for};
use crate::record;
use anyhow::{Context, Result, ensure};
use atoll_core::message::MessageType;
use atoll_core::sandbox::ApprovalMode;
use atoll_drivers::AgentSettings;
use atoll_drivers::response_assembly::{AssembledEvent, ResponseAssembler};
use atoll_drivers::{
    self as driver, AgentEvent, AgentOutput, AgentTurn, Driver, LaunchContext, RequestAnswer, RequestKind,
};
use atoll_protocol::Gateway;
use serde_json::Value;
use std::path::Path;

pub const SCENARIOS: &[&str] = &[
    "completes_a_turn",
    "accepts_a_steer",
    "stops_on_interrupt",
    "requeues_unseen_messages",
    "asks_for_approval",
    "resumes_a_conversation",
];

/// A driver, used as the executor does.
pub struct Replay {
    pub driver: Box<dyn Driver>,
    assembler: ResponseAssembler,
    settings: AgentSettings,
    /// The agent resumes an earlier conversation.
    pub is_resumed: bool,
    answer: Option<RequestAnswer>,
    output: String,
}

impl Replay {
    pub fn new(agent: &str, approvals: ApprovalMode) -> Result<Self> {
        let settings = AgentSettings {
            model: Some(model_for(agent).to_owned()),
            approvals: Some(approvals),
            system_prompt: Some("be brief, atoll-mark".to_owned()),
            ..AgentSettings::default()
        };
        let driver = driver::create_driver(agent).context("no such driver")?;
        Ok(Self {
            driver,
            assembler: ResponseAssembler::default(),
            settings,
            is_resumed: false,
            answer: None,
            output: String::new(),
        })
    }

    fn start_agent(&mut self, native_id: Option<&str>) {
        self.is_resumed = native_id.is_some();
        let gateway =
            Gateway { base_url: "http://127.0.0.1:1".to_owned(), key: "placeholder".to_owned(), apis: Vec::new() };
        self.driver.build_command(&LaunchContext {
            worker_program: Path::new("/place/worker"),
            workspace: Path::new("/place/work"),
            home: Path::new("/place/home"),
            previous_turns: 0,
            settings: &self.settings,
            agent_program: Some(Path::new("/place/agent")),
            gateway: Some(&gateway),
            native_id,
        });
        let handshake = self.driver.handshake();
        self.record_input(&handshake);
    }

    /// Runs one step and returns the number of outputs.
    pub fn run_step(&mut self, step: &Value) -> Result<usize> {
        let (name, data) = step.as_object().and_then(|step| step.iter().next()).context("a step")?;
        match name.as_str() {
            "started" => self.start_agent(data["native_id"].as_str()),
            "message" => {
                let kind = if data["interrupt"] == true { MessageType::Interrupt } else { MessageType::UserMessage };
                let turn_state = if data["in_turn"] == true { AgentTurn::InTurn } else { AgentTurn::Idle };
                let id = data["id"].as_str().context("an id")?.parse()?;
                let text = data["text"].as_str().context("a text")?;
                self.output.push_str(&format!("MESSAGE {text}\n"));
                let line = self.driver.encode_message(&leased_message(id, text, kind), turn_state);
                self.record_input(&line);
            }
            "answer" => {
                self.answer = match data["deny"].as_str() {
                    Some(reason) => Some(RequestAnswer::Deny { reason: reason.to_owned() }),
                    None => Some(RequestAnswer::Allow { input: None, context: None }),
                };
            }
            "line" => return self.feed_line(data),
            other => anyhow::bail!("unknown step {other}"),
        }
        Ok(0)
    }

    fn feed_line(&mut self, line: &Value) -> Result<usize> {
        let line = line.as_str().map_or_else(|| line.to_string(), str::to_owned);
        let mut requests = Vec::new();
        let all = self.driver.handle_line(line.as_bytes());
        let count = all.len();
        for output in all {
            let composed = match &output {
                AgentOutput::Event(AgentEvent { event_type, data, response: origin, .. }) => {
                    self.assembler.observe_event(event_type.as_str(), data.get(), None, origin)
                }
                AgentOutput::ResponseEnded { parent } => {
                    self.assembler.end_response(parent.as_deref());
                    self.assembler.take_ended()
                }
                _ => Vec::new(),
            };
            for AssembledEvent { event_type, data, .. } in composed {
                let data: Value = serde_json::from_str(data.get())?;
                self.output.push_str(&format!("{event_type} {data}\n"));
            }
            let summary = match &output {
                AgentOutput::Event(AgentEvent { event_type, data, effect: mark, .. }) => {
                    let data: Value = serde_json::from_str(data.get())?;
                    format!("{} {data} {mark:?}", event_type.as_str())
                }
                other => format!("{other:?}"),
            };
            match output {
                AgentOutput::Reply(bytes) => self.record_input(&bytes),
                output => {
                    self.output.push_str(&format!("{summary}\n"));
                    requests.push(output);
                }
            }
        }
        for output in requests {
            match output {
                AgentOutput::Request(request) => {
                    let answer = match request.kind {
                        RequestKind::BeforeTool => Some(RequestAnswer::Allow { input: None, context: None }),
                        RequestKind::Permission | RequestKind::Question => self.answer.clone(),
                    };
                    if let Some(answer) = answer {
                        let line = self.driver.answer_request(&request.id, answer);
                        self.record_input(&line);
                    }
                }
                AgentOutput::AwaitingScan { tool_use_id } => {
                    let line = self.driver.confirm_scan(&tool_use_id).unwrap_or_default();
                    self.record_input(&line);
                }
                _ => {}
            }
        }
        Ok(count)
    }

    fn record_input(&mut self, bytes: &[u8]) {
        for line in String::from_utf8_lossy(bytes).lines() {
            self.output.push_str(&format!("> {line}\n"));
        }
    }
}

fn check_scenario(agent: &str, scenario: &str) -> Result<()> {
    let file = record::transcript_path(agent, scenario)?;
    let transcript = std::fs::read_to_string(&file)
        .with_context(|| format!("{} is missing: record it with ATOLL_TEST_RECORD=1", file.display()))?;
    let approvals = if scenario == "asks_for_approval" { ApprovalMode::Ask } else { ApprovalMode::Full };
    let mut replay = Replay::new(agent, approvals)?;
    for step in transcript.lines() {
        replay.run_step(&serde_json::from_str(step)?)?;
    }
    let ends = ["agent.completed", "agent.interrupted"].map(|end| replay.output.matches(&format!("\n{end} ")).count());
    ensure!(ends[0] > 0, "no turn ends: {}", replay.output);
    ensure!(!replay.output.contains("\nUnparsed"), "unparsed line: {}", replay.output);
    let expected = file.with_extension("events");
    if std::env::var_os("ATOLL_TEST_WRITE").is_some() {
        std::fs::write(&expected, &replay.output)?;
        return Ok(());
    }
    let known = std::fs::read_to_string(&expected).with_context(|| expected.display().to_string())?;
    for (at, (is, was)) in replay.output.lines().zip(known.lines()).enumerate() {
        ensure!(is == was, "{}:{}: got\n{is}\nexpected\n{was}", expected.display(), at + 1);
    }
    let (is, was) = (replay.output.lines().count(), known.lines().count());
    ensure!(is == was, "{}: {is} lines, expected {was}", expected.display());
    Ok(())
}

macro_rules! golden {
    ($($agent:ident),+) => {$(
        #[test]
        fn $agent() -> Result<()> {
            for scenario in SCENARIOS {
                check_scenario(stringify!($agent), scenario).with_context(|| format!("{}: {scenario}", stringify!($agent)))?;
            }
            Ok(())
        }
    )+};
}

golden! { claude, codex, gemini, opencode }
