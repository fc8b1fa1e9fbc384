//! One task: find the server, make the sandbox, watch it, say what came out.

use super::ending::Ending;
use super::face;
use super::place::{Choice, Place};
use super::request::{self, DEMO, Wanted};
use super::signals::Signals;
use super::told::Told;
use super::watch::{Left, Seen, Watch, Watched};
use super::{Run, git, terminal};
use crate::agents::show;
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::render::text;
use crate::sandbox::id_of;
use atoll_config::Config;
use atoll_core::id::SandboxId;
use atoll_core::sandbox::ProviderKind;
use serde_json::{Value, json};
use tokio::time::Instant;

pub async fn start_to_end(run: &Run, wanted: &Wanted, choice: Choice, config: &Config, output: &Output) -> Result {
    let began = Instant::now();
    let mut signals = Signals::listen()?;
    let place = tokio::select! {
        place = Place::open(choice) => place?,
        _ = signals.next() => return Err(Failure::interrupted()),
    };
    let task = Task { run, config, wanted, place: &place, output, began };
    let mut made = None;
    match task.carry_out(&mut made, &mut signals).await {
        Ok((Left::Aborted, exit)) => {
            place.abandon(made, false).await;
            ended_with(exit)
        }
        Ok((_, exit)) => {
            output.flush()?;
            tokio::select! {
                () = place.leave(made, |others| output.note(&waiting_for(others))) => {}
                _ = signals.next() => {}
            }
            ended_with(exit)
        }
        Err(failure) => {
            place.abandon(made, wanted.repo().is_some()).await;
            Err(failure)
        }
    }
}

/// Where no agent can work: how to get one, or to see one play.
fn without_agent(failure: Failure) -> Failure {
    match &failure {
        Failure::Told(told) if told.code == "no_agent" => failure.next(
            "`atoll agents` shows what each agent lacks; `atoll run --agent demo …` tries Atoll out without a model.",
        ),
        Failure::Told(_) | Failure::PipeClosed | Failure::Silent(_) => failure,
    }
}

const fn ended_with(exit: u8) -> Result {
    if exit == 0 { Ok(()) } else { Err(Failure::Silent(exit)) }
}

fn waiting_for(others: usize) -> String {
    let (are, them) = if others == 1 { ("other run is", "it") } else { ("other runs are", "them") };
    format!("{others} {are} at work on the server in here; it ends with {them} (Ctrl-C ends it now)")
}

struct Task<'a> {
    run: &'a Run,
    config: &'a Config,
    wanted: &'a Wanted,
    place: &'a Place,
    output: &'a Output,
    began: Instant,
}

impl Task<'_> {
    /// To its end; how it was left, and the exit code. `known` is the sandbox from when there is one.
    async fn carry_out(&self, known: &mut Option<SandboxId>, signals: &mut Signals) -> Result<(Left, u8)> {
        self.refuse_keeping_what_ends()?;
        // A session has the agent that it had.
        let default = self.config.agent.default.clone().filter(|_| self.run.session.is_none());
        let named = self.run.agent.clone().or(default);
        let unnamed = named.is_none() && self.run.session.is_none();
        // Whoever plays in a sandbox that is none is the demo.
        let plays = self.run.provider.unwrap_or(self.config.provider.default) == ProviderKind::Fake;
        let asked = named.or_else(|| plays.then(|| DEMO.to_owned()));
        let body = request::body(self.run, self.wanted, asked.as_deref());
        let made = self.place.client.post("/sandboxes", &body).await.map_err(without_agent)?;
        let sandbox = id_of(&made, &self.place.client)?;
        *known = Some(sandbox);
        self.refuse_what_nobody_works_in(&made, sandbox).await?;
        let agent = made["agent"].as_str().unwrap_or(DEMO).to_owned();
        let chosen = match (unnamed, self.output.json) {
            (true, false) => Some(self.chosen(&agent).await),
            (true, true) | (false, _) => None,
        };
        self.begin(&made, sandbox, chosen.as_deref())?;
        let watched = Watched {
            sandbox,
            agent,
            repo: self.wanted.repo().is_some(),
            keep: self.run.keep,
            inside: self.place.is_inside(),
        };
        let watch = Watch::new(&watched, &self.place.client, self.output, self.began);
        let seen = Box::pin(watch.run(&self.place.client, signals)).await?;
        let exit = self.end(&seen, sandbox).await?;
        Ok((seen.left, exit))
    }

    fn refuse_keeping_what_ends(&self) -> Result {
        if self.run.keep && self.place.is_inside() && !terminal::somebody_is_there(self.output) {
            return Err(Failure::input("--keep needs a terminal, or a server that goes on when this command ends")
                .next("Start one with `atoll serve`, and run this again."));
        }
        Ok(())
    }

    /// A sandbox whose worker is started by hand would be watched for ever.
    async fn refuse_what_nobody_works_in(&self, made: &Value, sandbox: SandboxId) -> Result {
        if made["provider"] != "external" {
            return Ok(());
        }
        let stop = json!({ "results": "discard" });
        self.place.client.post(&format!("/sandboxes/{sandbox}/stop"), &stop).await?;
        Err(Failure::input("the provider `external` starts no agent: there would be nothing to watch")
            .next("Name another one with --provider, or use `atoll sandbox new`."))
    }

    /// Which agent works where nobody named one, in words.
    async fn chosen(&self, agent: &str) -> String {
        if agent == DEMO {
            return "no agent is configured: the demo agent plays, which needs no model".to_owned();
        }
        let all = show::listed(&self.place.client).await.unwrap_or_default();
        let found = all.iter().find(|item| item["name"] == agent);
        let field = |name: &str| found.and_then(|item| item[name].as_str()).map(text::inline);
        let version = field("version").map(|version| format!(" {version}")).unwrap_or_default();
        let path = field("path").map(|path| format!(" ({path})")).unwrap_or_default();
        format!("using {}{version}{path}: --agent names another", text::inline(agent))
    }

    fn begin(&self, made: &Value, sandbox: SandboxId, chosen: Option<&str>) -> Result {
        if self.output.json {
            let session = &made["session_id"];
            self.output.object(&json!({ "type": "started", "sandbox": sandbox, "session": session }))?;
            return self.output.flush();
        }
        let said = |field: &str| text::inline(made[field].as_str().unwrap_or_default());
        let place = if self.place.is_inside() {
            String::new()
        } else {
            format!(" on {}", text::inline(self.place.client.found.base()))
        };
        let mut told = vec![Told::fact(&format!("{sandbox} ({}, agent {}){place}", said("provider"), said("agent")))];
        told.extend(chosen.map(Told::fact));
        if self.wanted.repo().is_none() {
            told.push(Told::fact("there is no repository: the workspace is empty (--repo names one)"));
        }
        face::print(&told, self.output)
    }

    /// Says what came out, and gives the exit code.
    async fn end(&self, seen: &Seen, sandbox: SandboxId) -> Result<u8> {
        let patch = match (&seen.story.branch, self.wanted.repo(), self.output.json) {
            (Some(branch), Some(repo), false) => git::patch(repo, branch).await,
            _ => None,
        };
        let here = std::env::current_dir().ok().and_then(|dir| dir.canonicalize().ok());
        let ending = Ending {
            left: seen.left,
            story: &seen.story,
            interrupted: seen.interrupted,
            sandbox: &sandbox.to_string(),
            elapsed: self.began.elapsed(),
            repo: self.wanted.repo(),
            in_repo: self.wanted.repo().zip(here).is_some_and(|(repo, here)| here.starts_with(repo)),
            patch: patch.as_deref(),
            inside: self.place.is_inside().then_some(self.config.data_dir.as_path()),
        };
        if self.output.json {
            self.output.object(&ending.object())?;
        } else {
            for line in ending.lines() {
                self.output.line(&line.painted(self.output.colour))?;
            }
        }
        self.output.flush()?;
        Ok(ending.exit())
    }
}
