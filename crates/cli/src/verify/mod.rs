//! `atoll verify`: one small task from start to end on a server and a repository of its own, and for
//! every promise whether it held.

mod ground;
mod inside;
mod leftovers;
mod log;
mod promise;
mod stage;

use crate::arguments::word;
use crate::client::Client;
use crate::embedded::Prepared;
use crate::failure::{Failure, Result, WORK_FAILED};
use crate::output::Output;
use crate::render::time;
use crate::settings::{self, ConfigFiles};
use atoll_core::sandbox::ProviderKind;
use ground::Ground;
use leftovers::Seen;
use promise::{Promise, Told, Verdict};
use serde_json::{Value, json};
use stage::{Came, Stage};
use std::time::{Duration, Instant};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll verify
  atoll verify --json | jq -c 'select(.held == false)'

It uses a server, a data directory and a repository of its own, which are gone afterwards. What runs already
is not touched. The exit code is 1 when a promise did not hold.")]
pub struct Verify {
    /// Who makes the sandboxes [default: provider.default]
    #[arg(long, value_name = "NAME", value_parser = word::<ProviderKind>)]
    provider: Option<ProviderKind>,
    #[command(flatten)]
    files: ConfigFiles,
}

/// Waits in the middle of its turn until it is answered.
const PROMPT: &str = "say I begin\nedit hello.txt one\nrun id -u\nedit hello.txt two\nask may I go on?\nsay I am done";
const ANSWER: &str = "approve\nsay I heard you";
const ENDING: Duration = Duration::from_secs(10);

pub fn run(verify: &Verify, output: &Output) -> Result {
    let ground = Ground::make()?;
    let data = ground.data().display().to_string();
    let flags = [("data_dir", data.clone()), ("database_url", format!("sqlite:{data}/atoll.db"))];
    let flags = flags.map(|(key, value)| (key.to_owned(), value)).to_vec();
    let loaded = settings::load(flags, &verify.files)?;
    let provider = verify.provider.unwrap_or(loaded.config.provider.default);
    if provider == ProviderKind::External {
        return Err(Failure::input("the provider `external` starts no agent, so there is nothing to verify")
            .next("Name another one with --provider."));
    }
    let prepared = Prepared::new(&loaded.config);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::setup("runtime", format!("can't start threads: {error}")))?;
    let (mut told, mut seen) = (Told::new(output), Seen::default());
    let done = runtime.block_on(async {
        let trial = Trial { ground: &ground, provider, told: &mut told, seen: &mut seen };
        tokio::select! {
            done = Box::pin(everything(prepared, trial)) => done,
            _ = tokio::signal::ctrl_c() => Err(Failure::interrupted()),
        }
    });
    // With it goes all that belongs to the server.
    runtime.shutdown_timeout(ENDING);
    done?;
    told.tell_the_rest()?;
    told.tell(Promise::Clean, &seen.gone(&ground.dir, &ground.data().join("sandboxes")))?;
    if told.end()? { Ok(()) } else { Err(Failure::Silent(WORK_FAILED)) }
}

async fn everything(prepared: Prepared, mut trial: Trial<'_, '_>) -> Result {
    let server = prepared.start().await?;
    let client = server.client()?;
    let tried = trial.go(&client).await;
    server.stop(&client, &[]).await;
    tried
}

struct Trial<'a, 'b> {
    ground: &'a Ground,
    provider: ProviderKind,
    told: &'a mut Told<'b>,
    seen: &'a mut Seen,
}

impl Trial<'_, '_> {
    async fn go(&mut self, client: &Client) -> Result {
        let mut stage = Stage::open(client, &self.body(PROMPT, true)).await?;
        let worked = self.work(client, &mut stage).await?;
        stage.remove().await?;
        if worked {
            self.crash(client).await?;
        }
        Ok(())
    }

    /// Fake sandboxes hold no files of this machine and no processes: what they show proves nothing.
    fn is_real(&self) -> bool {
        self.provider != ProviderKind::Fake
    }

    fn body(&self, prompt: &str, with_repository: bool) -> Value {
        let mut body = json!({ "provider": self.provider, "agent": "demo", "prompt": prompt, "end": "when_done" });
        if with_repository && self.is_real() {
            body["repo"] = json!({ "path": self.ground.repository() });
        }
        body
    }

    /// The one task; whether it came to its end.
    async fn work(&mut self, client: &Client, stage: &mut Stage<'_>) -> Result<bool> {
        let began = Instant::now();
        let asked = stage.until(|entry| entry.event_type == "approval.requested").await?;
        self.seen.look();
        if !matches!(asked, Came::Wanted(_)) {
            self.told.tell(Promise::Works, &Verdict::Broken(asked.instead()))?;
            return Ok(false);
        }
        let (isolated, hidden) = self.look_inside(client, stage).await?;
        let steered = self.steer(stage).await?;
        let end = stage.end().await?;
        let outcome = match &end {
            Came::Wanted(entry) => {
                let outcome = entry.text("outcome").unwrap_or("?");
                Verdict::of(outcome == "succeeded", format!("{outcome} after {}", time::span(began.elapsed())))
            }
            Came::Ended(_) | Came::Nothing => Verdict::Broken(end.instead()),
        };
        let worked = matches!(outcome, Verdict::Held(_));
        let (entries, last_seq) = stage.log().await?;
        let isolated = match (isolated, log::agent_is_nobody_special(&entries)) {
            (Verdict::Held(_), Err(why)) => Verdict::Broken(why),
            (seen, _) => seen,
        };
        self.told.tell(Promise::Works, &outcome)?;
        self.told.tell(Promise::Isolated, &isolated)?;
        self.told.tell(Promise::Hidden, &hidden)?;
        self.told.tell(Promise::Steered, &steered)?;
        self.told.tell(Promise::Logged, &log::is_whole(&entries, last_seq))?;
        self.told.tell(Promise::Edits, &log::edits(&entries, "hello.txt", &["one", "two"]))?;
        let branch = entries.iter().find(|entry| entry.event_type == "git.branch_created");
        let branch = branch.and_then(|entry| entry.text("branch"));
        let on_branch = self.on_branch(branch)?;
        self.told.tell(Promise::Branch, &on_branch)?;
        Ok(worked)
    }

    async fn look_inside(&self, client: &Client, stage: &Stage<'_>) -> Result<(Verdict, Verdict)> {
        if !self.is_real() {
            let skipped = Verdict::Skipped(format!("the provider `{}` runs nothing", self.provider));
            return Ok((skipped.clone(), skipped));
        }
        let isolated = inside::isolated(client, stage.sandbox).await?;
        Ok((isolated, inside::hidden(client, stage.sandbox, self.ground).await?))
    }

    async fn steer(&self, stage: &mut Stage<'_>) -> Result<Verdict> {
        let began = Instant::now();
        let sent = stage.say(ANSWER).await?;
        let id = sent["id"].as_str().unwrap_or_default().to_owned();
        let came = stage
            .until(|entry| {
                let own = entry.text("message_id") == Some(&id);
                own && entry.event_type.starts_with("message.") && entry.event_type != "message.queued"
            })
            .await?;
        Ok(match &came {
            Came::Wanted(entry) => log::steered(entry, began.elapsed().as_millis()),
            Came::Ended(_) | Came::Nothing => Verdict::Broken(came.instead()),
        })
    }

    fn on_branch(&self, branch: Option<&str>) -> Result<Verdict> {
        if !self.is_real() {
            return Ok(Verdict::Skipped(format!("the provider `{}` has no repositories", self.provider)));
        }
        let Some(branch) = branch else { return Ok(Verdict::Broken("no branch was made".to_owned())) };
        let file = match self.ground.git(&["show", &format!("refs/heads/{branch}:hello.txt")]) {
            Ok(file) => file,
            Err(failure) => return Ok(Verdict::Broken(failure.shown(false).unwrap_or_default())),
        };
        if file != "two" {
            return Ok(Verdict::Broken(format!("hello.txt on {branch} holds {file:?}")));
        }
        let untouched = self.ground.is_untouched()?;
        Ok(Verdict::of(untouched, if untouched { branch } else { "the checkout has changed" }))
    }

    async fn crash(&mut self, client: &Client) -> Result {
        if !self.is_real() {
            let skipped = Verdict::Skipped(format!("the provider `{}` has no process that could", self.provider));
            return self.told.tell(Promise::Crash, &skipped);
        }
        let mut stage = Stage::open(client, &self.body("say I will crash\ncrash", false)).await?;
        let came = stage.until(|entry| entry.event_type == "sandbox.failed").await?;
        self.seen.look();
        let verdict = match &came {
            Came::Wanted(entry) => {
                Verdict::of(entry.data["reason"]["code"] == "agent_crashed", came_as(&came, &entry.data))
            }
            Came::Ended(_) | Came::Nothing => Verdict::Broken(came.instead()),
        };
        stage.remove().await?;
        self.told.tell(Promise::Crash, &verdict)
    }
}

fn came_as(came: &Came, data: &Value) -> String {
    let reason = &data["reason"];
    match (reason["detail"].as_str(), reason["code"].as_str()) {
        (Some(detail), Some(code)) => format!("{detail} ({code})"),
        _ => came.instead(),
    }
}
