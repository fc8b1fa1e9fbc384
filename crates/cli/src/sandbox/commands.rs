//! `atoll sandbox exec --list` and `--end`: the commands that run in a sandbox, whoever started them.

use crate::client::Client;
use crate::failure::Result;
use crate::output::Output;
use crate::render::{table, text, time};
use atoll_core::id::SandboxId;
use atoll_core::time::Timestamp;
use serde_json::Value;

pub async fn list(id: SandboxId, client: &Client, output: &Output) -> Result {
    let answer = client.get(&format!("/sandboxes/{id}/exec"), &[]).await?;
    let items = answer["items"].as_array().cloned().unwrap_or_default();
    if output.json {
        return items.iter().try_for_each(|row| output.object(row));
    }
    let now = time::now();
    let rows: Vec<_> = items.iter().map(|row| cells(row, now)).collect();
    table::print(output, &["EXEC", "AGE", "STATE", "READERS", "COMMAND"], &rows)
}

pub async fn end(id: SandboxId, command: &str, client: &Client, output: &Output) -> Result {
    let said = client.delete(&format!("/sandboxes/{id}/exec/{command}"), &[]).await?;
    if output.json { output.object(&said) } else { output.line(&format!("{} is ended", text::inline(command))) }
}

fn cells(row: &Value, now: Timestamp) -> Vec<table::Cell> {
    let said = |field: &str| row[field].as_str().unwrap_or_default();
    let argv = row["argv"].as_array().into_iter().flatten().filter_map(Value::as_str);
    vec![
        table::cell(said("id")),
        table::cell(time::age(said("started_at"), now)),
        table::cell(state(&row["exit"])),
        table::cell(row["readers"].to_string()),
        table::cell(argv.collect::<Vec<_>>().join(" ")),
    ]
}

fn state(exit: &Value) -> String {
    match (exit["kind"].as_str(), exit["code"].as_i64(), exit["signal"].as_i64()) {
        (None, ..) => "runs".to_owned(),
        (Some("exited"), Some(code), _) => format!("exited {code}"),
        (Some("signalled"), _, Some(signal)) => format!("signal {signal}"),
        (Some(other), ..) => other.replace('_', " "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_command_s_state_is_said_in_two_words() {
        assert_eq!(state(&Value::Null), "runs");
        assert_eq!(state(&json!({"kind": "exited", "code": 3})), "exited 3");
        assert_eq!(state(&json!({"kind": "signalled", "signal": 9})), "signal 9");
        assert_eq!(state(&json!({"kind": "out_of_memory"})), "out of memory");
    }
}
