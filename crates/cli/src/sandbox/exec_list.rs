//! `atoll sandbox exec --list` and `--kill`, and `atoll sandbox shell --list`.

use crate::connect::ConnectedClient;
use crate::failure::Result;
use crate::output::Output;
use crate::render::{table, text, time};
use atoll_api::Exec;
use atoll_core::id::SandboxId;
use atoll_core::provider::CommandExit;
use atoll_core::time::Timestamp;

pub async fn print_execs(id: SandboxId, client: &ConnectedClient, output: &Output) -> Result {
    let execs = client.list_commands(id).await?.items;
    let now = time::now();
    let heads = ["EXEC", "AGE", "STATE", "READERS", "COMMAND"];
    table::print_list(output, &execs, &heads, |exec| table_row(exec, describe_state(exec.exit), now))
}

/// Lists only the running terminals, with their sizes.
pub async fn print_terminals(id: SandboxId, client: &ConnectedClient, output: &Output) -> Result {
    let mut execs = client.list_commands(id).await?.items;
    execs.retain(|exec| exec.terminal.is_some() && exec.exit.is_none());
    let now = time::now();
    let size = |exec: &Exec| exec.terminal.map(|size| format!("{}x{}", size.cols, size.rows)).unwrap_or_default();
    let heads = ["EXEC", "AGE", "SIZE", "READERS", "COMMAND"];
    table::print_list(output, &execs, &heads, |exec| table_row(exec, size(exec), now))
}

pub async fn kill_exec(id: SandboxId, exec: &str, client: &ConnectedClient, output: &Output) -> Result {
    let killed = client.kill_command(id, exec).await?;
    output.print_result(&killed, || format!("{} is killed", text::escape_line(exec)))
}

fn table_row(exec: &Exec, state: String, now: Timestamp) -> Vec<table::Cell> {
    let age = time::format_age(exec.started_at, now);
    [exec.id.clone(), age, state, exec.readers.to_string(), exec.argv.join(" ")].map(table::cell).into()
}

fn describe_state(exit: Option<CommandExit>) -> String {
    match exit {
        None => "running".to_owned(),
        Some(CommandExit::Exited { code }) => format!("exited {code}"),
        Some(CommandExit::Signalled { signal }) => format!("signal {signal}"),
        Some(CommandExit::OutOfMemory) => "out of memory".to_owned(),
        Some(CommandExit::TimedOut) => "timed out".to_owned(),
        Some(CommandExit::Unknown) => "unknown".to_owned(),
    }
}
