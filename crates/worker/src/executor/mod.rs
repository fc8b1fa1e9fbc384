//! The executor: owns the agent's process, and is to the dispatcher what a program at the other end of two pipes is.
//!
//! One loop again, which never waits for one thing alone: orders of the dispatcher, the agent's lines, changes of files,
//! clocks. What the agent says goes through a gate: before the end of a tool or a turn is told on, everything that
//! changed in the workspace until then is.
//!
//! `talk` knows messages and turns, `agent` the process, `files` the watching, `saving` the transcript, `logins` what it
//! finds in its home, `failure` the ends; `gate`, `ending` and this put them together.

use crate::driver::{self, Driver, Launch, Origin, Said, Standing};
use crate::environment::Environment;
use crate::exchange::Exchange;
use crate::hands::{Handle, Program as Runs, Seen};
use crate::heartbeat::{Settings, Start};
use crate::input::{Event, Item, MAX_LINE, Nack, Read};
use crate::logins::Logins;
use crate::memory::Memory;
use crate::program::{Outlet, Program};
use crate::transcript::Keeper;
use agent::{Agent, Spoken};
use asking::Asking;
use atoll_core::approval::ApprovalAnswer;
use atoll_core::event::{EventType, Source, kind};
use atoll_core::guardian::Watch;
use atoll_core::limit::Limit;
use atoll_core::sandbox::{Activity, AgentLimits};
use atoll_core::time::{Clock, SystemClock};
use atoll_protocol::{Gateway, LeasedMessage};
use ending::{Interrupt, Leaving};
use files::Files;
use gate::{Gate, Then};
use limits::Limits;
use logins::Login;
use quiet::Stillness;
use saving::Saving;
use serde_json::json;
use serde_json::value::RawValue;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use talk::{Next, Talk};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

mod agent;
mod asking;
mod composing;
mod ending;
mod failure;
mod files;
mod gate;
mod holding;
mod limits;
mod logins;
mod quiet;
mod rules;
mod saving;
mod tail;
mod talk;
#[cfg(test)]
pub(crate) mod tests;
mod watching;

/// How many packets of items wait for the dispatcher.
const WAITING: usize = 4;
/// As many items are held here before the agent is not listened to any more.
const ENOUGH: usize = 256;
/// After a turn the server may say that it was the last one; a worker that is to stop is not waiting.
const LAST_TURN: Duration = Duration::from_millis(200);
/// For the first look at all files. The agent is told its prompt after it, but does not wait for ever.
const FIRST_LOOK: Duration = Duration::from_secs(10);

pub use quiet::Quiet;
pub use tail::Tail;

/// What the dispatcher wants.
#[derive(Debug)]
pub enum Order {
    /// The server has said how to begin.
    Begin(Box<Start>),
    Message(Box<LeasedMessage>),
    /// What became of something that the agent asked.
    Answer(Box<ApprovalAnswer>),
    /// How much the agent may use, and what the server holds it back for.
    Limits(AgentLimits, Option<Limit>),
    /// The sandbox is ending: so does the agent.
    Stop,
    /// The worker was told to go: the agent may finish the tool that it uses.
    Leave,
}

/// What the executor works with.
#[derive(Debug, Clone)]
pub struct Tools {
    pub hands: Handle,
    pub environment: Arc<Environment>,
    pub memory: Arc<Memory>,
    /// The worker's own program, as it is found in the sandbox.
    pub worker: PathBuf,
    pub workspace: PathBuf,
    /// Takes the agent's transcripts to the server.
    pub transcripts: Option<Keeper>,
    /// Brings its login files from there.
    pub logins: Option<Logins>,
}

/// Starts the executor; the dispatcher works for what it gives.
pub fn start(tools: Tools, quiet: mpsc::Receiver<Quiet>) -> Program {
    let (orders, taken) = mpsc::unbounded_channel();
    let (items, input) = mpsc::channel(WAITING);
    tokio::spawn(Executor::new(tools, taken, quiet, items).run());
    Program { input, output: Outlet::Executor(orders) }
}

/// What the agent said, or that nobody knows what it said.
enum Heard {
    Said(Said),
    Nonsense(Option<Event>),
}

struct Executor {
    tools: Tools,
    orders: mpsc::UnboundedReceiver<Order>,
    quiet: mpsc::Receiver<Quiet>,
    items: mpsc::Sender<Read>,
    clock: SystemClock,
    /// None until the server has said how to begin.
    driver: Option<Box<dyn Driver>>,
    /// The server named none: the sandbox is there for commands.
    has_no_agent: bool,
    talk: Talk,
    agent: Option<Agent>,
    files: Files,
    /// The sandbox's task, for agents that look for it.
    task: Option<String>,
    /// Waits for the first look at the files, until then at the latest.
    opening: Option<(LeasedMessage, Instant)>,
    /// Said by the agent and not looked at.
    heard: VecDeque<Heard>,
    gate: Option<Gate>,
    interrupt: Option<Interrupt>,
    /// What the agent gave up with, and until when it may go.
    failed: Option<(String, Instant)>,
    waiting_due: Option<Instant>,
    leaving: Leaving,
    stillness: Stillness,
    asking: Asking,
    saving: Saving,
    login: Login,
    /// The agent has asked a person something without asking here.
    asks_by_itself: bool,
    limits: Limits,
    /// For the message that begins the next turn.
    note: Option<String>,
    watch: Watch,
    exchange: Exchange,
    touching: VecDeque<String>,
    /// What the guardian's time counts from.
    began: Instant,
    settings: Settings,
    /// Of these, what the agent does not follow, once it was said.
    ignored: Vec<driver::Ignored>,
    /// What the server said about the agent's program, and how it reaches models.
    program: Option<PathBuf>,
    gateway: Option<Gateway>,
    /// The agent's own name for the conversation.
    native_id: Option<String>,
    outgoing: Vec<Item>,
}

impl Executor {
    fn new(
        tools: Tools,
        orders: mpsc::UnboundedReceiver<Order>,
        quiet: mpsc::Receiver<Quiet>,
        items: mpsc::Sender<Read>,
    ) -> Self {
        let files = Files::new(tools.hands.clone(), tools.workspace.clone());
        let saving = Saving::new(tools.transcripts.clone());
        let login = Login::new(tools.logins.clone());
        Self {
            tools,
            orders,
            quiet,
            items,
            clock: SystemClock::start(),
            driver: None,
            has_no_agent: false,
            talk: Talk::new(driver::Abilities::default()),
            agent: None,
            files,
            task: None,
            opening: None,
            heard: VecDeque::new(),
            gate: None,
            interrupt: None,
            failed: None,
            waiting_due: None,
            leaving: Leaving::No,
            stillness: Stillness::No,
            asking: Asking::default(),
            saving,
            login,
            asks_by_itself: false,
            limits: Limits::default(),
            note: None,
            watch: Watch::default(),
            exchange: Exchange::default(),
            touching: VecDeque::new(),
            began: Instant::now(),
            settings: Settings::default(),
            ignored: Vec::new(),
            program: None,
            gateway: None,
            native_id: None,
            outgoing: Vec::new(),
        }
    }

    async fn run(mut self) {
        let items = self.items.clone();
        loop {
            self.go_on().await;
            if self.leaving.is_done() {
                break;
            }
            let listen = self.heard.is_empty() && self.gate.is_none() && self.outgoing.len() < ENOUGH;
            let due = self.next_due();
            tokio::select! {
                order = self.orders.recv() => match order {
                    Some(order) => self.obey(order),
                    None => return,
                },
                permit = items.reserve(), if !self.outgoing.is_empty() => match permit {
                    Ok(permit) => permit.send(Read::Items(std::mem::take(&mut self.outgoing))),
                    Err(_) => return,
                },
                seen = self.files.next(), if self.outgoing.len() < ENOUGH => self.see(seen),
                spoken = next(self.agent.as_mut(), listen) => self.hear(spoken),
                Some(quiet) = self.quiet.recv() => self.be_quiet(quiet),
                () = self.stillness.over() => self.stillness = Stillness::No,
                outcome = self.saving.done_or_restored() => self.kept(outcome),
                outcome = self.login.done() => self.logged_in(outcome),
                () = at(due) => {}
            }
        }
        self.login.remove().await;
        if !self.outgoing.is_empty() {
            drop(items.send(Read::Items(self.outgoing)).await);
        }
        drop(items.send(Read::Ended(None)).await);
    }

    fn next_due(&self) -> Option<Instant> {
        let opening = self.opening.as_ref().map(|(_, until)| *until);
        let gate = self.gate.as_ref().map(Gate::until);
        let interrupt = self.interrupt.as_ref().and_then(Interrupt::until);
        let failed = self.failed.as_ref().map(|(_, until)| *until);
        let dues = [
            opening,
            gate,
            interrupt,
            failed,
            self.waiting_due,
            self.leaving.until(),
            self.asking.until(),
            self.saving.until(),
            self.limits.until(),
        ];
        dues.into_iter().flatten().min()
    }

    /// Does everything that can be done now.
    async fn go_on(&mut self) {
        loop {
            let now = Instant::now();
            if self.saving.holds_up(now) {
                break;
            }
            if self.gate.as_ref().is_some_and(|gate| gate.is_shut(now) && self.files.is_open()) {
                // What is said to the agent goes the other way and need not wait.
                if self.talk.standing() == Standing::InTurn {
                    while self.tell_next(now).await {}
                }
                break;
            }
            if let Some(gate) = self.gate.take() {
                self.pass(gate.then);
            } else if self.go_on_saving(now) {
            } else if let Some(heard) = self.heard.pop_front() {
                self.take(heard);
            } else if let Some(ending) = self.agent.as_ref().and_then(Agent::ending) {
                self.through_gate(Then::AgentEnded(ending));
            } else if self.leaving.wants_end(self.talk.uses_tools(), self.agent.is_some(), now) {
                self.let_agent_end(now);
            } else if self.leaving.is_ready(self.agent.is_some()) {
                self.through_gate(Then::Leave);
            } else if !self.tell_next(now).await {
                break;
            }
            if self.leaving.is_done() {
                return;
            }
        }
        self.settle_stillness().await;
        self.save_if_due(Instant::now());
        self.heed_limits(Instant::now());
        self.be_firm(Instant::now());
        self.deny_late(Instant::now());
        if self.waiting_due.is_some_and(|due| due <= Instant::now()) {
            self.waiting_due = None;
            let turn = Some(self.talk.turn()).filter(|turn| *turn > 0);
            self.emit(kind::AGENT_WAITING, turn, atoll_core::json::raw(&json!({})));
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Begin(start) => self.begin(*start),
            Order::Message(message) => {
                self.waiting_due = None;
                if self.has_no_agent {
                    let reason = "no agent".to_owned();
                    self.outgoing.push(Item::Nack(Nack { id: message.id, handed: false, reason, retry: false }));
                } else {
                    self.talk.arrive(*message);
                }
            }
            Order::Answer(answer) => self.answered(*answer),
            Order::Limits(limits, held) => self.set_limits(limits, held),
            Order::Stop => self.leaving.now(),
            Order::Leave => self.leaving.after_tool(),
        }
    }

    fn begin(&mut self, start: Start) {
        self.tools.environment.set(start.settings.clone());
        self.settings = start.settings;
        self.limits.set(self.settings.limits.unwrap_or_default(), None);
        self.watch = Watch::new(self.settings.guardian.unwrap_or_default());
        (self.program, self.gateway) = (start.program, start.gateway);
        let Some(name) = start.agent else {
            self.has_no_agent = true;
            return;
        };
        match driver::find(&name) {
            Some(driver) => {
                self.talk.set_abilities(driver.abilities());
                self.driver = Some(driver);
                if let Some(resume) = start.resume {
                    self.take_up(resume);
                }
                if start.prompt.is_none() {
                    self.waiting_due = Some(Instant::now());
                }
            }
            None => {
                let known = driver::NAMES.join(", ");
                self.not_started(&format!("there is no agent `{name}` in this version; there is {known}"));
            }
        }
    }

    /// Tells the agent what there is to tell; says whether there was something.
    async fn tell_next(&mut self, now: Instant) -> bool {
        let is_kept_waiting = self.stillness.is_asked() || self.saving.restoring.is_some() || self.login.is_running();
        if !matches!(self.leaving, Leaving::No) || is_kept_waiting || self.driver.is_none() {
            return false;
        }
        if let Some(message) = self.login.ready() {
            self.open_turn(message).await;
            return true;
        }
        if let Some((message, until)) = self.opening.take() {
            if self.files.is_opening() && until > now && !self.talk.has_interrupt() {
                self.opening = Some((message, until));
                return false;
            }
            self.tell(&message, Standing::Idle);
            return true;
        }
        match self.talk.next(self.limits.may_begin(self.talk.turn())) {
            Some(Next::Begin(message)) => self.begin_turn(message).await,
            Some(Next::Steer(message)) => self.tell(&message, Standing::InTurn),
            Some(Next::Interrupt(message)) => {
                self.limits.let_go();
                self.tell(&message, Standing::InTurn);
                self.interrupt.get_or_insert_with(|| Interrupt::new(message));
            }
            Some(Next::Acknowledge(ack)) => self.outgoing.push(Item::Ack(ack)),
            Some(Next::TooLate(message)) => {
                let reason = "the turn was over".to_owned();
                self.outgoing.push(Item::Nack(Nack { id: message.id, handed: false, reason, retry: false }));
            }
            None => return false,
        }
        true
    }

    async fn begin_turn(&mut self, message: LeasedMessage) {
        self.waiting_due = None;
        self.outgoing.push(Item::Activity(Activity::Working));
        let wants_login = self.settings.secrets.as_ref().is_some_and(|secrets| !secrets.is_empty());
        if let Some(message) = self.login.begin(message, wants_login) {
            self.open_turn(message).await;
        }
    }

    /// All that the agent finds is there.
    async fn open_turn(&mut self, message: LeasedMessage) {
        if self.agent.is_none()
            && let Err(error) = self.start_agent(&message).await
        {
            self.talk.take_back(message);
            self.not_started(&error);
            return;
        }
        self.note_last_turn();
        self.limits.begins(Instant::now());
        self.files.start();
        self.save_later();
        self.opening = Some((message, Instant::now() + FIRST_LOOK));
    }

    async fn start_agent(&mut self, message: &LeasedMessage) -> Result<(), String> {
        let Some(driver) = &mut self.driver else { return Err("there is no agent".to_owned()) };
        let home = PathBuf::from(self.tools.environment.home());
        // One that has a login of its own uses that.
        let logs_in = driver.login().is_some_and(|path| self.login.has(path));
        let launch = Launch {
            worker: &self.tools.worker,
            workspace: &self.tools.workspace,
            home: &home,
            turns: self.talk.turn(),
            settings: &self.settings,
            program: self.program.as_deref(),
            gateway: self.gateway.as_ref().filter(|_| !logs_in),
            native_id: self.native_id.as_deref(),
        };
        let driver::Command { argv, env, files, ignored } = driver.command(&launch);
        let files = files.into_iter().map(|file| (home.join(file.path), file.text)).collect();
        let task = self.task.get_or_insert_with(|| message.content.clone());
        let env = self.tools.environment.of_agent(task, env);
        let program = Runs { argv, cwd: self.tools.workspace.clone(), env, whole: true, terminal: None, files };
        let kills = self.tools.memory.kills();
        let mut agent = Agent::start(&self.tools.hands, program, kills).await.map_err(|error| error.to_string())?;
        agent.tell(&driver.greeting());
        self.agent = Some(agent);
        if !ignored.is_empty() && self.ignored != ignored {
            let turn = self.turn();
            self.emit(kind::AGENT_SETTINGS_IGNORED, turn, atoll_core::json::raw(&json!({ "settings": ignored })));
            self.ignored = ignored;
        }
        Ok(())
    }

    fn tell(&mut self, message: &LeasedMessage, standing: Standing) {
        if let (Some(driver), Some(agent)) = (&mut self.driver, &mut self.agent) {
            match self.note.take() {
                Some(note) => {
                    let content = driver.with_note(&message.content, &note);
                    agent.tell(&driver.tell(&LeasedMessage { content, ..message.clone() }, standing));
                }
                None => agent.tell(&driver.tell(message, standing)),
            }
        }
    }

    fn hear(&mut self, spoken: Vec<Spoken>) {
        let Some(driver) = &mut self.driver else { return };
        if !spoken.is_empty() {
            self.saving.said_something();
            if let Some(agent) = &mut self.agent {
                agent.was_heard(self.tools.memory.kills());
            }
        }
        for line in spoken {
            let (line, bytes, said) = match line {
                Spoken::Line(line) => {
                    let (bytes, said) = (line.len(), driver.line(&line));
                    (line, bytes, said)
                }
                Spoken::TooLong { head, bytes } => {
                    let reason = format!("the line has {bytes} bytes; at most {MAX_LINE} are read");
                    (head, bytes, vec![Said::Unparsed { reason }])
                }
            };
            for said in said {
                // The protocol's own words wait for nothing: the agent may be held up by them.
                if let Said::Reply(bytes) = &said
                    && let Some(agent) = &mut self.agent
                {
                    agent.tell(bytes);
                    continue;
                }
                self.heard.push_back(match said {
                    Said::Unparsed { reason } => {
                        Heard::Nonsense(Event::unparsed(&line, bytes, &reason, self.clock.now()))
                    }
                    said => Heard::Said(said),
                });
            }
        }
    }

    fn emit(&mut self, event_type: &str, turn: Option<i64>, data: Box<RawValue>) {
        self.compose(event_type, turn, data.get(), &Origin::Unsaid);
        self.emit_by(Source::Agent, event_type, turn, data);
    }

    fn emit_by(&mut self, source: Source, event_type: &str, turn: Option<i64>, data: Box<RawValue>) {
        if let Ok(event_type) = EventType::new(event_type) {
            let event = Event { event_type, source, at: self.clock.now(), turn, data };
            self.outgoing.push(Item::Event(event));
        }
    }

    fn see(&mut self, seen: Vec<Seen>) {
        for seen in seen {
            match seen {
                Seen::Watching | Seen::Failed(_) => {}
                Seen::Change(change) => {
                    let turn = self.talk.turn();
                    self.watch.has_effect();
                    self.limits.progress(Instant::now());
                    let data = files::edited(&change, turn, self.talk.tool());
                    self.emit(kind::AGENT_FILE_EDITED, Some(turn), data);
                }
                Seen::Flushed(number) => {
                    if let Some(gate) = &mut self.gate {
                        gate.reached(number);
                    }
                }
            }
        }
    }
}

async fn next(agent: Option<&mut Agent>, listen: bool) -> Vec<Spoken> {
    match agent {
        Some(agent) => agent.next(listen).await,
        None => std::future::pending().await,
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}
