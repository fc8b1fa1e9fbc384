//! Runs a real agent with its driver as the executor does, but without a sandbox.

use crate::record::Recorder;
use anyhow::{Context, Result, bail, ensure};
use atoll_core::id::MessageId;
use atoll_core::message::{Delivery, MessageType};
use atoll_core::sandbox::ApprovalMode;
use atoll_drivers::AgentSettings;
use atoll_drivers::response_assembly::{AssembledEvent, ResponseAssembler};
use atoll_drivers::{
    self as driver, AgentEvent, AgentOutput, AgentTurn, Driver, LaunchContext, RequestAnswer, RequestKind,
};
use atoll_model_script::{RecordedRequest, ScriptedModel, Scripts};
use atoll_protocol::{Gateway, LeasedMessage};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub const OUTPUT_TIMEOUT: Duration = Duration::from_secs(120);
const EXIT_TIMEOUT: Duration = Duration::from_secs(3);

pub struct AgentHarness {
    pub model: ScriptedModel,
    pub root: tempfile::TempDir,
    /// One line per output of the driver.
    pub log: Vec<String>,
    assembler: ResponseAssembler,
    /// The agent's own id of the conversation.
    pub native_id: Option<String>,
    /// The answer to approval requests; without one they stay open.
    approval_answer: Option<RequestAnswer>,
    pub agent: String,
    driver: Box<dyn Driver>,
    settings: AgentSettings,
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<Vec<u8>>,
    stderr_text: Arc<Mutex<String>>,
    recorder: Option<Recorder>,
    message_count: u128,
    /// Runs the scripted model; last, so that it is dropped last.
    _runtime: tokio::runtime::Runtime,
}

fn print_line(line: &str) {
    let mut out = std::io::stderr().lock();
    drop(out.write_all(format!("{line}\n").as_bytes()));
}

/// Model names that the agents know: for unknown ones they offer fewer tools.
pub fn model_for(agent: &str) -> &'static str {
    match agent {
        "claude" => "claude-sonnet-4-5",
        "gemini" => "gemini-2.5-pro",
        _ => "gpt-5.5",
    }
}

fn find_program(agent: &str, test: &str) -> Result<Option<PathBuf>> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = target.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"));
    let program = target.join("agents/bin").join(agent);
    if program.exists() {
        return Ok(Some(program.canonicalize()?));
    }
    let required = std::env::var_os("ATOLL_TEST_AGENTS").is_some_and(|value| !value.is_empty());
    ensure!(!required, "{} is missing: run scripts/agents", program.display());
    print_line(&format!("skipped: {test}: {} is missing; scripts/agents installs it", program.display()));
    Ok(None)
}

impl AgentHarness {
    /// Starts the agent. Returns `None`, and reports the skipped test, if it is not installed.
    pub fn start(agent: &str, test: &str, scripts: &str, approvals: ApprovalMode) -> Result<Option<Self>> {
        let Some(program) = find_program(agent, test)? else { return Ok(None) };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let model = runtime.block_on(ScriptedModel::start(Scripts::parse(scripts)?))?;
        let root = tempfile::tempdir()?;
        std::fs::create_dir_all(root.path().join("home"))?;
        std::fs::create_dir_all(root.path().join("work"))?;
        let settings = AgentSettings {
            model: Some(model_for(agent).to_owned()),
            approvals: Some(approvals),
            system_prompt: Some("be brief, atoll-mark".to_owned()),
            ..AgentSettings::default()
        };
        let mut driver = driver::create_driver(agent).context("no such driver")?;
        let started = spawn_agent(&mut *driver, &program, &model, root.path(), &settings, None)?;
        let mut recorder = Recorder::from_env(agent, test, root.path())?;
        if let Some(recorder) = &mut recorder {
            recorder.record_step(json!({ "started": {} }));
        }
        Ok(Some(Self {
            model,
            recorder,
            message_count: 0,
            root,
            log: Vec::new(),
            assembler: ResponseAssembler::default(),
            native_id: None,
            approval_answer: None,
            agent: agent.to_owned(),
            driver,
            settings,
            child: started.child,
            input: Some(started.input),
            lines: started.lines,
            stderr_text: started.stderr_text,
            _runtime: runtime,
        }))
    }

    /// Stops the process and starts another one that resumes the conversation.
    pub fn restart(&mut self, test: &str) -> Result<()> {
        self.stop();
        let program = find_program(&self.agent, test)?.context("the program disappeared")?;
        let root = self.root.path().to_owned();
        let native_id = self.native_id.clone();
        if let Some(recorder) = &mut self.recorder {
            recorder.record_step(json!({ "started": { "native_id": native_id } }));
        }
        let started =
            spawn_agent(&mut *self.driver, &program, &self.model, &root, &self.settings, native_id.as_deref())?;
        (self.child, self.input, self.lines) = (started.child, Some(started.input), started.lines);
        self.stderr_text = started.stderr_text;
        Ok(())
    }

    /// Sets the answer to approval requests.
    pub fn set_answer(&mut self, answer: RequestAnswer) {
        if let Some(recorder) = &mut self.recorder {
            recorder.record_step(match &answer {
                RequestAnswer::Deny { reason } => json!({ "answer": { "deny": reason } }),
                RequestAnswer::Allow { .. } | RequestAnswer::Answers(_) => json!({ "answer": {} }),
            });
        }
        self.approval_answer = Some(answer);
    }

    pub fn send_text(&mut self, text: &str, turn_state: AgentTurn) -> Result<MessageId> {
        self.send_message(text, MessageType::UserMessage, turn_state)
    }

    pub fn send_interrupt(&mut self) -> Result<MessageId> {
        self.send_message("enough", MessageType::Interrupt, AgentTurn::InTurn)
    }

    fn send_message(&mut self, text: &str, message_type: MessageType, turn_state: AgentTurn) -> Result<MessageId> {
        self.message_count += 1;
        // Fixed ids make transcripts comparable.
        let id = uuid::Uuid::from_u128(0x4000_8000_0000_0000_0000 + self.message_count);
        let message = leased_message(id, text, message_type);
        if let Some(recorder) = &mut self.recorder {
            let (interrupt, in_turn) = (message_type == MessageType::Interrupt, turn_state == AgentTurn::InTurn);
            recorder.record_message(message.id, text, interrupt, in_turn);
        }
        let line = self.driver.encode_message(&message, turn_state);
        self.write_input(&line)?;
        Ok(message.id)
    }

    /// Handles output until a log line starts with `beginning`, and returns that line.
    pub fn wait_for(&mut self, beginning: &str) -> Result<String> {
        let until = Instant::now() + OUTPUT_TIMEOUT;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(line) = self.lines.recv_timeout(left) else {
                let stderr = self.stderr_text.lock().map(|text| text.clone()).unwrap_or_default();
                bail!("timed out waiting for `{beginning}`\n{}\n{stderr}", self.log.join("\n"));
            };
            let begun = self.log.len();
            if let Some(recorder) = &mut self.recorder {
                recorder.record_line(&line);
            }
            for output in self.driver.handle_line(&line) {
                self.handle_output(output)?;
            }
            if let Some(found) = self.log[begun..].iter().find(|line| line.starts_with(beginning)) {
                return Ok(found.clone());
            }
        }
    }

    /// Returns the data of all events of one type.
    pub fn events_of_type(&self, event_type: &str) -> Result<Vec<Value>> {
        let of = self.log.iter().filter_map(|line| line.strip_prefix(&format!("{event_type} ")));
        of.map(|data| Ok(serde_json::from_str(data)?)).collect()
    }

    fn log_line(&mut self, line: String) {
        if std::env::var_os("ATOLL_TEST_SHOW").is_some() {
            print_line(&line);
        }
        self.log.push(line);
    }

    /// Assembles responses as the executor does.
    fn assemble_responses(&mut self, output: &AgentOutput) {
        let composed = match output {
            AgentOutput::Event(AgentEvent { event_type, data, response: origin, .. }) => {
                self.assembler.observe_event(event_type.as_str(), data.get(), Some(1), origin)
            }
            AgentOutput::ResponseEnded { parent } => {
                self.assembler.end_response(parent.as_deref());
                self.assembler.take_ended()
            }
            _ => Vec::new(),
        };
        for AssembledEvent { event_type, data, .. } in composed {
            self.log_line(format!("{event_type} {data}"));
        }
    }

    fn handle_output(&mut self, output: AgentOutput) -> Result<()> {
        self.assemble_responses(&output);
        let summary = match &output {
            AgentOutput::Event(AgentEvent { event_type, data, .. }) => {
                let data: Value = serde_json::from_str(data.get())?;
                format!("{} {data}", event_type.as_str())
            }
            AgentOutput::Acknowledged { id, how } => format!("acknowledged {how} {id}"),
            AgentOutput::TextDelta(_) => "delta".to_owned(),
            AgentOutput::Request(request) if request.kind == RequestKind::BeforeTool => {
                format!("before {}", request.tool)
            }
            AgentOutput::Request(request) => format!("request {} {}", request.tool.to_lowercase(), request.input),
            AgentOutput::Reply(bytes) => format!("reply {}", String::from_utf8_lossy(bytes).trim_end()),
            other => format!("{other:?}"),
        };
        self.log_line(summary);
        match output {
            AgentOutput::Reply(bytes) => self.write_input(&bytes)?,
            AgentOutput::NativeId { id } => self.native_id = Some(id),
            // There is no tool policy here.
            AgentOutput::Request(request) if request.kind == RequestKind::BeforeTool => {
                let line = self.driver.answer_request(&request.id, RequestAnswer::Allow { input: None, context: None });
                self.write_input(&line)?;
            }
            AgentOutput::Request(request) => {
                if let Some(answer) = self.approval_answer.clone() {
                    let line = self.driver.answer_request(&request.id, answer);
                    self.write_input(&line)?;
                }
            }
            AgentOutput::AwaitingScan { tool_use_id } => {
                let line = self.driver.confirm_scan(&tool_use_id);
                self.write_input(&line.unwrap_or_default())?;
            }
            AgentOutput::Unparsed { reason } => bail!("unparsed line: {reason}"),
            AgentOutput::Failed { error } => bail!("the agent failed: {error}\n{}", self.log.join("\n")),
            AgentOutput::Event(_)
            | AgentOutput::Acknowledged { .. }
            | AgentOutput::Idle
            | AgentOutput::TextDelta(_)
            | AgentOutput::ResponseEnded { .. }
            | AgentOutput::RateLimited { .. } => {}
        }
        Ok(())
    }

    pub fn read_file(&self, file: &str) -> Result<String> {
        std::fs::read_to_string(self.root.path().join("work").join(file)).with_context(|| format!("{file} is missing"))
    }

    /// Returns the requests that a script answered.
    pub fn scripted_requests(&self) -> Vec<Arc<RecordedRequest>> {
        self.model.requests().into_iter().filter(|request| request.script.is_some()).collect()
    }

    pub fn count_lines(&self, beginning: &str) -> usize {
        self.log.iter().filter(|line| line.starts_with(beginning)).count()
    }

    pub fn can_resume(&self) -> bool {
        self.driver.abilities().resume
    }

    /// Closes the input, so that the agent can clean up; kills it after a time-out.
    fn stop(&mut self) {
        drop(self.input.take());
        let until = Instant::now() + EXIT_TIMEOUT;
        while Instant::now() < until {
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(self.child.kill());
        drop(self.child.wait());
    }

    pub fn child_pids(&self) -> Result<Vec<String>> {
        let id = self.child.id();
        let mut all = Vec::new();
        for task in std::fs::read_dir(format!("/proc/{id}/task"))? {
            let children = std::fs::read_to_string(task?.path().join("children"))?;
            all.extend(children.split_whitespace().map(str::to_owned));
        }
        Ok(all)
    }

    pub fn send_sigterm(&self) -> Result<()> {
        let id = rustix::process::Pid::from_child(&self.child);
        Ok(rustix::process::kill_process(id, rustix::process::Signal::TERM)?)
    }

    fn write_input(&mut self, line: &[u8]) -> Result<()> {
        self.input.as_mut().context("no standard input")?.write_all(line)?;
        Ok(())
    }
}

impl Drop for AgentHarness {
    fn drop(&mut self) {
        self.stop();
        if let Some(recorder) = self.recorder.take().filter(|_| !std::thread::panicking())
            && let Err(error) = recorder.write_transcript()
        {
            print_line(&format!("failed to write the transcript: {error}"));
        }
    }
}

pub fn leased_message(id: uuid::Uuid, text: &str, message_type: MessageType) -> LeasedMessage {
    let id = MessageId::from_uuid(id);
    LeasedMessage { id, message_type, ..LeasedMessage::example(text, Delivery::Steer) }
}

struct SpawnedAgent {
    child: Child,
    input: ChildStdin,
    lines: Receiver<Vec<u8>>,
    stderr_text: Arc<Mutex<String>>,
}

/// Starts the program with an empty environment, so that no key or setting of the machine leaks in.
fn spawn_agent(
    driver: &mut dyn Driver,
    program: &Path,
    model: &ScriptedModel,
    root: &Path,
    settings: &AgentSettings,
    native_id: Option<&str>,
) -> Result<SpawnedAgent> {
    let (home, work) = (root.join("home"), root.join("work"));
    let gateway = Gateway { base_url: model.base_url(), key: "sk-scripted".to_owned(), apis: Vec::new() };
    let command = driver.build_command(&LaunchContext {
        worker_program: Path::new(env!("CARGO_BIN_EXE_atoll-worker")),
        workspace: &work,
        home: &home,
        previous_turns: 0,
        settings,
        agent_program: Some(program),
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
    let stderr_text = Arc::new(Mutex::new(String::new()));
    let (mut stderr, text) = (child.stderr.take().context("stderr")?, Arc::clone(&stderr_text));
    std::thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(length @ 1..) = stderr.read(&mut piece) {
            if let Ok(mut text) = text.lock() {
                text.push_str(&String::from_utf8_lossy(&piece[..length]));
            }
        }
    });
    let mut input = child.stdin.take().context("stdin")?;
    input.write_all(&driver.handshake())?;
    Ok(SpawnedAgent { child, input, lines, stderr_text })
}
