//! Work on a ticket: a sandbox starts with the ticket's task and branch, and its results move the ticket on.

use super::Work;
use super::tickets::lock_ticket;
use crate::auth::Caller;
use crate::auth::access::CanWork;
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_api::NewSandbox;
use atoll_core::id::{SessionId, TicketId};
use atoll_core::pull_request::PullRequestLink;
use atoll_core::sandbox::Repo;
use atoll_core::session::SessionState;
use atoll_core::session_key::{branch_key, identify_repository};
use atoll_core::ticket::{TicketStep, branch_prefix};
use atoll_store::sessions::SessionRow;
use atoll_store::tickets::{self, TicketRow};
use atoll_store::{session_keys, sessions};

/// Fills a request for a sandbox from its ticket: project, title, task and session. The request's own fields win.
pub async fn apply_ticket(app: &App, caller: Caller, id: TicketId, new: &mut NewSandbox) -> Result<TicketRow> {
    let access = CanWork::authorize(app, caller, id).await?;
    if new.project_id.is_some_and(|named| named != access.project) {
        return Err(Problem::invalid("project_id: the ticket belongs to another project"));
    }
    let (ticket, session) = app
        .read(async move |tx| {
            let ticket = tickets::find_ticket(tx, id).await?.ok_or_else(|| Problem::not_found("ticket"))?;
            let session = match ticket.session_id {
                Some(session) => sessions::find_session(tx, session).await?,
                None => None,
            };
            Ok((ticket, session))
        })
        .await?;
    require_unblocked(&ticket)?;
    let session = session.filter(|session| session.state == SessionState::Open).map(|session| session.id);
    if let (Some(named), Some(own)) = (new.session_id, session)
        && named != own
    {
        return Err(Problem::invalid(format!("session_id: the ticket {} belongs to the session {own}", ticket.key)));
    }
    new.project_id = Some(access.project);
    new.session_id = new.session_id.or(session);
    new.title = new.title.take().or_else(|| Some(ticket.title.clone()));
    new.prompt = new.prompt.take().or_else(|| Some(describe_task(&ticket)));
    Ok(ticket)
}

pub fn require_unblocked(ticket: &TicketRow) -> Result<()> {
    if ticket.is_blocked {
        let detail =
            format!("{} is blocked; release it with `atoll ticket set {} --blocked false`", ticket.key, ticket.key);
        return Err(Problem::new(Code::TicketBlocked, detail));
    }
    Ok(())
}

fn describe_task(ticket: &TicketRow) -> String {
    match &ticket.description {
        Some(description) => format!("{}\n\n{description}", ticket.title),
        None => ticket.title.clone(),
    }
}

/// Chooses the branch for work on a ticket: its own branch, the requested one, or a new one by type, key and title.
pub fn choose_ticket_branch(ticket: &TicketRow, requested: Option<String>) -> Result<String> {
    match (&ticket.branch, requested) {
        (Some(own), Some(requested)) if *own != requested => {
            Err(Problem::invalid(format!("repo.branch: the branch of {} is {own}", ticket.key)))
        }
        (Some(own), _) => Ok(own.clone()),
        (None, Some(requested)) => Ok(requested),
        (None, None) => {
            let prefix = branch_prefix(ticket.ticket_type, ticket.priority);
            Ok(atoll_forge::ticket_branch_name(prefix, &ticket.key.to_string(), &ticket.title))
        }
    }
}

/// Moves a ticket to `building` and gives it the session. The caller holds the session's lock.
pub async fn start_ticket(work: &mut Work<'_>, id: TicketId, session: SessionId) -> Result<()> {
    let mut ticket = lock_ticket(work, id).await?;
    require_unblocked(&ticket)?;
    ticket.session_id = Some(session);
    ticket.status = ticket.status.after_step(TicketStep::Start);
    ticket.updated_at = work.now;
    Ok(tickets::update_ticket(work.tx, &ticket).await?)
}

/// Records that a branch exists for the session's ticket. A ticket owns one branch: the newest.
pub async fn record_ticket_branch(work: &mut Work<'_>, session: SessionId, branch: &str) -> Result<()> {
    let Some(ticket) = tickets::find_session_ticket(work.tx, session).await? else { return Ok(()) };
    if ticket.branch.as_deref() == Some(branch) {
        return Ok(());
    }
    let mut ticket = lock_ticket(work, ticket.id).await?;
    ticket.branch = Some(branch.to_owned());
    ticket.updated_at = work.now;
    Ok(tickets::update_ticket(work.tx, &ticket).await?)
}

/// Moves the session's ticket after a step of its work.
pub async fn move_ticket(work: &mut Work<'_>, session: SessionId, step: TicketStep) -> Result<()> {
    let Some(ticket) = tickets::find_session_ticket(work.tx, session).await? else { return Ok(()) };
    let mut ticket = lock_ticket(work, ticket.id).await?;
    let status = ticket.status.after_step(step);
    if status == ticket.status {
        return Ok(());
    }
    ticket.status = status;
    ticket.updated_at = work.now;
    Ok(tickets::update_ticket(work.tx, &ticket).await?)
}

/// Records the pull request of the session's ticket.
pub async fn record_pull_request(work: &mut Work<'_>, session: SessionId, link: PullRequestLink) -> Result<()> {
    let Some(ticket) = tickets::find_session_ticket(work.tx, session).await? else { return Ok(()) };
    let mut ticket = lock_ticket(work, ticket.id).await?;
    if ticket.pull_request.as_ref().is_some_and(|own| !own.is_replaced_by(&link)) {
        return Ok(());
    }
    ticket.pull_request = Some(link);
    ticket.updated_at = work.now;
    Ok(tickets::update_ticket(work.tx, &ticket).await?)
}

/// Records the branch as a key of the session, for events about the branch.
pub async fn record_branch_key(work: &mut Work<'_>, session: &SessionRow, repo: &Repo) -> Result<()> {
    let (Some(location), Some(branch)) = (repo.url.as_ref().or(repo.path.as_ref()), &repo.branch) else {
        return Ok(());
    };
    let key = branch_key(&identify_repository(location), branch);
    Ok(session_keys::set_session_key(work.tx, &key, session.id, work.now).await?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::id::ProjectId;
    use atoll_core::ticket::{TicketKey, TicketPriority, TicketStatus, TicketType};
    use atoll_core::time::Timestamp;

    fn ticket(branch: Option<&str>) -> TicketRow {
        TicketRow {
            id: TicketId::new(),
            project_id: ProjectId::new(),
            key: TicketKey::new("ATL", 7),
            title: "Login fails".into(),
            description: None,
            ticket_type: TicketType::Bug,
            priority: TicketPriority::Critical,
            status: TicketStatus::Backlog,
            is_blocked: false,
            branch: branch.map(str::to_owned),
            pull_request: None,
            session_id: None,
            created_by: None,
            created_at: Timestamp::from_micros(0),
            updated_at: Timestamp::from_micros(0),
        }
    }

    #[test]
    fn a_ticket_keeps_its_branch() {
        let choose = |own: Option<&str>, requested: Option<&str>| {
            choose_ticket_branch(&ticket(own), requested.map(str::to_owned)).ok()
        };
        assert_eq!(choose(None, None).as_deref(), Some("hotfix/ATL-7-login-fails"));
        assert_eq!(choose(None, Some("mine")).as_deref(), Some("mine"));
        assert_eq!(choose(Some("own"), None).as_deref(), Some("own"));
        assert_eq!(choose(Some("own"), Some("own")).as_deref(), Some("own"));
        assert_eq!(choose(Some("own"), Some("other")), None);
    }

    #[test]
    fn the_description_is_part_of_the_task() {
        assert_eq!(describe_task(&ticket(None)), "Login fails");
        let described = TicketRow { description: Some("always".into()), ..ticket(None) };
        assert_eq!(describe_task(&described), "Login fails\n\nalways");
    }
}
