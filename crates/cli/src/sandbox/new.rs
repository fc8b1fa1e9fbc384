//! `atoll sandbox new` and `worker-token`.

use super::id_of;
use super::network::Choice;
use crate::arguments::{pair, repository, text_or_stdin, word};
use crate::client::Client;
use crate::failure::Result;
use crate::output::Output;
use crate::render::text;
use crate::worker_start;
use crate::working::Working;
use atoll_core::id::{ProjectId, SandboxId, SessionId};
use atoll_core::sandbox::{End, ProviderKind};
use serde_json::{Map, Value, json};
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll sandbox new \"fix the flaky test\" --repo . --agent demo
  atoll sandbox new --agent demo --end keep --label team=web
  atoll sandbox new --provider external --title \"CI run 7\"      a worker that you start yourself
  atoll sandbox new --session ses_… \"go on\"
  atoll sandbox new - < prompt.md

With the provider `external` nothing is started: the worker's token is put into a file that only you can read,
and the command that starts the worker is printed.")]
pub struct New {
    /// What the agent is to do; `-` reads it from the standard input; without it the agent waits
    prompt: Option<String>,
    /// A directory of the server with a git repository for the agent to work on
    #[arg(long, value_name = "PATH")]
    repo: Option<PathBuf>,
    /// Who makes the sandbox: local, docker, external or fake [default: the server's]
    #[arg(long, value_parser = word::<ProviderKind>)]
    provider: Option<ProviderKind>,
    /// The agent that works in it
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// The model that the agent uses
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// An imported root to work in, instead of this machine's programs
    #[arg(long, value_name = "NAME")]
    image: Option<String>,
    /// The kept files that it begins with
    #[arg(long, value_name = "NAME")]
    snapshot: Option<String>,
    /// The session's title
    #[arg(long)]
    title: Option<String>,
    /// When it ends: when_done or keep [default: when_done with a prompt, keep without]
    #[arg(long, value_name = "WHEN", value_parser = word::<End>)]
    end: Option<End>,
    /// A label; several times
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = pair)]
    labels: Vec<(String, String)>,
    /// A variable of the sandbox's environment; several times
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = pair)]
    env: Vec<(String, String)>,
    /// A secret that it may use, by name; several times
    #[arg(long = "secret", value_name = "NAME")]
    secrets: Vec<String>,
    /// A path of the workspace that the agent must not change; several times
    #[arg(long = "protect", value_name = "PATH")]
    protected: Vec<String>,
    /// The project that it belongs to [default: the default project]
    #[arg(long, value_name = "ID")]
    project: Option<ProjectId>,
    /// Go on in this session instead of beginning one
    #[arg(long, value_name = "ID")]
    session: Option<SessionId>,
    /// End it after this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    timeout_s: Option<u32>,
    #[command(flatten)]
    working: Working,
    #[command(flatten)]
    network: Choice,
    #[command(flatten)]
    limits: super::limits::Allowance,
    /// A new file for the worker's token [default: worker-ID.token in the data directory]
    #[arg(long, value_name = "FILE")]
    token_file_out: Option<PathBuf>,
}

impl New {
    fn body(&self, prompt: Option<String>) -> Result<Value> {
        let mut body = Map::new();
        let mut put = |field: &str, value: Option<Value>| body.extend(value.map(|value| (field.to_owned(), value)));
        let object = |pairs: &[(String, String)]| {
            let pairs = pairs.iter().map(|(key, value)| (key.clone(), Value::from(value.clone())));
            Some(Value::Object(pairs.collect())).filter(|object| *object != json!({}))
        };
        put("prompt", prompt.map(Value::from));
        put("provider", self.provider.map(|word| word.as_str().into()));
        put("agent", self.agent.clone().map(Value::from));
        put("model", self.model.clone().map(Value::from));
        put("image", self.image.clone().map(Value::from));
        put("snapshot", self.snapshot.clone().map(Value::from));
        put("title", self.title.clone().map(Value::from));
        put("end", self.end.map(|word| word.as_str().into()));
        put("labels", object(&self.labels));
        put("env", object(&self.env));
        put("secrets", (!self.secrets.is_empty()).then(|| json!(self.secrets)));
        put("protected", (!self.protected.is_empty()).then(|| json!(self.protected)));
        put("project_id", self.project.map(|id| id.to_string().into()));
        put("session_id", self.session.map(|id| id.to_string().into()));
        put("timeout_s", self.timeout_s.map(Value::from));
        put("network", self.network.body());
        put("limits", self.limits.body());
        put("repo", self.repo.as_deref().map(repository).transpose()?);
        self.working.put(&mut body);
        Ok(Value::Object(body))
    }
}

pub async fn run(new: &New, client: &Client, output: &Output) -> Result {
    worker_start::check_place(new.token_file_out.as_deref())?;
    let prompt = match &new.prompt {
        Some(text) => Some(text_or_stdin(text).await?),
        None => None,
    };
    let made = client.post("/sandboxes", &new.body(prompt)?).await?;
    tell_made(made, new.token_file_out.as_deref(), client, output)
}

/// A sandbox that was just made, with its worker where that is started by hand.
pub fn tell_made(mut made: Value, out: Option<&std::path::Path>, client: &Client, output: &Output) -> Result {
    let id = id_of(&made, client)?;
    if let Some(worker) = made.get_mut("worker") {
        worker_start::keep(client, id, worker, out)?;
    }
    if output.json {
        return output.object(&made);
    }
    let said = |field: &str| text::inline(made[field].as_str().unwrap_or_default());
    output.line(&format!("{id} is {} in session {}", said("state"), said("session_id")))?;
    match made.get("worker") {
        Some(worker) => worker_start::tell(worker, output),
        None => output.line(&format!("watch it with: atoll logs {id} --follow")),
    }
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll sandbox worker-token sbx_…
  atoll sandbox worker-token sbx_… --out /run/secrets/worker")]
pub struct WorkerToken {
    id: SandboxId,
    /// A new file for the token [default: worker-ID.token in the data directory]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub async fn worker_token(token: &WorkerToken, client: &Client, output: &Output) -> Result {
    worker_start::check_place(token.out.as_deref())?;
    let mut worker = client.post(&format!("/sandboxes/{}/worker-token", token.id), &json!({})).await?;
    worker_start::keep(client, token.id, &mut worker, token.out.as_deref())?;
    if output.json { output.object(&worker) } else { worker_start::tell(&worker, output) }
}
