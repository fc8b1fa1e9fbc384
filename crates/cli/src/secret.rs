//! `atoll secret`: values that stay in the server, and where they may go.

use crate::arguments::stdin;
use crate::client::{Client, Connect};
use crate::failure::{Failure, Result};
use crate::hidden;
use crate::output::Output;
use crate::render::{table, text, time};
use atoll_core::id::ProjectId;
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use std::io::IsTerminal;

#[derive(Debug, clap::Args)]
pub struct Secret {
    #[command(flatten)]
    connect: Connect,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Make or replace a secret; its value comes from the standard input or a prompt that does not show it
    #[command(after_help = "\
Examples:
  atoll secret set API_KEY --upstream api.example.org
  pass show registry | atoll secret set NPM_TOKEN --project prj_… --expose
  atoll secret set DEPLOY_KEY --expose=SSH_KEY < deploy.key
  atoll secret set CODEX_LOGIN --expose-file .codex/auth.json < ~/.codex/auth.json

The value is never an argument: those are seen by everybody on the machine. One line end after it is left out.
With --expose it is a variable inside every sandbox that names the secret, and whoever works there can read it.
With --expose-file it is JSON, and a file in the agent's home there, written before each prompt. Fields
whose names contain `refresh` are kept in it and blank: who renewed the login there would log you out.")]
    Set(Set),
    /// List secrets by name; no value is ever shown
    #[command(after_help = "Examples:\n  atoll secret ls\n  atoll secret ls --project prj_…")]
    #[command(alias = "list")]
    Ls {
        /// Those that this project's sandboxes can use
        #[arg(long, value_name = "ID")]
        project: Option<ProjectId>,
    },
    /// Remove a secret; sandboxes that hold it keep it until they end
    #[command(after_help = "Examples:\n  atoll secret rm API_KEY\n  atoll secret rm NPM_TOKEN --project prj_…")]
    Rm {
        name: String,
        /// Whose it is [default: the deployment's]
        #[arg(long, value_name = "ID")]
        project: Option<ProjectId>,
    },
    /// Make a new key and seal every secret with it
    #[command(after_help = "\
Examples:
  atoll secret rotate

Older keys stay in `secret-keys` in the data directory, for older backups; take their lines out when no backup needs
them. Where ATOLL_SECRET_KEY names the key, everything is sealed with that one.")]
    Rotate,
}

#[derive(Debug, clap::Args)]
struct Set {
    /// Like API_KEY
    name: String,
    /// Whose it is [default: the deployment's, for every project]
    #[arg(long, value_name = "ID")]
    project: Option<ProjectId>,
    /// A host that it may be sent to, like api.example.org or *.example.org; several times
    #[arg(long = "upstream", value_name = "HOST")]
    upstreams: Vec<String>,
    /// Put it into the environment of sandboxes that name it, as this variable [default: its name]
    #[arg(long, value_name = "VAR", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    expose: Option<String>,
    /// Or as this file below the agent's home, for agents that look for a login there
    #[arg(long, value_name = "PATH", conflicts_with = "expose")]
    expose_file: Option<String>,
}

impl Set {
    fn body(&self, value: &SecretString) -> Value {
        let mut body = json!({ "value": value.expose_secret(), "upstreams": self.upstreams });
        if let Some(id) = self.project {
            body["project_id"] = id.to_string().into();
        }
        if let Some(variable) = &self.expose {
            body["expose"] = if variable.is_empty() { &self.name } else { variable }.as_str().into();
        }
        if let Some(path) = &self.expose_file {
            body["expose_file"] = path.as_str().into();
        }
        body
    }
}

pub async fn run(secret: &Secret, output: &Output) -> Result {
    let client = Client::find(&secret.connect)?;
    let whose = |project: &Option<ProjectId>| -> Vec<(&str, String)> {
        project.iter().map(|id| ("project_id", id.to_string())).collect()
    };
    match &secret.command {
        Command::Set(set) => make(set, &client, output).await,
        Command::Ls { project } => list(&client.list("/secrets", &whose(project), None).await?.0, output),
        Command::Rm { name, project } => {
            let gone = client.delete(&path(name)?, &whose(project)).await?;
            if output.json { output.object(&gone) } else { output.line(&format!("{name} is removed")) }
        }
        Command::Rotate => {
            let done = client.post_long("/secrets/rotate", &json!({})).await?;
            rotated(&done, output)
        }
    }
}

/// What is no name would be another path.
fn path(name: &str) -> Result<String> {
    atoll_core::secret::name("NAME", name).map_err(|error| Failure::input(error.to_string()))?;
    Ok(format!("/secrets/{name}"))
}

async fn make(set: &Set, client: &Client, output: &Output) -> Result {
    let path = path(&set.name)?;
    let value = value_of(&set.name).await?;
    let made = client.put(&path, &set.body(&value)).await?;
    if output.json {
        return output.object(&made);
    }
    output.line(&match exposed(&made) {
        Some(what) => format!("{} is set, and exposed: sandboxes that name it hold it as {what}", set.name),
        None => format!("{} is set", set.name),
    })
}

/// What it is inside a sandbox.
fn exposed(row: &Value) -> Option<String> {
    let file = row["expose_file"].as_str().map(|path| format!("~/{path}"));
    file.or_else(|| row["expose"].as_str().map(str::to_owned)).map(|what| text::inline(&what))
}

async fn value_of(name: &str) -> Result<SecretString> {
    let text = if std::io::stdin().is_terminal() {
        hidden::prompt(&format!("Value of {name} (not shown): ")).await
    } else {
        tokio::task::spawn_blocking(stdin).await.map_err(std::io::Error::other).flatten().map(SecretString::from)
    };
    // Not what was read: it may be part of the value.
    let text = text.map_err(|error| {
        Failure::input(format!("can't read the value: {}", error.kind())).next("It is text in UTF-8.")
    })?;
    let value = without_line_end(text.expose_secret());
    atoll_core::secret::value(value, None).map_err(|error| Failure::input(error.to_string()))?;
    Ok(SecretString::from(value))
}

/// `echo` and editors end with a line end that nobody means; a key file's inner ones stay.
fn without_line_end(text: &str) -> &str {
    let text = text.strip_suffix('\n').unwrap_or(text);
    text.strip_suffix('\r').unwrap_or(text)
}

fn list(rows: &[Value], output: &Output) -> Result {
    if output.json {
        return rows.iter().try_for_each(|row| output.object(row));
    }
    let now = time::now();
    let cells = rows.iter().map(|row| {
        let said = |field: &str| row[field].as_str().unwrap_or("-");
        let hosts: Vec<&str> = row["upstreams"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let hosts = if hosts.is_empty() { "-".to_owned() } else { hosts.join(" ") };
        let exposed = exposed(row).map_or_else(|| "no".to_owned(), |what| format!("as {what}"));
        let age = time::age(said("updated_at"), now);
        let whose = row["project_id"].as_str().unwrap_or("deployment");
        [said("name"), whose, &exposed, &hosts, &age].map(table::cell).into()
    });
    table::print(output, &["NAME", "WHOSE", "EXPOSED", "UPSTREAMS", "SET"], &cells.collect::<Vec<Vec<_>>>())
}

fn rotated(done: &Value, output: &Output) -> Result {
    let left: Vec<&str> =
        done["left"].as_array().into_iter().flatten().filter_map(|row| row["name"].as_str()).collect();
    if output.json {
        output.object(done)?;
    } else {
        let key = text::inline(done["key_id"].as_str().unwrap_or_default());
        output.line(&format!("{} secrets are sealed with the key {key}", done["sealed"]))?;
    }
    if left.is_empty() {
        return Ok(());
    }
    let names = text::inline(&left.join(", "));
    Err(Failure::work("secrets_left", format!("these could not be opened and stay as they are: {names}"))
        .next("Put their key back into `secret-keys` in the data directory, or set them again."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_end_is_left_out() {
        for (given, kept) in [("x\n", "x"), ("x\r\n", "x"), ("x\n\n", "x\n"), ("a\nb\n", "a\nb"), ("\n", ""), ("", "")]
        {
            assert_eq!(without_line_end(given), kept);
        }
    }

    #[test]
    fn a_name_stays_in_its_path() {
        assert_eq!(path("API_KEY").ok().as_deref(), Some("/secrets/API_KEY"));
        for bad in ["", "rotate", "../tokens", "A/B", "A?x=1", "a"] {
            assert!(path(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn exposing_takes_the_name_unless_another_is_given() {
        let set = |expose: Option<&str>| Set {
            name: "KEY".into(),
            project: None,
            upstreams: vec![],
            expose: expose.map(str::to_owned),
            expose_file: None,
        };
        let value = SecretString::from("v");
        assert_eq!(set(None).body(&value)["expose"], Value::Null);
        assert_eq!(set(Some("")).body(&value)["expose"], "KEY");
        assert_eq!(set(Some("OTHER")).body(&value)["expose"], "OTHER");
        let file = Set { expose_file: Some("a/b".into()), ..set(None) }.body(&value);
        assert_eq!((&file["expose"], file["expose_file"].as_str()), (&Value::Null, Some("a/b")));
        assert_eq!(exposed(&file).as_deref(), Some("~/a/b"));
    }
}
