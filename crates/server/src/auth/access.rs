//! Who may do what with what belongs to a project.

use super::Caller;
use crate::problem::{Problem, Result};
use atoll_core::id::{ProjectId, SandboxId, SessionId};
use atoll_core::principal::{Action, Principal, Role, Verdict, judge};
use atoll_store::projects::Among;
use atoll_store::{Tx, projects, sandboxes, sessions};

/// The role that somebody has in a project, if any.
pub async fn role_in(tx: &mut dyn Tx, caller: &Caller, project: ProjectId) -> Result<Option<Role>> {
    match &caller.principal {
        Principal::User { user, role, .. } => match projects::role_of(tx, project, *user).await? {
            Some(member) => Ok(Some(member)),
            // In the default project everybody has the role that they have in the deployment.
            None => Ok(is_default(tx, project).await?.then_some(*role)),
        },
        Principal::Service { role, project: None, .. } => Ok(is_default(tx, project).await?.then_some(*role)),
        Principal::Service { role, project: Some(own), .. } => Ok((*own == project).then_some(*role)),
        Principal::Worker { .. } => Ok(None),
    }
}

async fn is_default(tx: &mut dyn Tx, project: ProjectId) -> Result<bool> {
    Ok(projects::get(tx, project).await?.is_some_and(|project| project.is_default))
}

/// Refuses unless the caller may do this in the project; what one may not see is "not found".
pub async fn check(tx: &mut dyn Tx, caller: &Caller, project: ProjectId, action: Action, what: &str) -> Result<()> {
    if caller.role() == Some(Role::Admin) {
        return Ok(());
    }
    let in_project = role_in(tx, caller, project).await?;
    match judge(caller.role().unwrap_or(Role::Viewer), in_project, action) {
        Verdict::Allowed => Ok(()),
        Verdict::Forbidden => Err(Problem::forbidden("your role in this project doesn't allow that")),
        Verdict::Hidden => Err(Problem::not_found(what)),
    }
}

/// For routes that a sandbox's own worker shares with people, while the sandbox lives.
pub async fn sandbox_or_its_worker(tx: &mut dyn Tx, caller: &Caller, id: SandboxId) -> Result<SessionId> {
    if matches!(caller.principal, Principal::Worker { .. }) {
        caller.must_be_worker_of(id)?;
        let row = sandboxes::get(tx, id).await?.ok_or_else(Problem::unauthorized)?;
        return if row.state.has_ended() { Err(Problem::unauthorized()) } else { Ok(row.session_id) };
    }
    sandbox(tx, caller, id, Action::See).await
}

/// The same for blobs: those a worker may still send when its sandbox has ended.
pub async fn blobs_of(tx: &mut dyn Tx, caller: &Caller, id: SandboxId) -> Result<()> {
    if matches!(caller.principal, Principal::Worker { .. }) {
        caller.must_be_worker_of(id)?;
        let row = sandboxes::get(tx, id).await?.ok_or_else(Problem::unauthorized)?;
        return crate::app::ingest::refuse_drained(&row);
    }
    sandbox(tx, caller, id, Action::See).await.map(drop)
}

/// The session that the sandbox belongs to, if the caller may do this with it.
pub async fn sandbox(tx: &mut dyn Tx, caller: &Caller, id: SandboxId, action: Action) -> Result<SessionId> {
    caller.must_not_be_worker()?;
    let owner = sandboxes::owner(tx, id).await?;
    let (session, project) = owner.ok_or_else(|| Problem::not_found("sandbox"))?;
    check(tx, caller, project, action, "sandbox").await?;
    Ok(session)
}

pub async fn session(tx: &mut dyn Tx, caller: &Caller, id: SessionId, action: Action) -> Result<()> {
    caller.must_not_be_worker()?;
    let session = sessions::get(tx, id).await?.ok_or_else(|| Problem::not_found("session"))?;
    check(tx, caller, session.project_id, action, "session").await
}

/// Which projects a list shows: all, or these.
#[derive(Debug, Clone)]
pub enum Visible {
    All,
    These(Vec<ProjectId>),
}

impl Visible {
    /// As the store's lists take it.
    pub fn among(&self) -> Among {
        match self {
            Self::All => Among::all(),
            Self::These(projects) => Among::these(projects),
        }
    }

    /// Whether it shows all that the other does.
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::All, _) => true,
            (Self::These(_), Self::All) => false,
            (Self::These(ours), Self::These(theirs)) => theirs.iter().all(|project| ours.contains(project)),
        }
    }

    pub fn contains(&self, project: ProjectId) -> bool {
        match self {
            Self::All => true,
            Self::These(projects) => projects.contains(&project),
        }
    }
}

pub async fn visible(tx: &mut dyn Tx, caller: &Caller) -> Result<Visible> {
    caller.must_not_be_worker()?;
    if caller.role() == Some(Role::Admin) {
        return Ok(Visible::All);
    }
    let mut ids = match &caller.principal {
        Principal::User { user, .. } => {
            projects::of_user(tx, *user).await?.into_iter().map(|(project, _)| project).collect()
        }
        Principal::Service { project: Some(project), .. } => return Ok(Visible::These(vec![*project])),
        Principal::Service { project: None, .. } | Principal::Worker { .. } => Vec::new(),
    };
    ids.extend(projects::the_default(tx).await?.map(|project| project.id));
    Ok(Visible::These(ids))
}
