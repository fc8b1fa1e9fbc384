//! Recorded transcripts of the real agent programs, and what the drivers make of them. A driver that reads them
//! otherwise than before is seen here, also where no agent is installed.
//!
//! A transcript is recorded with `ATOLL_TEST_RECORD=1` (see `record`); what is made of it is written with
//! `ATOLL_TEST_WRITE=1`, and read by whoever changes it.

use crate::record;
use crate::stage::{message, model_of};
use anyhow::{Context, Result, ensure};
use atoll_core::message::MessageType;
use atoll_core::sandbox::Approvals;
use atoll_protocol::Gateway;
use atoll_worker::driver::{self, Answer, AskKind, Driver, Launch, Said, Standing, Told};
use atoll_worker::exchange::{Composed, Exchange};
use atoll_worker::heartbeat::Settings;
use serde_json::Value;
use std::path::Path;

/// What each agent is seen doing.
pub const STORIES: &[&str] = &[
    "writes_edits_runs_and_finishes",
    "is_steered",
    "is_interrupted",
    "keeps_what_it_was_told",
    "asks_and_is_answered",
    "goes_on_where_it_was",
];

/// One driver, as the executor would use it.
pub struct Play {
    pub driver: Box<dyn Driver>,
    exchange: Exchange,
    settings: Settings,
    /// It goes on with a conversation of an earlier process.
    pub is_resumed: bool,
    person: Option<Answer>,
    shown: String,
}

impl Play {
    pub fn new(agent: &str, approvals: Approvals) -> Result<Self> {
        let settings = Settings {
            model: Some(model_of(agent).to_owned()),
            approvals: Some(approvals),
            system_prompt: Some("be brief, atoll-mark".to_owned()),
            ..Settings::default()
        };
        let driver = driver::find(agent).context("there is such a driver")?;
        Ok(Self {
            driver,
            exchange: Exchange::default(),
            settings,
            is_resumed: false,
            person: None,
            shown: String::new(),
        })
    }

    fn begin(&mut self, native_id: Option<&str>) {
        self.is_resumed = native_id.is_some();
        let gateway = Gateway { base_url: "http://127.0.0.1:1".to_owned(), key: "placeholder".to_owned() };
        self.driver.command(&Launch {
            worker: Path::new("/place/worker"),
            workspace: Path::new("/place/work"),
            home: Path::new("/place/home"),
            turns: 0,
            settings: &self.settings,
            program: Some(Path::new("/place/agent")),
            gateway: Some(&gateway),
            native_id,
        });
        let greeting = self.driver.greeting();
        self.wrote(&greeting);
    }

    /// Says how much came of it.
    pub fn step(&mut self, step: &Value) -> Result<usize> {
        let (name, data) = step.as_object().and_then(|step| step.iter().next()).context("a step")?;
        match name.as_str() {
            "begun" => self.begin(data["native_id"].as_str()),
            "told" => {
                let kind = if data["interrupt"] == true { MessageType::Interrupt } else { MessageType::UserMessage };
                let standing = if data["in_turn"] == true { Standing::InTurn } else { Standing::Idle };
                let id = data["id"].as_str().context("an id")?.parse()?;
                let text = data["text"].as_str().context("a text")?;
                self.shown.push_str(&format!("TOLD {text}\n"));
                let line = self.driver.tell(&message(id, text, kind), standing);
                self.wrote(&line);
            }
            "person" => {
                self.person = match data["denies"].as_str() {
                    Some(reason) => Some(Answer::Deny { reason: reason.to_owned() }),
                    None => Some(Answer::Allow { input: None, context: None }),
                };
            }
            "heard" => return self.hear(data),
            other => anyhow::bail!("a step of the unknown name {other}"),
        }
        Ok(0)
    }

    fn hear(&mut self, line: &Value) -> Result<usize> {
        let line = line.as_str().map_or_else(|| line.to_string(), str::to_owned);
        let mut asked = Vec::new();
        let all = self.driver.line(line.as_bytes());
        let count = all.len();
        for said in all {
            let composed = match &said {
                Said::Event(Told { event_type, data, origin, .. }) => {
                    self.exchange.before(event_type.as_str(), data.get(), None, origin)
                }
                Said::AnswerEnds { parent } => {
                    self.exchange.ends(parent.as_deref());
                    self.exchange.whole()
                }
                _ => Vec::new(),
            };
            for Composed { event_type, data, .. } in composed {
                self.shown.push_str(&format!("{event_type} {data}\n"));
            }
            let shown = match &said {
                Said::Event(Told { event_type, data, mark, .. }) => {
                    let data: Value = serde_json::from_str(data.get())?;
                    format!("{} {data} {mark:?}", event_type.as_str())
                }
                other => format!("{other:?}"),
            };
            match said {
                Said::Reply(bytes) => self.wrote(&bytes),
                said => {
                    self.shown.push_str(&format!("{shown}\n"));
                    asked.push(said);
                }
            }
        }
        for said in asked {
            match said {
                Said::Asks(ask) => {
                    let answer = match ask.kind {
                        AskKind::BeforeTool => Some(Answer::Allow { input: None, context: None }),
                        AskKind::Permission | AskKind::Question => self.person.clone(),
                    };
                    if let Some(answer) = answer {
                        let line = self.driver.answer(&ask.id, answer);
                        self.wrote(&line);
                    }
                }
                Said::ToolRan { tool_use_id } => {
                    let line = self.driver.tool_seen(&tool_use_id).unwrap_or_default();
                    self.wrote(&line);
                }
                _ => {}
            }
        }
        Ok(count)
    }

    fn wrote(&mut self, bytes: &[u8]) {
        for line in String::from_utf8_lossy(bytes).lines() {
            self.shown.push_str(&format!("> {line}\n"));
        }
    }
}

fn plays(agent: &str, story: &str) -> Result<()> {
    let file = record::file(agent, story)?;
    let transcript = std::fs::read_to_string(&file)
        .with_context(|| format!("{} is missing: record it with ATOLL_TEST_RECORD=1", file.display()))?;
    let approvals = if story == "asks_and_is_answered" { Approvals::Ask } else { Approvals::Full };
    let mut play = Play::new(agent, approvals)?;
    for step in transcript.lines() {
        play.step(&serde_json::from_str(step)?)?;
    }
    let ends = ["agent.completed", "agent.interrupted"].map(|end| play.shown.matches(&format!("\n{end} ")).count());
    ensure!(ends[0] > 0, "no turn comes to its end: {}", play.shown);
    ensure!(!play.shown.contains("\nUnparsed"), "it is not understood: {}", play.shown);
    let expected = file.with_extension("events");
    if std::env::var_os("ATOLL_TEST_WRITE").is_some() {
        std::fs::write(&expected, &play.shown)?;
        return Ok(());
    }
    let known = std::fs::read_to_string(&expected).with_context(|| expected.display().to_string())?;
    for (at, (is, was)) in play.shown.lines().zip(known.lines()).enumerate() {
        ensure!(is == was, "{}:{}: it is\n{is}\nand was\n{was}", expected.display(), at + 1);
    }
    let (is, was) = (play.shown.lines().count(), known.lines().count());
    ensure!(is == was, "{}: there are {is} lines and were {was}", expected.display());
    Ok(())
}

macro_rules! golden {
    ($($agent:ident),+) => {$(
        #[test]
        fn $agent() -> Result<()> {
            for story in STORIES {
                plays(stringify!($agent), story).with_context(|| format!("{}: {story}", stringify!($agent)))?;
            }
            Ok(())
        }
    )+};
}

golden! { claude, codex, gemini, opencode }
