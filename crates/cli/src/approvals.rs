//! `atoll approvals`, `approve`, `deny`: what agents wait for, and a person's word about it.

use crate::client::{Client, Connect};
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::render::{table, text, time};
use atoll_core::id::SandboxId;
use serde_json::{Map, Value, json};

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  atoll approvals\n  atoll approvals sbx_…")]
pub struct Approvals {
    #[command(flatten)]
    connect: Connect,
    /// Of this sandbox, also what has been decided [default: all that waits, everywhere]
    sandbox: Option<SandboxId>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  atoll approve apr_…\n  atoll approve apr_… --always\n  \
    atoll approve apr_… --answer \"Which one?=the second\"")]
pub struct Approve {
    #[command(flatten)]
    connect: Connect,
    /// As `atoll approvals` shows it
    approval: String,
    /// Where it is asked [default: looked for in all that waits]
    #[arg(long, value_name = "SANDBOX")]
    sandbox: Option<SandboxId>,
    /// Also the same tool from now on, in this sandbox
    #[arg(long)]
    always: bool,
    /// The answer to a question; several times for several
    #[arg(long = "answer", value_name = "QUESTION=ANSWER", value_parser = answer)]
    answers: Vec<(String, String)>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  atoll deny apr_… --reason \"not on Fridays\"")]
pub struct Deny {
    #[command(flatten)]
    connect: Connect,
    /// As `atoll approvals` shows it
    approval: String,
    /// Where it is asked [default: looked for in all that waits]
    #[arg(long, value_name = "SANDBOX")]
    sandbox: Option<SandboxId>,
    /// Said to the agent
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

fn answer(text: &str) -> std::result::Result<(String, String), String> {
    let (question, answer) = text.split_once('=').ok_or("write it as QUESTION=ANSWER")?;
    Ok((question.to_owned(), answer.to_owned()))
}

pub async fn list(approvals: &Approvals, output: &Output) -> Result {
    let client = Client::find(&approvals.connect)?;
    let path = match approvals.sandbox {
        Some(id) => format!("/sandboxes/{id}/approvals"),
        None => "/approvals".to_owned(),
    };
    let items = items(&client, &path).await?;
    if output.json {
        return items.iter().try_for_each(|item| output.object(item));
    }
    if items.is_empty() {
        return output.line("nothing waits for an answer");
    }
    let now = time::now();
    let cells = items.iter().map(|item| {
        let said = |field: &str| item[field].as_str().unwrap_or("-");
        let state = item["decision"].as_str().unwrap_or_else(|| said("state"));
        let age = item["requested_at"].as_str().map_or_else(|| "-".to_owned(), |at| time::age(at, now));
        let tool = item["request"]["tool"].as_str().unwrap_or("-");
        [said("approval_id"), said("sandbox_id"), state, &age, tool, &asked(&item["request"])].map(table::cell).into()
    });
    table::print(output, &["ID", "SANDBOX", "STATE", "AGE", "TOOL", "WHAT"], &cells.collect::<Vec<Vec<_>>>())
}

/// In one line: the command, the file, the question, or what else is asked.
pub fn asked(request: &Value) -> String {
    let input = &request["input"];
    let named = ["command", "file_path", "path", "url", "question"].iter().find_map(|name| input[*name].as_str());
    let words = named.or_else(|| input["questions"][0]["question"].as_str()).or_else(|| request["text"].as_str());
    words.map_or_else(|| input.to_string(), str::to_owned)
}

pub async fn approve(approve: &Approve, output: &Output) -> Result {
    let decision = if approve.always { "allow_always" } else { "allow" };
    let mut word = json!({ "decision": decision });
    if !approve.answers.is_empty() {
        let answers = approve.answers.iter().map(|(question, answer)| (question.clone(), answer.as_str().into()));
        word["answers"] = answers.collect::<Map<String, Value>>().into();
    }
    say(&approve.connect, (&approve.approval, approve.sandbox), &word, "allowed", output).await
}

pub async fn deny(deny: &Deny, output: &Output) -> Result {
    let word = json!({ "decision": "deny", "reason": deny.reason });
    say(&deny.connect, (&deny.approval, deny.sandbox), &word, "denied", output).await
}

async fn say(
    connect: &Connect,
    (approval, sandbox): (&str, Option<SandboxId>),
    word: &Value,
    done: &str,
    output: &Output,
) -> Result {
    let client = Client::find(connect)?;
    let sandbox = match sandbox {
        Some(sandbox) => sandbox.to_string(),
        None => find(&client, approval).await?,
    };
    let said = client.post(&format!("/sandboxes/{sandbox}/approvals/{approval}"), word).await?;
    if output.json { output.object(&said) } else { output.line(&format!("{} is {done}", text::inline(approval))) }
}

/// The sandbox whose agent waits for it.
async fn find(client: &Client, approval: &str) -> Result<String> {
    let waiting = items(client, "/approvals").await?;
    let fits = waiting.iter().filter(|item| item["approval_id"] == approval);
    let sandboxes: Vec<&str> = fits.filter_map(|item| item["sandbox_id"].as_str()).collect();
    let name = text::inline(approval);
    match sandboxes.as_slice() {
        [one] => Ok((*one).to_owned()),
        [] => {
            let detail = format!("nothing waits for an answer by the name `{name}`; see `atoll approvals`");
            Err(Failure::refused("not_found", detail))
        }
        several => {
            let detail =
                format!("agents in several sandboxes wait for `{name}`: {}", text::inline(&several.join(", ")));
            Err(Failure::refused("ambiguous", detail).next("Name the one that is meant with --sandbox SANDBOX."))
        }
    }
}

async fn items(client: &Client, path: &str) -> Result<Vec<Value>> {
    Ok(client.list(path, &[], None).await?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_stands_in_one_line() {
        assert_eq!(asked(&json!({"input": {"command": "rm -rf x", "description": "d"}})), "rm -rf x");
        assert_eq!(asked(&json!({"input": {"questions": [{"question": "Which?"}]}})), "Which?");
        assert_eq!(asked(&json!({"text": "may I?"})), "may I?");
        assert_eq!(asked(&json!({"input": {"a": 1}})), r#"{"a":1}"#);
        assert_eq!(answer("Which?=that=this"), Ok(("Which?".to_owned(), "that=this".to_owned())));
        assert!(answer("that").is_err());
    }
}
