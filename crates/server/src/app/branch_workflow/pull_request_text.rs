//! Title and body of a pull request, from stored data. Both are bounded, and text from agents is quoted so that it mentions
//! no people and closes no issues.

use crate::problem::{Problem, Result};
use crate::state::App;
use atoll_core::continuous::check::CheckResult;
use atoll_core::id::{SandboxId, SessionId};
use atoll_core::ticket::TicketKey;
use atoll_store::branch_workflows::BranchWorkflowRow;
use atoll_store::{continuous, sessions, tickets};

/// GitHub's limit is 256.
const MAX_TITLE_CHARS: usize = 200;
const MAX_LINE_CHARS: usize = 200;
const MAX_LISTED_CHECKS: usize = 30;
const MAX_LISTED_FILES: usize = 20;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PullRequestText {
    pub title: String,
    pub body: String,
}

/// What a pull request says.
struct PullRequestContent<'a> {
    ticket: Option<TicketKey>,
    title: &'a str,
    commits: &'a [String],
    checks: &'a [CheckResult],
    flagged: &'a [String],
    session: SessionId,
    sandbox: Option<SandboxId>,
}

/// Builds the text from the ticket, the commits, the checks of continuous mode and the flagged files.
pub async fn load_text(app: &App, row: &BranchWorkflowRow, commits: Vec<String>) -> Result<PullRequestText> {
    let id = row.session_id;
    let (session, ticket, checks) = app
        .read(async move |tx| {
            let session = sessions::find_session(tx, id).await?.ok_or_else(|| Problem::not_found("session"))?;
            let ticket = tickets::find_session_ticket(tx, id).await?;
            let checks = match session.last_sandbox_id {
                Some(sandbox) => continuous::find_continuous_record(tx, sandbox).await?.map(|record| record.checks),
                None => None,
            };
            Ok((session, ticket, checks.unwrap_or_default()))
        })
        .await?;
    let title = ticket.as_ref().map_or(&session.title, |ticket| &ticket.title);
    let text = write_text(&PullRequestContent {
        ticket: ticket.as_ref().map(|ticket| ticket.key.clone()),
        title,
        commits: &commits,
        checks: &checks,
        flagged: &row.record.flagged,
        session: session.id,
        sandbox: session.last_sandbox_id,
    });
    let redactor = app.secrets.redactor(row.project_id);
    let redact = |text: String| redactor.redact(&text).unwrap_or(text);
    Ok(PullRequestText { title: redact(text.title), body: redact(text.body) })
}

fn write_text(content: &PullRequestContent<'_>) -> PullRequestText {
    let title = match &content.ticket {
        Some(key) => format!("[{key}] {}", content.title),
        None => content.title.to_owned(),
    };
    let mut body = String::from("## Work\n\n");
    for commit in content.commits {
        body.push_str(&format!("- {}\n", quote(commit)));
    }
    body.push_str("\n## Checks\n\n");
    if content.checks.is_empty() {
        body.push_str("Atoll ran no checks.\n");
    }
    for check in content.checks.iter().take(MAX_LISTED_CHECKS) {
        body.push_str(&format!("- {}: {}\n", quote(&check.name), check.verdict));
    }
    if !content.flagged.is_empty() {
        body.push_str("\n## Please review\n\nThese files decide what machines run or where more code comes from:\n\n");
        for path in content.flagged.iter().take(MAX_LISTED_FILES) {
            body.push_str(&format!("- {}\n", quote(path)));
        }
    }
    body.push_str("\n## Links\n\n");
    if let Some(key) = &content.ticket {
        body.push_str(&format!("- ticket `{key}`\n"));
    }
    body.push_str(&format!("- session `{}`\n", content.session));
    if let Some(sandbox) = content.sandbox {
        body.push_str(&format!("- sandbox `{sandbox}`\n"));
    }
    PullRequestText { title: title.chars().take(MAX_TITLE_CHARS).collect(), body }
}

/// A line as code.
fn quote(text: &str) -> String {
    let line: String = text.chars().filter(|c| !c.is_control()).take(MAX_LINE_CHARS).collect();
    format!("`{}`", line.replace('`', "'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_name_the_work_and_quote_the_agents_words() {
        let session = SessionId::new();
        let content = PullRequestContent {
            ticket: Some(TicketKey::new("ATL", 7)),
            title: "Fix the login",
            commits: &["Fix it, closes #1 @ann `x`".to_owned()],
            checks: &[],
            flagged: &[".gitmodules".to_owned()],
            session,
            sandbox: None,
        };
        let text = write_text(&content);
        assert_eq!(text.title, "[ATL-7] Fix the login");
        let expected = format!(
            "## Work\n\n- `Fix it, closes #1 @ann 'x'`\n\n## Checks\n\nAtoll ran no checks.\n\n## Please review\n\nThese files \
             decide what machines run or where more code comes from:\n\n- `.gitmodules`\n\n## Links\n\n- ticket `ATL-7`\n- \
             session `{session}`\n"
        );
        assert_eq!(text.body, expected);
        let long = PullRequestContent { ticket: None, title: &"x".repeat(500), ..content };
        assert_eq!(write_text(&long).title.chars().count(), MAX_TITLE_CHARS);
    }
}
