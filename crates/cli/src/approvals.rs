//! `atoll approvals`, `approve` and `deny`: lists and decides approvals.

use crate::arguments::parse_pair;
use crate::connect::{Connect, ConnectedClient};
use crate::event_log::whole_text;
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::pages::{PAGE_SIZE, collect_all, page_query};
use crate::references::SandboxRef;
use crate::render::approval::ApprovalRequest;
use crate::render::{table, text, time};
use atoll_api::{AnswerApproval, Approval, ApprovalListQuery};
use atoll_core::approval::{ApprovalDecision, ApprovalState};
use atoll_core::reference::ReferenceTarget;

const APPROVAL_PREFIX: &str = "apr_";

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
    /// Id of the approval from `atoll approvals`, or its beginning or end
    approval: String,
    /// Sandbox of the approval [default: search all pending approvals]
    #[arg(long, value_name = "SANDBOX")]
    sandbox: Option<SandboxRef>,
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
    /// Id of the approval from `atoll approvals`, or its beginning or end
    approval: String,
    /// Sandbox of the approval [default: search all pending approvals]
    #[arg(long, value_name = "SANDBOX")]
    sandbox: Option<SandboxRef>,
    /// Reason, shown to the agent
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    #[command(flatten)]
    connect: Connect,
}

pub async fn list(approvals: &Approvals, output: &Output) -> Result {
    let client = ConnectedClient::find(&approvals.connect)?;
    let approvals = match approvals.target.as_deref() {
        Some(target) if target.starts_with(APPROVAL_PREFIX) => return show_approval(&client, target, output).await,
        Some(target) => {
            let sandbox: SandboxRef = target.parse().map_err(Failure::input)?;
            let id = sandbox.resolve(&client).await?;
            collect_all(async |cursor| client.list_approvals(id, &page_query(cursor)).await).await?
        }
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
    send_answer(&approve.connect, (&approve.approval, approve.sandbox.as_ref()), &answer, "approved", output).await
}

pub async fn deny(deny: &Deny, output: &Output) -> Result {
    let answer =
        AnswerApproval { decision: ApprovalDecision::Deny, reason: deny.reason.clone(), sha256: None, answers: None };
    send_answer(&deny.connect, (&deny.approval, deny.sandbox.as_ref()), &answer, "denied", output).await
}

async fn send_answer(
    connect: &Connect,
    (approval, sandbox): (&str, Option<&SandboxRef>),
    answer: &AnswerApproval,
    done: &str,
    output: &Output,
) -> Result {
    let client = ConnectedClient::find(connect)?;
    let found = match sandbox {
        Some(sandbox) => {
            let id = sandbox.resolve(&client).await?;
            collect_all(async |cursor| client.list_approvals(id, &page_query(cursor)).await).await?
        }
        None => match list_by_id(&client, approval).await? {
            items if items.is_empty() => pending_approvals(&client).await?,
            items => items,
        },
    };
    let found = choose_approval(&found, approval)?;
    // The server accepts the answer only for the input that this request shows.
    let sha256 = found.request.get("sha256").and_then(|hash| hash.as_str()).map(str::to_owned);
    let answer = AnswerApproval { sha256, ..answer.clone() };
    let answered = client.answer_approval(found.sandbox_id, &found.approval_id, &answer).await?;
    let request = request_of(found);
    let shown = [request.tool.as_deref().unwrap_or_default(), &request.describe()].join(" ");
    let line = text::escape_line(shown.trim());
    output.print_result(&answered, || format!("{} is {done}: {line}", text::escape_line(&found.approval_id)))
}

/// Chooses the pending approval with this id, or the newest decided one: the server itself refuses an answer to that.
/// Otherwise the pending one whose id begins or ends with the text.
fn choose_approval<'a>(listed: &'a [Approval], approval: &str) -> Result<&'a Approval> {
    let name = text::escape_line(approval);
    let is_open = |listed: &&Approval| listed.state == ApprovalState::Open;
    let found: Vec<_> = listed.iter().filter(|listed| listed.approval_id == approval).collect();
    let mut pending: Vec<_> = found.iter().copied().filter(is_open).collect();
    if found.is_empty() {
        let matches = |listed: &&Approval| {
            ReferenceTarget { id: &listed.approval_id, name: None, branch: None }.match_reference(approval).is_some()
        };
        pending = listed.iter().filter(is_open).filter(matches).collect();
    }
    match (pending.as_slice(), found.as_slice()) {
        ([one], _) => Ok(one),
        ([], [newest, ..]) => Ok(newest),
        ([], []) => {
            let detail = format!("there is no approval `{name}` in the projects that you can see");
            Err(Failure::refused("not_found", detail).with_hint("`atoll approvals` lists the pending ones."))
        }
        (several, _) => {
            let lines = several.iter().map(|pending| {
                let request = request_of(pending);
                let tool = request.tool.as_deref().unwrap_or_default();
                let line = format!("{}  {}  {tool} {}", pending.approval_id, pending.sandbox_id, request.describe());
                format!("\n  {}", text::escape_clipped(&line, 200))
            });
            let lines: String = lines.collect();
            let detail = format!("`{name}` matches {} pending approvals", several.len());
            Err(Failure::setup("ambiguous", detail)
                .with_hint(format!("Use the whole id, and choose the sandbox with --sandbox:{lines}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::id::SandboxId;
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
        let named = |id: &str| Approval { approval_id: id.to_owned(), ..approval(first, "open") };
        let both = [named("toolu_01abcd"), named("toolu_01abef")];
        assert_eq!(choose_approval(&both, "abef").unwrap().approval_id, "toolu_01abef");
        assert!(choose_approval(&both, "toolu_01").unwrap_err().has_code("ambiguous"));
        assert!(chosen(&[]).unwrap_err().has_code("not_found"));
        assert!(chosen(&[approval(first, "open"), approval(second, "open")]).unwrap_err().has_code("ambiguous"));
    }
}
