//! `atoll approvals`, `approve` and `deny`: lists and decides approvals.

use crate::arguments::parse_pair;
use crate::connect::{Connect, ConnectedClient};
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::pages::{collect_all, page_query};
use crate::render::tool_input::ApprovalRequest;
use crate::render::{table, text, time};
use atoll_api::{AnswerApproval, Approval};
use atoll_core::approval::ApprovalDecision;
use atoll_core::id::SandboxId;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  atoll approvals\n  atoll approvals sbx_…")]
pub struct Approvals {
    #[command(flatten)]
    connect: Connect,
    /// List all approvals of this sandbox [default: the pending ones of all sandboxes]
    sandbox: Option<SandboxId>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  atoll approve apr_…\n  atoll approve apr_… --always\n  \
    atoll approve apr_… --answer \"Which one?=the second\"")]
pub struct Approve {
    #[command(flatten)]
    connect: Connect,
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
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  atoll deny apr_… --reason \"not on Fridays\"")]
pub struct Deny {
    #[command(flatten)]
    connect: Connect,
    /// Id of the approval, from `atoll approvals`
    approval: String,
    /// Sandbox of the approval [default: search all pending approvals]
    #[arg(long, value_name = "SANDBOX")]
    sandbox: Option<SandboxId>,
    /// Reason, shown to the agent
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

pub async fn list(approvals: &Approvals, output: &Output) -> Result {
    let client = ConnectedClient::find(&approvals.connect)?;
    let approvals = match approvals.sandbox {
        Some(id) => collect_all(async |cursor| client.list_approvals(id, &page_query(cursor)).await).await?,
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
        [&approval.approval_id, &sandbox, state, &age, tool, &request.describe()].map(table::cell).into()
    });
    let heads = ["ID", "SANDBOX", "STATE", "AGE", "TOOL", "REQUEST"];
    table::print_table(output, &heads, &rows.collect::<Vec<Vec<_>>>())
}

async fn pending_approvals(client: &ConnectedClient) -> Result<Vec<Approval>> {
    collect_all(async |cursor| client.list_open_approvals(&page_query(cursor)).await).await
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
    let pending = match sandbox {
        Some(id) => collect_all(async |cursor| client.list_approvals(id, &page_query(cursor)).await).await?,
        None => pending_approvals(&client).await?,
    };
    let found = find_approval(&pending, approval)?;
    // The server accepts the answer only for the input that this request shows.
    let sha256 = found.request.get("sha256").and_then(|hash| hash.as_str()).map(str::to_owned);
    let answer = AnswerApproval { sha256, ..answer.clone() };
    let answered = client.answer_approval(found.sandbox_id, approval, &answer).await?;
    let request = request_of(found);
    let shown = [request.tool.as_deref().unwrap_or_default(), &request.describe()].join(" ");
    let line = text::escape_line(shown.trim());
    output.print_result(&answered, || format!("{} is {done}: {line}", text::escape_line(approval)))
}

/// The approval with this id.
fn find_approval<'a>(pending: &'a [Approval], approval: &str) -> Result<&'a Approval> {
    let matching: Vec<_> = pending.iter().filter(|pending| pending.approval_id == approval).collect();
    let name = text::escape_line(approval);
    match matching.as_slice() {
        [one] => Ok(*one),
        [] => Err(Failure::refused("not_found", format!("there is no pending approval `{name}`"))
            .with_hint("`atoll approvals` lists them.")),
        several => {
            let sandboxes: Vec<_> = several.iter().map(|pending| pending.sandbox_id.to_string()).collect();
            let detail = format!("several sandboxes have an approval `{name}`: {}", sandboxes.join(", "));
            Err(Failure::refused("ambiguous", detail).with_hint("Choose one with --sandbox SANDBOX."))
        }
    }
}
