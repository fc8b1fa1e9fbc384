//! `atoll secret`: manages secrets.

use crate::arguments::read_stdin;
use crate::confirm::Confirm;
use crate::connect::{Connect, ConnectedClient};
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::pages::{PAGE_SIZE, collect_all};
use crate::render::{table, text, time};
use crate::run::run_server::{RunServer, ServerChoice};
use crate::runtime::build_runtime;
use crate::secret_prompt::prompt_secret;
use crate::settings::{self, ConfigFiles};
use atoll_api::{KeyRotation, NewSecret, RemoveSecretQuery, Secret as ApiSecret, SecretListQuery};
use atoll_core::id::ProjectId;
use secrecy::{ExposeSecret, SecretString};
use std::io::IsTerminal;
use tokio::runtime::Builder;

#[derive(Debug, clap::Args)]
pub struct SecretArgs {
    #[command(flatten)]
    connect: Connect,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Set a secret; reads the value from stdin or a prompt
    #[command(after_help = "\
Examples:
  atoll secret set ANTHROPIC_API_KEY
  atoll secret set ANTHROPIC_API_KEY < ~/.claude/.credentials.json
  atoll secret set API_KEY --upstream api.example.org
  pass show registry | atoll secret set NPM_TOKEN --project prj_… --expose
  atoll secret set DEPLOY_KEY --expose=SSH_KEY < deploy.key
  atoll secret set CODEX_LOGIN --expose-file .codex/auth.json < ~/.codex/auth.json

The value is never an argument, because every user of the machine can see arguments. One trailing line
break is removed. The key of a model API, such as ANTHROPIC_API_KEY, OPENAI_API_KEY or GEMINI_API_KEY, is
sent to that API without --upstream; a login file of an agent works as well. --expose sets an environment variable in every sandbox that uses the secret; every
program there can read it. --expose-file writes the value, which must be JSON, to a file in the agent's
home before each prompt. Fields whose names contain `refresh` stay blank there: a program that renewed the
login would log you out.")]
    Set(Set),
    /// List secrets without their values
    #[command(after_help = "Examples:\n  atoll secret ls\n  atoll secret ls --project prj_…")]
    #[command(alias = "list")]
    Ls {
        /// List the secrets that this project can use
        #[arg(long, value_name = "ID")]
        project: Option<ProjectId>,
    },
    /// Remove a secret; running sandboxes keep it
    #[command(after_help = "Examples:\n  atoll secret rm API_KEY\n  atoll secret rm NPM_TOKEN --project prj_…")]
    Rm {
        /// Name of the secret, such as API_KEY
        name: String,
        /// Project of the secret [default: the deployment]
        #[arg(long, value_name = "ID")]
        project: Option<ProjectId>,
        #[command(flatten)]
        confirm: Confirm,
    },
    /// Create a new key and seal every secret with it
    #[command(after_help = "\
Examples:
  atoll secret rotate

Old keys stay in `secret-keys` in the data directory, for old backups; remove their lines when no backup
needs them. If ATOLL_SECRET_KEY is set, the server seals all secrets with that key.")]
    Rotate,
}

#[derive(Debug, clap::Args)]
struct Set {
    /// Name of the secret, such as API_KEY
    name: String,
    /// Project of the secret [default: the deployment, for every project]
    #[arg(long, value_name = "ID")]
    project: Option<ProjectId>,
    /// Allow sending it to this host [default: the model API whose key it is] (repeatable)
    #[arg(long = "upstream", value_name = "HOST")]
    upstreams: Vec<String>,
    /// Expose it as this environment variable [default: its name]
    #[arg(long, value_name = "VAR", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    expose: Option<String>,
    /// Expose it as this file below the agent's home
    #[arg(long, value_name = "PATH", conflicts_with = "expose")]
    expose_file: Option<String>,
}

impl Set {
    fn request(&self, value: SecretString) -> NewSecret {
        let variable = self.expose.as_ref().map(|name| if name.is_empty() { &self.name } else { name });
        NewSecret {
            value,
            project_id: self.project,
            upstreams: self.upstreams.clone(),
            expose: variable.cloned(),
            expose_file: self.expose_file.clone(),
        }
    }
}

/// Without a running server, an embedded one manages the secrets of the data directory.
pub fn run(secret: &SecretArgs, output: &Output) -> Result {
    let connect = &secret.connect;
    let choice = match &connect.server {
        Some(_) => ServerChoice::Running(connect.clone()),
        None => {
            let loaded = settings::load_with_data_dir(connect.data_dir.as_deref(), &ConfigFiles::default())?;
            ServerChoice::choose("atoll secret", connect, &loaded.config)?
        }
    };
    let runtime = build_runtime(Builder::new_multi_thread())?;
    let done = runtime.block_on(async {
        let server = RunServer::open(choice).await?;
        let done = tokio::select! {
            done = run_command(&secret.command, &server.client, output) => done,
            _ = tokio::signal::ctrl_c() => Err(Failure::interrupted()),
        };
        server.shut_down_now(None).await;
        done
    });
    runtime.shutdown_background();
    done
}

async fn run_command(command: &Command, client: &ConnectedClient, output: &Output) -> Result {
    match command {
        Command::Set(set) => set_secret(set, client, output).await,
        Command::Ls { project } => print_list(&all_secrets(client, *project).await?, output),
        Command::Rm { name, project, confirm } => {
            let query = RemoveSecretQuery { project_id: *project };
            check_name(name)?;
            confirm.require(&format!("removes the secret {name}"), output).await?;
            let removed = client.remove_secret(name, &query).await?;
            output.print_result(&removed, || format!("{name} is removed"))
        }
        Command::Rotate => print_rotation(&client.rotate_secret_key().await?, output),
    }
}

async fn all_secrets(client: &ConnectedClient, project_id: Option<ProjectId>) -> Result<Vec<ApiSecret>> {
    collect_all(async |cursor| {
        client.list_secrets(&SecretListQuery { project_id, limit: Some(PAGE_SIZE), cursor }).await
    })
    .await
}

/// Rejects a name that would change the path of the request.
fn check_name(name: &str) -> Result {
    atoll_core::secret::check_secret_name("NAME", name).map_err(|error| Failure::input(error.to_string()))
}

async fn set_secret(set: &Set, client: &ConnectedClient, output: &Output) -> Result {
    check_name(&set.name)?;
    let value = read_value(&set.name).await?;
    let secret = client.set_secret(&set.name, &set.request(value)).await?;
    output.print_result(&secret, || match exposed_as(&secret) {
        Some(place) => format!("{} is set and exposed: sandboxes that use it can read it as {place}", set.name),
        None if secret.upstreams.is_empty() => {
            format!("{} is set, but nothing can use it: add --upstream HOST, --expose or --expose-file", set.name)
        }
        None => format!("{} is set for {}", set.name, text::escape_line(&secret.upstreams.join(", "))),
    })
}

/// The file or variable of the secret in a sandbox.
fn exposed_as(secret: &ApiSecret) -> Option<String> {
    let file = secret.expose_file.as_ref().map(|path| format!("~/{path}"));
    file.or_else(|| secret.expose.clone()).map(|place| text::escape_line(&place))
}

async fn read_value(name: &str) -> Result<SecretString> {
    let text = if std::io::stdin().is_terminal() {
        prompt_secret(&format!("Value of {name} (hidden): ")).await
    } else {
        tokio::task::spawn_blocking(read_stdin).await.map_err(std::io::Error::other).flatten().map(SecretString::from)
    };
    // The error must not contain the input, which may be part of the value.
    let text = text.map_err(|error| {
        Failure::input(format!("cannot read the value: {}", error.kind())).with_hint("The value must be UTF-8 text.")
    })?;
    let value = without_line_end(text.expose_secret());
    atoll_core::secret::check_secret_value(value, None).map_err(|error| Failure::input(error.to_string()))?;
    Ok(SecretString::from(value))
}

/// Removes the one line break that `echo` and editors append.
fn without_line_end(text: &str) -> &str {
    let text = text.strip_suffix('\n').unwrap_or(text);
    text.strip_suffix('\r').unwrap_or(text)
}

fn print_list(secrets: &[ApiSecret], output: &Output) -> Result {
    let now = time::now();
    table::print_list(output, secrets, &["NAME", "OWNER", "EXPOSED", "UPSTREAMS", "SET"], |secret| {
        let hosts = if secret.upstreams.is_empty() { "-".to_owned() } else { secret.upstreams.join(" ") };
        let exposed = exposed_as(secret).map_or_else(|| "no".to_owned(), |place| format!("as {place}"));
        let owner = secret.project_id.map_or_else(|| "deployment".to_owned(), |id| id.to_string());
        let age = time::format_age(secret.updated_at, now);
        [&secret.name, &owner, &exposed, &hosts, &age].map(table::cell).into()
    })
}

fn print_rotation(rotation: &KeyRotation, output: &Output) -> Result {
    let KeyRotation { key_id, sealed, left } = rotation;
    output
        .print_result(rotation, || format!("{sealed} secrets are sealed with the key {}", text::escape_line(key_id)))?;
    if left.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = left.iter().map(|secret| secret.name.as_str()).collect();
    let names = text::escape_line(&names.join(", "));
    Err(Failure::work("secrets_left", format!("the server could not open these secrets and left them: {names}"))
        .with_hint("Restore their key in `secret-keys` in the data directory, or set them again."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removes_one_line_end() {
        for (input, expected) in
            [("x\n", "x"), ("x\r\n", "x"), ("x\n\n", "x\n"), ("a\nb\n", "a\nb"), ("\n", ""), ("", "")]
        {
            assert_eq!(without_line_end(input), expected);
        }
    }

    #[test]
    fn rejects_names_that_would_change_the_path() {
        assert!(check_name("API_KEY").is_ok());
        for bad in ["", "rotate", "../tokens", "A/B", "A?x=1", "a"] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_variable_defaults_to_the_name() {
        let set = |expose: Option<&str>| Set {
            name: "KEY".into(),
            project: None,
            upstreams: vec![],
            expose: expose.map(str::to_owned),
            expose_file: None,
        };
        let variable = |expose| set(expose).request(SecretString::from("v")).expose;
        assert_eq!(variable(None), None);
        assert_eq!(variable(Some("")).as_deref(), Some("KEY"));
        assert_eq!(variable(Some("OTHER")).as_deref(), Some("OTHER"));
        let file = Set { expose_file: Some("a/b".into()), ..set(None) }.request(SecretString::from("v"));
        assert_eq!((file.expose, file.expose_file.as_deref()), (None, Some("a/b")));
    }
}
