//! Creates the branch of a ticket in the repository before its sandbox exists.

use crate::app::ticket_work;
use crate::problem::{Problem, Result};
use crate::repositories::{self, BranchPlacement};
use crate::state::App;
use atoll_core::sandbox::Repo;
use atoll_store::sandboxes::{self, SandboxRow};
use atoll_store::{sessions, tickets};

/// Other programs that take the planned name at the same moment.
const MAX_NAME_ATTEMPTS: u32 = 5;

/// Creates the branch of the sandbox's ticket, if it works on one. A branch that the ticket owns already is only created
/// again if it is gone. Returns the name, which differs from the planned one if another program took it meanwhile.
pub(super) async fn ensure_ticket_branch(app: &App, sandbox: &mut SandboxRow) -> Result<Option<String>> {
    let Some(repo) = sandbox.settings.repo.clone() else { return Ok(None) };
    let session = sandbox.session_id;
    let ticket = app.read(async move |tx| Ok(tickets::find_session_ticket(tx, session).await?)).await?;
    let (Some(ticket), Some(mut branch)) = (ticket, repo.branch.clone()) else { return Ok(None) };
    let is_own = ticket.branch.as_ref() == Some(&branch);
    for _ in 0..MAX_NAME_ATTEMPTS {
        let planned = Repo { branch: Some(branch.clone()), ..repo.clone() };
        match repositories::place_branch(app, planned, is_own).await? {
            BranchPlacement::Exists => {
                store_branch(app, sandbox, &branch).await?;
                return Ok(Some(branch));
            }
            BranchPlacement::Taken { free } => branch = free,
        }
    }
    Err(Problem::invalid(format!("other programs keep creating branches like {branch}; try again")))
}

async fn store_branch(app: &App, sandbox: &mut SandboxRow, branch: &str) -> Result<()> {
    let (id, branch) = (sandbox.id, branch.to_owned());
    *sandbox = app
        .write(async move |work| {
            let (mut session, mut sandbox) = work.lock_sandbox(id).await?;
            let repo = Repo { branch: Some(branch.clone()), ..sandbox.settings.repo.clone().unwrap_or_default() };
            if sandbox.settings.repo.as_ref() != Some(&repo) {
                sandbox.settings.repo = Some(repo.clone());
                sandboxes::update_settings(work.tx, &sandbox).await?;
            }
            if session.branch.as_ref() != Some(&branch) {
                session.branch = Some(branch.clone());
                session.updated_at = work.now;
                sessions::update_session(work.tx, &session).await?;
            }
            ticket_work::record_ticket_branch(work, session.id, &branch).await?;
            ticket_work::record_branch_key(work, &session, &repo).await?;
            Ok(sandbox)
        })
        .await?;
    Ok(())
}
