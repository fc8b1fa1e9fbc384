//! `atoll approvals`, `approve` and `deny`: lists and decides approvals.

use crate::arguments::parse_pair;
use crate::connect::{Connect, ConnectedClient};
use crate::event_log::whole_text;
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::pages::{PAGE_SIZE, collect_all, page_query};
use crate::render::approval::ApprovalRequest;
use crate::render::{table, text, time};
use atoll_api::{AnswerApproval, Approval, ApprovalListQuery};
use atoll_core::approval::{ApprovalDecision, ApprovalState};
use atoll_core::id::SandboxId;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  atoll approvals\n  atoll approvals sbx_…\n  atoll approvals apr_…\n\n\
    An approval shows its whole input and, for an edit, the diff.")]
pub struct Approvals {
    /// Sandbox to list all approvals of, or approval to show [default: list the pending ones]
    #[arg(value_name = "ID")]
    target: Option<String>,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  atoll approve apr_…\n  atoll approve apr_… --always\n  \
    atoll approve apr_… --answer \"Which one?=the second\"")]
pub struct Approve {
    /// Id of the approval, from `atoll approvals`
    approval: String,
    /// Sandbox of the approval [default: search all pending approvals]
    #[arg(long, value_name = "SANDBOX")]
    sandbox: Option<SandboxId>,
    /// Approve this tool for the rest of the sandbox's life
    #[arg(long)]
    always: bool,
    /// Answer a question (repeatable)
    #[arg(long = "answer", value_name = "QUESTION=ANSWER", value_parser = parse_pair)]
    answers: Vec<(String, String)>,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  atoll deny apr_… --reason \"not on Fridays\"")]
pub struct Deny {
    /// Id of the approval, from `atoll approvals`
    approval: String,
    /// Sandbox of the approval [default: search all pending approvals]
    #[arg(long, value_name = "SANDBOX")]
    sandbox: Option<SandboxId>,
    /// Reason, shown to the agent
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    #[command(flatten)]
    connect: Connect,
}

pub async fn list(approvals: &Approvals, output: &Output) -> Result {
    let client = ConnectedClient::find(&approvals.connect)?;
    let target = approvals.target.as_deref().map(|target| target.parse::<SandboxId>().map_err(|_| target));
    let approvals = match target {
        Some(Ok(id)) => collect_all(async |cursor| client.list_approvals(id, &page_query(cursor)).await).await?,
        Some(Err(approval)) => return show_approval(&client, approval, output).await,
        None => pending_approvals(&client).await?,
    };
    if output.json {
        return output.print_responses(&approvals);
    }
    if approvals.is_empty() {
        return output.print_line("no pending approvals");
    }
    let now = time::now();
    let rows = approvals.iter().map(|approval| {
        let state = approval.decision.map_or_else(|| approval.state.as_str(), |decision| decision.as_str());
        let request = request_of(approval);
        let (sandbox, age) = (approval.sandbox_id.to_string(), time::format_age(approval.requested_at, now));
        let tool = request.tool.as_deref().unwrap_or("-");
        [&approval.approval_id, &sandbox, state, &age, tool, &request.describe().replace('\n', "; ")]
            .map(table::cell)
            .into()
    });
    let heads = ["ID", "SANDBOX", "STATE", "AGE", "TOOL", "REQUEST"];
    table::print_table(output, &heads, &rows.collect::<Vec<Vec<_>>>())
}

/// Prints one approval with its whole input.
async fn show_approval(client: &ConnectedClient, approval: &str, output: &Output) -> Result {
    let listed = list_by_id(client, approval).await?;
    let mut found = choose_approval(&listed, approval)?.clone();
    fetch_whole_input(client, &mut found).await?;
    if output.json {
        return output.print_response(&found);
    }
    let request = request_of(&found);
    let state = found.decision.map_or_else(|| found.state.as_str(), |decision| decision.as_str());
    let tool = request.tool.as_deref().unwrap_or("a question");
    let head = format!("{} in {} ({state}): {tool}", found.approval_id, found.sandbox_id);
    output.print_line(&text::escape_line(&head))?;
    let diff = found.request.get("diff").and_then(|diff| diff.as_str());
    for part in [request.describe_whole().as_str(), diff.unwrap_or_default()] {
        for line in text::escape_block(part.trim_end()).lines() {
            output.print_line(&format!("    {line}"))?;
        }
    }
    Ok(())
}

/// Replaces a truncated input by the whole one, which is a blob.
async fn fetch_whole_input(client: &ConnectedClient, approval: &mut Approval) -> Result {
    let is_truncated = approval.request.get("input_truncated").is_some_and(|mark| mark == true);
    let Some(hash) = approval.request.get("sha256").and_then(|hash| hash.as_str()).filter(|_| is_truncated) else {
        return Ok(());
    };
    let whole = whole_text::download_text(client, approval.sandbox_id, hash).await?;
    let whole = whole.ok_or_else(|| Failure::refused("not_found", "the server does not have the whole input"))?;
    let input = serde_json::from_str(&whole).unwrap_or_else(|_| whole.into());
    approval.request.insert("input".to_owned(), input);
    approval.request.insert("input_truncated".to_owned(), false.into());
    Ok(())
}

async fn list_by_id(client: &ConnectedClient, approval: &str) -> Result<Vec<Approval>> {
    let query = ApprovalListQuery { limit: Some(PAGE_SIZE), cursor: None, id: Some(approval.to_owned()) };
    Ok(client.list_open_approvals(&query).await?.items)
}

async fn pending_approvals(client: &ConnectedClient) -> Result<Vec<Approval>> {
    let query = |cursor| ApprovalListQuery { limit: Some(PAGE_SIZE), cursor, id: None };
    collect_all(async |cursor| client.list_open_approvals(&query(cursor)).await).await
}

fn request_of(approval: &Approval) -> ApprovalRequest {
    serde_json::from_value(approval.request.clone().into()).unwrap_or_default()
}

pub async fn approve(approve: &Approve, output: &Output) -> Result {
    let decision = if approve.always { ApprovalDecision::AllowAlways } else { ApprovalDecision::Allow };
    let answers = approve.answers.iter().map(|(question, answer)| (question.clone(), answer.as_str().into()));
    let answers = (!approve.answers.is_empty()).then(|| answers.collect());
    let answer = AnswerApproval { decision, reason: None, sha256: None, answers };
    send_answer(&approve.connect, (&approve.approval, approve.sandbox), &answer, "approved", output).await
}

pub async fn deny(deny: &Deny, output: &Output) -> Result {
    let answer =
        AnswerApproval { decision: ApprovalDecision::Deny, reason: deny.reason.clone(), sha256: None, answers: None };
    send_answer(&deny.connect, (&deny.approval, deny.sandbox), &answer, "denied", output).await
}

async fn send_answer(
    connect: &Connect,
    (approval, sandbox): (&str, Option<SandboxId>),
    answer: &AnswerApproval,
    done: &str,
    output: &Output,
) -> Result {
    let client = ConnectedClient::find(connect)?;
    let found = match sandbox {
        Some(id) => collect_all(async |cursor| client.list_approvals(id, &page_query(cursor)).await).await?,
        None => list_by_id(&client, approval).await?,
    };
    let found = choose_approval(&found, approval)?;
    // The server accepts the answer only for the input that this request shows.
    let sha256 = found.request.get("sha256").and_then(|hash| hash.as_str()).map(str::to_owned);
    let answer = AnswerApproval { sha256, ..answer.clone() };
    let answered = client.answer_approval(found.sandbox_id, approval, &answer).await?;
    let request = request_of(found);
    let shown = [request.tool.as_deref().unwrap_or_default(), &request.describe()].join(" ");
    let line = text::escape_line(shown.trim());
    output.print_result(&answered, || format!("{} is {done}: {line}", text::escape_line(approval)))
}

/// Chooses the pending approval with this id, or the newest decided one: the server itself refuses an answer to that.
fn choose_approval<'a>(listed: &'a [Approval], approval: &str) -> Result<&'a Approval> {
    let name = text::escape_line(approval);
    let found: Vec<_> = listed.iter().filter(|listed| listed.approval_id == approval).collect();
    let pending: Vec<_> = found.iter().filter(|found| found.state == ApprovalState::Open).collect();
    match (pending.as_slice(), found.as_slice()) {
        ([one], _) => Ok(one),
        ([], [newest, ..]) => Ok(newest),
        ([], []) => {
            let detail = format!("there is no approval `{name}` in the projects that you can see");
            Err(Failure::refused("not_found", detail).with_hint("`atoll approvals` lists the pending ones."))
        }
        (several, _) => {
            let sandboxes: Vec<_> = several.iter().map(|pending| pending.sandbox_id.to_string()).collect();
            let detail = format!("several sandboxes wait for an approval `{name}`: {}", sandboxes.join(", "));
            Err(Failure::refused("ambiguous", detail).with_hint("Choose one with --sandbox SANDBOX."))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn chooses_the_approval_of_the_sandbox_that_waits() {
        let (first, second) = (SandboxId::new(), SandboxId::new());
        let approval = |sandbox: SandboxId, state: &str| -> Approval {
            let value = json!({"sandbox_id": sandbox, "approval_id": "a", "state": state, "request": {},
                               "requested_at": "2026-01-31T12:00:00.000000Z"});
            serde_json::from_value(value).unwrap()
        };
        let chosen = |found: &[Approval]| choose_approval(found, "a").map(|chosen| chosen.sandbox_id);
        assert_eq!(chosen(&[approval(second, "resolved"), approval(first, "open")]).unwrap(), first);
        assert_eq!(chosen(&[approval(second, "answered"), approval(first, "resolved")]).unwrap(), second);
        assert!(chosen(&[]).unwrap_err().has_code("not_found"));
        assert!(chosen(&[approval(first, "open"), approval(second, "open")]).unwrap_err().has_code("ambiguous"));
    }
}
