//! An agent at the other end of its driver: what the executor does with both, without a sandbox around them.

use crate::record::Recorder;
use anyhow::{Context, Result, bail, ensure};
use atoll_core::id::{LeaseId, MessageId, SessionId};
use atoll_core::message::{Delivery, MessageType};
use atoll_core::sandbox::Approvals;
use atoll_core::time::Timestamp;
use atoll_model_script::{Request, ScriptedModel, Scripts};
use atoll_protocol::{Gateway, LeasedMessage};
use atoll_worker::driver::{self, Answer, AskKind, Driver, Launch, Said, Standing, Told};
use atoll_worker::exchange::{Composed, Exchange};
use atoll_worker::heartbeat::Settings;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub const LONGEST: Duration = Duration::from_secs(120);
const GOING: Duration = Duration::from_secs(3);

pub struct Stage {
    pub model: ScriptedModel,
    pub place: tempfile::TempDir,
    /// Everything that was said, one line each.
    pub log: Vec<String>,
    /// Which parts were one answer, and which results went back together.
    exchange: Exchange,
    /// Its own name for the conversation.
    pub native_id: Option<String>,
    /// What a person says to what is asked; without a word it is not answered.
    person: Option<Answer>,
    pub agent: String,
    driver: Box<dyn Driver>,
    settings: Settings,
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<Vec<u8>>,
    complaints: Arc<Mutex<String>>,
    recorder: Option<Recorder>,
    /// How many messages there were.
    messages: u128,
    /// Runs the model; last, so that it outlives it.
    _runtime: tokio::runtime::Runtime,
}

fn show(line: &str) {
    let mut out = std::io::stderr().lock();
    drop(out.write_all(format!("{line}\n").as_bytes()));
}

/// Known names: of other models the agents think less, and offer them fewer tools.
pub fn model_of(agent: &str) -> &'static str {
    match agent {
        "claude" => "claude-sonnet-4-5",
        "gemini" => "gemini-2.5-pro",
        _ => "gpt-5.5",
    }
}

fn program(agent: &str, test: &str) -> Result<Option<PathBuf>> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = target.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"));
    let program = target.join("agents/bin").join(agent);
    if program.exists() {
        return Ok(Some(program.canonicalize()?));
    }
    let required = std::env::var_os("ATOLL_TEST_AGENTS").is_some_and(|value| !value.is_empty());
    ensure!(!required, "{} is missing: run scripts/agents", program.display());
    show(&format!("skipped: {test}: {} is missing; scripts/agents installs it", program.display()));
    Ok(None)
}

impl Stage {
    /// Nothing where the agent is not installed: the test is skipped, by name.
    pub fn set(agent: &str, test: &str, scripts: &str, approvals: Approvals) -> Result<Option<Self>> {
        let Some(program) = program(agent, test)? else { return Ok(None) };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let model = runtime.block_on(ScriptedModel::start(Scripts::parse(scripts)?))?;
        let place = tempfile::tempdir()?;
        std::fs::create_dir_all(place.path().join("home"))?;
        std::fs::create_dir_all(place.path().join("work"))?;
        let settings = Settings {
            model: Some(model_of(agent).to_owned()),
            approvals: Some(approvals),
            system_prompt: Some("be brief, atoll-mark".to_owned()),
            ..Settings::default()
        };
        let mut driver = driver::find(agent).context("there is such a driver")?;
        let started = start(&mut *driver, &program, &model, place.path(), &settings, None)?;
        let mut recorder = Recorder::wanted(agent, test, place.path())?;
        if let Some(recorder) = &mut recorder {
            recorder.step(json!({ "begun": {} }));
        }
        Ok(Some(Self {
            model,
            recorder,
            messages: 0,
            place,
            log: Vec::new(),
            exchange: Exchange::default(),
            native_id: None,
            person: None,
            agent: agent.to_owned(),
            driver,
            settings,
            child: started.child,
            input: Some(started.input),
            lines: started.lines,
            complaints: started.complaints,
            _runtime: runtime,
        }))
    }

    /// Ends the process and starts another one, which goes on with the conversation.
    pub fn restart(&mut self, test: &str) -> Result<()> {
        self.end();
        let program = program(&self.agent, test)?.context("it was there")?;
        let place = self.place.path().to_owned();
        let native_id = self.native_id.clone();
        if let Some(recorder) = &mut self.recorder {
            recorder.step(json!({ "begun": { "native_id": native_id } }));
        }
        let started = start(&mut *self.driver, &program, &self.model, &place, &self.settings, native_id.as_deref())?;
        (self.child, self.input, self.lines) = (started.child, Some(started.input), started.lines);
        self.complaints = started.complaints;
        Ok(())
    }

    /// From now on a person says this to what is asked.
    pub fn person(&mut self, answer: Answer) {
        if let Some(recorder) = &mut self.recorder {
            recorder.step(match &answer {
                Answer::Deny { reason } => json!({ "person": { "denies": reason } }),
                Answer::Allow { .. } | Answer::Words(_) => json!({ "person": {} }),
            });
        }
        self.person = Some(answer);
    }

    pub fn tell(&mut self, text: &str, standing: Standing) -> Result<MessageId> {
        self.send(text, MessageType::UserMessage, standing)
    }

    pub fn interrupt(&mut self) -> Result<MessageId> {
        self.send("enough", MessageType::Interrupt, Standing::InTurn)
    }

    fn send(&mut self, text: &str, message_type: MessageType, standing: Standing) -> Result<MessageId> {
        self.messages += 1;
        // The same each time, so that a transcript can be compared.
        let id = uuid::Uuid::from_u128(0x4000_8000_0000_0000_0000 + self.messages);
        let message = message(id, text, message_type);
        if let Some(recorder) = &mut self.recorder {
            let (interrupt, in_turn) = (message_type == MessageType::Interrupt, standing == Standing::InTurn);
            recorder.told(message.id, text, interrupt, in_turn);
        }
        let line = self.driver.tell(&message, standing);
        self.write(&line)?;
        Ok(message.id)
    }

    /// Listens until a line of the log begins so; gives that line.
    pub fn until(&mut self, beginning: &str) -> Result<String> {
        let until = Instant::now() + LONGEST;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(line) = self.lines.recv_timeout(left) else {
                let complaints = self.complaints.lock().map(|text| text.clone()).unwrap_or_default();
                bail!("`{beginning}` was not said\n{}\n{complaints}", self.log.join("\n"));
            };
            let begun = self.log.len();
            if let Some(recorder) = &mut self.recorder {
                recorder.heard(&line);
            }
            for said in self.driver.line(&line) {
                self.take(said)?;
            }
            if let Some(found) = self.log[begun..].iter().find(|line| line.starts_with(beginning)) {
                return Ok(found.clone());
            }
        }
    }

    /// All data of events of one type.
    pub fn told(&self, event_type: &str) -> Result<Vec<Value>> {
        let of = self.log.iter().filter_map(|line| line.strip_prefix(&format!("{event_type} ")));
        of.map(|data| Ok(serde_json::from_str(data)?)).collect()
    }

    fn note(&mut self, line: String) {
        if std::env::var_os("ATOLL_TEST_SHOW").is_some() {
            show(&line);
        }
        self.log.push(line);
    }

    /// As the executor does it.
    fn compose(&mut self, said: &Said) {
        let composed = match said {
            Said::Event(Told { event_type, data, origin, .. }) => {
                self.exchange.before(event_type.as_str(), data.get(), Some(1), origin)
            }
            Said::AnswerEnds { parent } => {
                self.exchange.ends(parent.as_deref());
                self.exchange.whole()
            }
            _ => Vec::new(),
        };
        for Composed { event_type, data, .. } in composed {
            self.note(format!("{event_type} {data}"));
        }
    }

    fn take(&mut self, said: Said) -> Result<()> {
        self.compose(&said);
        let shown = match &said {
            Said::Event(Told { event_type, data, .. }) => {
                let data: Value = serde_json::from_str(data.get())?;
                format!("{} {data}", event_type.as_str())
            }
            Said::Receipt { id, how } => format!("receipt {how} {id}"),
            Said::Live(_) => "live".to_owned(),
            Said::Asks(ask) if ask.kind == AskKind::BeforeTool => format!("before {}", ask.tool),
            Said::Asks(ask) => format!("asks {} {}", ask.tool.to_lowercase(), ask.input),
            Said::Reply(bytes) => format!("reply {}", String::from_utf8_lossy(bytes).trim_end()),
            other => format!("{other:?}"),
        };
        self.note(shown);
        match said {
            Said::Reply(bytes) => self.write(&bytes)?,
            Said::Native { id } => self.native_id = Some(id),
            // Rules answer that, and there are none here.
            Said::Asks(ask) if ask.kind == AskKind::BeforeTool => {
                let line = self.driver.answer(&ask.id, Answer::Allow { input: None, context: None });
                self.write(&line)?;
            }
            Said::Asks(ask) => {
                if let Some(answer) = self.person.clone() {
                    let line = self.driver.answer(&ask.id, answer);
                    self.write(&line)?;
                }
            }
            Said::ToolRan { tool_use_id } => {
                let line = self.driver.tool_seen(&tool_use_id);
                self.write(&line.unwrap_or_default())?;
            }
            Said::Unparsed { reason } => bail!("it was not understood: {reason}"),
            Said::Failed { error } => bail!("it gave up: {error}\n{}", self.log.join("\n")),
            Said::Event(_)
            | Said::Receipt { .. }
            | Said::Idle
            | Said::Live(_)
            | Said::AnswerEnds { .. }
            | Said::RateLimited { .. } => {}
        }
        Ok(())
    }

    pub fn read(&self, file: &str) -> Result<String> {
        std::fs::read_to_string(self.place.path().join("work").join(file)).with_context(|| format!("{file} is missing"))
    }

    /// All requests that a script answered.
    pub fn played(&self) -> Vec<Arc<Request>> {
        self.model.requests().into_iter().filter(|request| request.script.is_some()).collect()
    }

    pub fn count(&self, beginning: &str) -> usize {
        self.log.iter().filter(|line| line.starts_with(beginning)).count()
    }

    pub fn resumes(&self) -> bool {
        self.driver.abilities().resume
    }

    /// First by the end of its input, so that it can end what it has started; then by force.
    fn end(&mut self) {
        drop(self.input.take());
        let until = Instant::now() + GOING;
        while Instant::now() < until {
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(self.child.kill());
        drop(self.child.wait());
    }

    /// The processes that it has started.
    pub fn children(&self) -> Result<Vec<String>> {
        let id = self.child.id();
        let mut all = Vec::new();
        for task in std::fs::read_dir(format!("/proc/{id}/task"))? {
            let children = std::fs::read_to_string(task?.path().join("children"))?;
            all.extend(children.split_whitespace().map(str::to_owned));
        }
        Ok(all)
    }

    pub fn terminate(&self) -> Result<()> {
        let id = rustix::process::Pid::from_child(&self.child);
        Ok(rustix::process::kill_process(id, rustix::process::Signal::TERM)?)
    }

    fn write(&mut self, line: &[u8]) -> Result<()> {
        self.input.as_mut().context("it has an input")?.write_all(line)?;
        Ok(())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.end();
        if let Some(recorder) = self.recorder.take().filter(|_| !std::thread::panicking())
            && let Err(error) = recorder.write()
        {
            show(&format!("the transcript was not written: {error}"));
        }
    }
}

pub fn message(id: uuid::Uuid, text: &str, message_type: MessageType) -> LeasedMessage {
    LeasedMessage {
        id: MessageId::from_uuid(id),
        session_id: SessionId::from_uuid(id),
        message_type,
        delivery: Delivery::Steer,
        content: text.to_owned(),
        sender: None,
        position: 0,
        created_at: Timestamp::from_micros(0),
        lease: LeaseId::from_uuid(id),
        lease_until: Timestamp::from_micros(0),
    }
}

struct Started {
    child: Child,
    input: ChildStdin,
    lines: Receiver<Vec<u8>>,
    complaints: Arc<Mutex<String>>,
}

/// The program with nothing of this process's environment, so that no key and no setting of the machine's gets in.
fn start(
    driver: &mut dyn Driver,
    program: &Path,
    model: &ScriptedModel,
    place: &Path,
    settings: &Settings,
    native_id: Option<&str>,
) -> Result<Started> {
    let (home, work) = (place.join("home"), place.join("work"));
    let gateway = Gateway { base_url: model.base_url(), key: "sk-scripted".to_owned() };
    let command = driver.command(&Launch {
        worker: Path::new(env!("CARGO_BIN_EXE_atoll-worker")),
        workspace: &work,
        home: &home,
        turns: 0,
        settings,
        program: Some(program),
        gateway: Some(&gateway),
        native_id,
    });
    for file in &command.files {
        let path = home.join(&file.path);
        std::fs::create_dir_all(path.parent().context("a file in the home")?)?;
        std::fs::write(path, &file.text)?;
    }
    let mut process = Command::new(&command.argv[0]);
    process.args(&command.argv[1..]).current_dir(&work).env_clear();
    process.env("HOME", &home).env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("IS_SANDBOX", "1");
    process.envs(command.env.iter().map(|(name, value)| (name, value)));
    process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = process.spawn().with_context(|| format!("{:?}", command.argv))?;
    let (sender, lines) = channel();
    let stdout = BufReader::new(child.stdout.take().context("stdout")?);
    std::thread::spawn(move || {
        for line in stdout.split(b'\n') {
            let Ok(line) = line else { break };
            if !line.trim_ascii().is_empty() && sender.send(line).is_err() {
                break;
            }
        }
    });
    let complaints = Arc::new(Mutex::new(String::new()));
    let (mut stderr, kept) = (child.stderr.take().context("stderr")?, Arc::clone(&complaints));
    std::thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(length @ 1..) = stderr.read(&mut piece) {
            if let Ok(mut kept) = kept.lock() {
                kept.push_str(&String::from_utf8_lossy(&piece[..length]));
            }
        }
    });
    let mut input = child.stdin.take().context("stdin")?;
    input.write_all(&driver.greeting())?;
    Ok(Started { child, input, lines, complaints })
}
