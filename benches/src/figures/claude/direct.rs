//! Claude Code at the other end of two pipes, with nothing of Atoll around it but the driver's words: what is left is
//! the agent's own time.

use anyhow::{Context, Result};
use atoll_core::id::{LeaseId, MessageId, SessionId};
use atoll_core::message::{Delivery, MessageType};
use atoll_core::sandbox::Approvals;
use atoll_core::time::Timestamp;
use atoll_protocol::{Gateway, LeasedMessage};
use atoll_worker::driver::{self, Answer, Driver, Launch, Said, Standing};
use atoll_worker::heartbeat::Settings;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc;

const PATIENCE: Duration = Duration::from_secs(120);

struct Order {
    text: String,
    kind: MessageType,
    standing: Standing,
}

pub struct Direct {
    child: Child,
    orders: mpsc::UnboundedSender<Order>,
    /// When it said that it takes the next message.
    idles: mpsc::UnboundedReceiver<Instant>,
}

impl Direct {
    pub fn start(program: &Path, model: &str, place: &Path) -> Result<Self> {
        let (home, work) = (place.join("home"), place.join("work"));
        std::fs::create_dir_all(&home)?;
        std::fs::create_dir_all(&work)?;
        let settings = Settings { approvals: Some(Approvals::Full), ..Settings::default() };
        let gateway = Gateway { base_url: model.to_owned(), key: "sk-scripted".to_owned() };
        let mut driver = driver::find("claude").context("there is such a driver")?;
        let command = driver.command(&Launch {
            worker: Path::new("/none"),
            workspace: &work,
            home: &home,
            turns: 0,
            settings: &settings,
            program: Some(program),
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
        let (orders, taken) = mpsc::unbounded_channel();
        let (said, idles) = mpsc::unbounded_channel();
        tokio::spawn(speak(driver, input, output, taken, said));
        Ok(Self { child, orders, idles })
    }

    pub fn tell(&self, text: &str, standing: Standing) {
        drop(self.orders.send(Order { text: text.to_owned(), kind: MessageType::UserMessage, standing }));
    }

    pub fn interrupt(&self) {
        drop(self.orders.send(Order {
            text: "enough".to_owned(),
            kind: MessageType::Interrupt,
            standing: Standing::InTurn,
        }));
    }

    pub async fn idle(&mut self) -> Result<Instant> {
        let idle = tokio::time::timeout(PATIENCE, self.idles.recv()).await.context("its turn does not end")?;
        idle.context("it ended")
    }

    pub async fn end(mut self) -> Result<()> {
        drop(self.orders);
        self.child.kill().await?;
        Ok(())
    }
}

async fn speak(
    mut driver: Box<dyn Driver>,
    mut input: ChildStdin,
    output: BufReader<tokio::process::ChildStdout>,
    mut orders: mpsc::UnboundedReceiver<Order>,
    idles: mpsc::UnboundedSender<Instant>,
) -> Result<()> {
    input.write_all(&driver.greeting()).await?;
    let mut lines = output.split(b'\n');
    loop {
        tokio::select! {
            order = orders.recv() => {
                let Some(Order { text, kind, standing }) = order else { return Ok(()) };
                let line = driver.tell(&message(text, kind), standing);
                input.write_all(&line).await?;
            }
            line = lines.next_segment() => {
                let Some(line) = line? else { return Ok(()) };
                for said in driver.line(&line) {
                    let answer = match said {
                        Said::Reply(bytes) => bytes,
                        Said::Asks(ask) => driver.answer(&ask.id, Answer::Allow { input: None, context: None }),
                        Said::ToolRan { tool_use_id } => driver.tool_seen(&tool_use_id).unwrap_or_default(),
                        Said::Idle => {
                            let _nobody_waits = idles.send(Instant::now());
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

fn message(content: String, message_type: MessageType) -> LeasedMessage {
    LeasedMessage {
        id: MessageId::new(),
        session_id: SessionId::new(),
        message_type,
        delivery: Delivery::Steer,
        content,
        sender: None,
        position: 0,
        created_at: Timestamp::from_micros(0),
        lease: LeaseId::new(),
        lease_until: Timestamp::from_micros(0),
    }
}
