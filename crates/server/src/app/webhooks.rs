//! Webhooks of forges: verified, processed once, and stored as events of the session that works on the branch.

use super::inbox::{self, MessageDraft};
use super::messages::queue_for_session;
use super::sessions::lock_session;
use super::{Work, branch_workflow, lifecycle, ticket_work};
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_api::events::{
    EventData, GitBranchDeleted, GitBranchMoved, GitCheckFailed, GitPullRequestEnded, GitReviewed,
};
use atoll_api::{WebhookReceipt, WebhookResult};
use atoll_core::bounds;
use atoll_core::event::EventSource;
use atoll_core::id::SessionId;
use atoll_core::message::{Delivery, MessageType};
use atoll_core::pull_request::{PullRequestLink, PullRequestState};
use atoll_core::session::SessionState;
use atoll_core::session_key::branch_key;
use atoll_core::ticket::TicketStep;
use atoll_forges::github::webhook::{BranchChange, Webhook, read_webhook};
use atoll_forges::webhook_signature::is_signed;
use atoll_store::{sandboxes, session_keys, webhooks};

/// GitHub's are UUIDs.
const MAX_DELIVERY_CHARS: usize = 100;
const FORGE_SENDER: &str = "forge:github";

/// A webhook before its signature is checked.
pub struct ReceivedWebhook {
    pub event: String,
    pub delivery: String,
    pub signature: String,
    pub body: Vec<u8>,
}

pub async fn receive_webhook(app: &App, received: ReceivedWebhook) -> Result<WebhookReceipt> {
    let ReceivedWebhook { event, delivery, signature, body } = received;
    // Without a secret, there is no such route.
    let secret = app.config.github.webhook_secret.as_ref().ok_or_else(|| Problem::not_found("path"))?;
    if !is_signed(secret, &body, &signature) {
        let detail = "the signature does not match the body and github.webhook_secret";
        return Err(Problem::new(Code::Unauthorized, detail));
    }
    bounds::check_line("X-GitHub-Delivery", &delivery, MAX_DELIVERY_CHARS)?;
    let payload = serde_json::from_slice(&body).map_err(|_| Problem::invalid("the body is not JSON"))?;
    let Some(webhook) = read_webhook(&event, &payload) else { return Ok(receipt(WebhookResult::Ignored)) };
    app.write(async move |work| {
        if !webhooks::record_delivery(work.tx, &delivery, work.now).await? {
            return Ok(receipt(WebhookResult::Duplicate));
        }
        let key = branch_key(&webhook.repository, &webhook.branch);
        let result = match session_keys::find_session_by_key(work.tx, &key).await? {
            Some(session) => Box::pin(process_webhook(work, session, webhook)).await?,
            None => WebhookResult::Ignored,
        };
        Ok(receipt(result))
    })
    .await
}

const fn receipt(result: WebhookResult) -> WebhookReceipt {
    WebhookReceipt { result }
}

/// Stores a webhook as an event of its session, moves the ticket and informs the agent.
async fn process_webhook(work: &mut Work<'_>, id: SessionId, webhook: Webhook) -> Result<WebhookResult> {
    let session = lock_session(work, id).await?;
    let Some(mut sandbox) = inbox::find_log_sandbox(work, &session).await? else { return Ok(WebhookResult::Ignored) };
    let event = describe_change(&webhook).into_event(work.now).with_source(EventSource::Forge, None);
    work.log(&mut sandbox, vec![event]).await?;
    sandboxes::update_sandbox(work.tx, &mut sandbox).await?;
    match &webhook.change {
        BranchChange::PullRequestMerged { number, url, .. } => {
            record_end(work, id, (*number, url), PullRequestState::Merged).await?;
            ticket_work::move_ticket(work, id, TicketStep::Merge).await?;
        }
        BranchChange::PullRequestClosed { number, url } => {
            record_end(work, id, (*number, url), PullRequestState::Closed).await?;
        }
        BranchChange::Reviewed { .. }
        | BranchChange::ReviewComment { .. }
        | BranchChange::CheckFailed { .. }
        | BranchChange::Pushed { .. }
        | BranchChange::Deleted { .. } => {}
    }
    branch_workflow::wake_workflow(work, id).await?;
    let informs = sandbox.settings.git.is_some_and(|git| git.webhook_messages == Some(true));
    if let Some(content) = describe_message(&webhook).filter(|_| informs && session.state == SessionState::Open) {
        let draft = MessageDraft {
            content: lifecycle::truncate_text(&content, MAX_MESSAGE_CHARS),
            message_type: MessageType::UserMessage,
            delivery: Delivery::Steer,
            sender: Some(FORGE_SENDER.to_owned()),
        };
        queue_for_session(work, id, draft).await?;
    }
    Ok(WebhookResult::Processed)
}

/// A quarter of a message's bytes: a character has at most four.
const MAX_MESSAGE_CHARS: usize = bounds::MAX_MESSAGE_BYTES / 4;

async fn record_end(
    work: &mut Work<'_>,
    session: SessionId,
    (number, url): (u64, &str),
    state: PullRequestState,
) -> Result<()> {
    let link = PullRequestLink { number, url: url.to_owned(), state };
    ticket_work::record_pull_request(work, session, link).await
}

fn describe_change(webhook: &Webhook) -> EventData {
    let branch = webhook.branch.clone();
    match webhook.change.clone() {
        BranchChange::PullRequestMerged { number, url, commit } => {
            EventData::GitPrMerged(GitPullRequestEnded { number, url, branch, commit })
        }
        BranchChange::PullRequestClosed { number, url } => {
            EventData::GitPrClosed(GitPullRequestEnded { number, url, branch, commit: None })
        }
        BranchChange::Reviewed { number, url, reviewer, verdict, text } => {
            EventData::GitReviewed(GitReviewed { number, url, branch, reviewer, verdict, path: None, text })
        }
        BranchChange::ReviewComment { number, url, reviewer, path, text } => {
            let verdict = "commented".to_owned();
            EventData::GitReviewed(GitReviewed { number, url, branch, reviewer, verdict, path: Some(path), text })
        }
        BranchChange::CheckFailed { name, url, commit, conclusion, text } => {
            EventData::GitCheckFailed(GitCheckFailed { name, url, branch, commit, conclusion, text })
        }
        BranchChange::Pushed { commit, previous, pusher } => {
            EventData::GitBranchMoved(GitBranchMoved { branch, commit, previous, pusher })
        }
        BranchChange::Deleted { previous } => EventData::GitBranchDeleted(GitBranchDeleted { branch, previous }),
    }
}

/// The message for the agent; `None` if it has nothing to do.
fn describe_message(webhook: &Webhook) -> Option<String> {
    match &webhook.change {
        BranchChange::Reviewed { number, reviewer, verdict, text, .. } => {
            if verdict == "approved" || (text.trim().is_empty() && verdict != "changes_requested") {
                return None;
            }
            let does = if verdict == "changes_requested" { "requests changes in" } else { "commented on" };
            Some(format!("{reviewer} {does} pull request #{number} of your branch {}:\n\n{text}", webhook.branch))
        }
        BranchChange::ReviewComment { number, reviewer, path, text, .. } => {
            Some(format!("{reviewer} commented on {path} in pull request #{number} of your branch:\n\n{text}"))
        }
        BranchChange::CheckFailed { name, commit, conclusion, text, .. } => {
            let commit: String = commit.chars().take(8).collect();
            Some(format!("The check \"{name}\" of your commit {commit} ended with {conclusion}:\n\n{text}"))
        }
        BranchChange::PullRequestMerged { .. }
        | BranchChange::PullRequestClosed { .. }
        | BranchChange::Pushed { .. }
        | BranchChange::Deleted { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(change: BranchChange) -> Option<String> {
        describe_message(&Webhook { repository: "h/o/n".into(), branch: "b".into(), change })
    }

    #[test]
    fn the_agent_gets_only_what_it_can_act_on() {
        let review = |verdict: &str, text: &str| BranchChange::Reviewed {
            number: 3,
            url: "u".into(),
            reviewer: "ann".into(),
            verdict: verdict.into(),
            text: text.into(),
        };
        assert_eq!(message(review("approved", "nice")), None);
        assert_eq!(message(review("commented", " ")), None);
        let text = message(review("changes_requested", "no tests")).unwrap();
        assert_eq!(text, "ann requests changes in pull request #3 of your branch b:\n\nno tests");
        assert_eq!(message(BranchChange::Deleted { previous: "a".into() }), None);
    }
}
