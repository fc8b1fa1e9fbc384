//! `atoll sandbox shell`: a terminal in a sandbox, shown in this one.

mod keyboard;
mod modes;
mod session;

use super::exec::{ended, nothing_but_the_code};
use crate::client::Client;
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::render::{table, time};
use atoll_core::id::SandboxId;
use serde_json::{Value, json};
use session::Session;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll sandbox shell sbx_…
  atoll sandbox shell sbx_… -- vim src/main.rs
  atoll sandbox shell sbx_… --list
  atoll sandbox shell sbx_… --exec 01989…

Ctrl-] leaves the terminal, and it goes on: --exec comes back to it, and several can look at one at once. One that
nobody looks at ends after the server's `terminal.linger`. The exit code is the shell's own, as with `exec`.
What the sandbox prints goes to your terminal as it is, as with ssh.")]
pub struct Shell {
    id: SandboxId,
    /// What to run instead of a shell
    #[arg(last = true, value_name = "ARGV", conflicts_with_all = ["exec", "list"])]
    argv: Vec<String>,
    /// Go to a terminal that is there already
    #[arg(long, value_name = "EID", conflicts_with = "list")]
    exec: Option<String>,
    /// Where it begins [default: the workspace]
    #[arg(long, value_name = "DIR", conflicts_with_all = ["exec", "list"])]
    cwd: Option<String>,
    /// List the terminals that are there
    #[arg(long)]
    list: bool,
}

pub async fn run(shell: &Shell, client: &Client, output: &Output) -> Result {
    if shell.list {
        return list(shell.id, client, output).await;
    }
    if shell.argv.is_empty() {
        let more = shell.cwd.iter().map(|cwd| ("cwd", cwd.clone())).collect();
        let session = Session::new(client, shell.id, shell.exec.clone(), more);
        let session = if shell.exec.is_some() { session.old() } else { session };
        return attend(session, output).await;
    }
    let mut body = json!({ "argv": shell.argv });
    if let Some(cwd) = &shell.cwd {
        body["cwd"] = json!(cwd);
    }
    on_terminal(shell.id, body, client, output).await
}

/// Runs a command as `exec` takes it, on a terminal of this one's size.
pub async fn on_terminal(id: SandboxId, mut body: Value, client: &Client, output: &Output) -> Result {
    let (cols, rows) = keyboard::size();
    body["terminal"] = json!({ "cols": cols, "rows": rows });
    let running = client.exec(id, &body).await?;
    let exec = running.id().ok_or_else(|| client.not_atoll("a command without an id"))?;
    let session = Session::new(client, id, Some(exec), Vec::new());
    // As long as somebody reads that answer, the command is not left alone.
    let attended = attend(session, output).await;
    drop(running);
    attended
}

async fn attend(session: Session<'_>, output: &Output) -> Result {
    if output.json {
        return Err(Failure::input("a terminal can't be shown as JSON").next("Leave out --json."));
    }
    let Some(exit) = session.run().await? else { return Ok(()) };
    let (code, said) = ended(Some(&exit));
    if let Some(said) = said {
        output.note(&format!("atoll: {said}"));
    }
    nothing_but_the_code(code)
}

async fn list(id: SandboxId, client: &Client, output: &Output) -> Result {
    let answer = client.get(&format!("/sandboxes/{id}/exec"), &[]).await?;
    let items = answer["items"].as_array().cloned().unwrap_or_default();
    let open = |row: &&Value| row["terminal"].is_object() && row["exit"].is_null();
    let rows: Vec<&Value> = items.iter().filter(open).collect();
    if output.json {
        return rows.into_iter().try_for_each(|row| output.object(row));
    }
    let now = time::now();
    let cells: Vec<_> = rows.into_iter().map(|row| cells(row, now)).collect();
    table::print(output, &["EXEC", "AGE", "SIZE", "READERS", "COMMAND"], &cells)
}

fn cells(row: &Value, now: atoll_core::time::Timestamp) -> Vec<table::Cell> {
    let said = |field: &str| row[field].as_str().unwrap_or_default();
    let argv = row["argv"].as_array().into_iter().flatten().filter_map(Value::as_str);
    vec![
        table::cell(said("id")),
        table::cell(time::age(said("started_at"), now)),
        table::cell(format!("{}x{}", row["terminal"]["cols"], row["terminal"]["rows"])),
        table::cell(row["readers"].to_string()),
        table::cell(argv.collect::<Vec<_>>().join(" ")),
    ]
}
