//! Access control: one check per request.
//!
//! An `Access` value proves that the check passed. Handlers get it from an extractor, and the functions of the
//! application layer require it as an argument, so that a handler without a check does not compile.

use super::Caller;
use crate::extract::path_id;
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_core::id::{InterventionId, ProjectId, SandboxId, SessionId, TaskId, TicketId};
use atoll_core::principal::{PermissionVerdict, Principal, ProjectAction, Role, check_permission};
use atoll_core::provider::ReadScope;
use atoll_store::projects::ProjectFilter;
use atoll_store::{Tx, interventions, projects, sandboxes, sessions, tasks, tickets};
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use std::marker::PhantomData;
use std::str::FromStr;
use std::sync::Arc;

/// A resource that belongs to a project.
pub trait Resource: Copy + FromStr + Send + Sync + 'static {
    /// The name of the resource in "not found" problems.
    const KIND: &'static str;

    /// The project that the resource belongs to.
    fn find_project(self, tx: &mut dyn Tx) -> impl Future<Output = Result<Option<ProjectId>>> + Send;
}

impl Resource for SandboxId {
    const KIND: &'static str = "sandbox";

    async fn find_project(self, tx: &mut dyn Tx) -> Result<Option<ProjectId>> {
        Ok(sandboxes::find_owner_ids(tx, self).await?.map(|(_, project)| project))
    }
}

impl Resource for SessionId {
    const KIND: &'static str = "session";

    async fn find_project(self, tx: &mut dyn Tx) -> Result<Option<ProjectId>> {
        Ok(sessions::find_session(tx, self).await?.map(|session| session.project_id))
    }
}

impl Resource for ProjectId {
    const KIND: &'static str = "project";

    async fn find_project(self, tx: &mut dyn Tx) -> Result<Option<ProjectId>> {
        Ok(projects::find_project(tx, self).await?.map(|project| project.id))
    }
}

impl Resource for TicketId {
    const KIND: &'static str = "ticket";

    async fn find_project(self, tx: &mut dyn Tx) -> Result<Option<ProjectId>> {
        Ok(tickets::find_ticket(tx, self).await?.map(|ticket| ticket.project_id))
    }
}

impl Resource for TaskId {
    const KIND: &'static str = "task";

    async fn find_project(self, tx: &mut dyn Tx) -> Result<Option<ProjectId>> {
        Ok(tasks::find_task(tx, self).await?.map(|task| task.project_id))
    }
}

impl Resource for InterventionId {
    const KIND: &'static str = "intervention";

    async fn find_project(self, tx: &mut dyn Tx) -> Result<Option<ProjectId>> {
        Ok(interventions::find_intervention(tx, self).await?.map(|intervention| intervention.project_id))
    }
}

/// The action that an `Access` value permits.
pub trait Permission: Send + Sync + 'static {
    const ACTION: ProjectAction;
}

macro_rules! permissions {
    ($($marker:ident = $action:ident, $alias:ident;)+) => {
        $(
            #[derive(Debug, Clone, Copy)]
            pub struct $marker;

            impl Permission for $marker {
                const ACTION: ProjectAction = ProjectAction::$action;
            }

            pub type $alias<T> = Access<T, $marker>;
        )+
    };
}

permissions! {
    Reading = View, CanSee;
    Working = UseSandboxes, CanWork;
    Administering = Administer, CanAdminister;
}

/// Proof that a caller may perform an action on a resource.
#[derive(Debug, Clone)]
pub struct Access<T, P> {
    pub caller: Caller,
    pub id: T,
    pub project: ProjectId,
    permission: PhantomData<P>,
}

impl<T: Resource, P: Permission> Access<T, P> {
    /// Checks the access. Extractors call this; the application layer calls it where the body names the resource.
    pub async fn authorize(app: &App, caller: Caller, id: T) -> Result<Self> {
        caller.require_not_worker()?;
        let who = caller.clone();
        let checked = app.read(async move |tx| {
            let project = id.find_project(tx).await?.ok_or_else(|| Problem::not_found(T::KIND))?;
            check_project(tx, &who, project, P::ACTION, T::KIND).await?;
            Ok(project)
        });
        let project = checked.await?;
        Ok(Self { caller, id, project, permission: PhantomData })
    }

    pub fn actor(&self) -> String {
        self.caller.actor()
    }
}

impl<T: Resource, P: Permission> FromRequestParts<Arc<App>> for Access<T, P> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self> {
        let caller = Caller::from_request_parts(parts, app).await?;
        let id = path_id(parts, app).await?;
        Self::authorize(app, caller, id).await
    }
}

/// A caller with the deployment role `admin`.
#[derive(Debug, Clone)]
pub struct Admin(pub Caller);

impl FromRequestParts<Arc<App>> for Admin {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self> {
        let caller = Caller::from_request_parts(parts, app).await?;
        caller.require_admin()?;
        Ok(Self(caller))
    }
}

/// A user or service: any caller that is not a worker.
#[derive(Debug, Clone)]
pub struct ClientCaller(pub Caller);

impl FromRequestParts<Arc<App>> for ClientCaller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self> {
        let caller = Caller::from_request_parts(parts, app).await?;
        caller.require_not_worker()?;
        Ok(Self(caller))
    }
}

/// A user or service with the projects that it can see, for lists.
#[derive(Debug, Clone)]
pub struct CanList {
    pub caller: Caller,
    pub projects: VisibleProjects,
}

impl FromRequestParts<Arc<App>> for CanList {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self> {
        let caller = Caller::from_request_parts(parts, app).await?;
        let who = caller.clone();
        let projects = app.read(async move |tx| visible_projects(tx, &who).await).await?;
        Ok(Self { caller, projects })
    }
}

/// The worker of the sandbox in the path.
#[derive(Debug, Clone)]
pub struct WorkerOf {
    pub caller: Caller,
    pub sandbox: SandboxId,
}

impl FromRequestParts<Arc<App>> for WorkerOf {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self> {
        let caller = Caller::from_request_parts(parts, app).await?;
        let sandbox = path_id(parts, app).await?;
        caller.require_worker_of(sandbox)?;
        Ok(Self { caller, sandbox })
    }
}

/// A caller that can see the sandbox, or the sandbox's own worker while the sandbox is live.
#[derive(Debug, Clone)]
pub struct ReaderOrWorker {
    pub sandbox: SandboxId,
}

impl FromRequestParts<Arc<App>> for ReaderOrWorker {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self> {
        let caller = Caller::from_request_parts(parts, app).await?;
        let sandbox: SandboxId = path_id(parts, app).await?;
        Self::authorize(app, caller, sandbox).await
    }
}

impl ReaderOrWorker {
    async fn authorize(app: &App, caller: Caller, sandbox: SandboxId) -> Result<Self> {
        if !caller.is_worker() {
            CanSee::authorize(app, caller, sandbox).await?;
        } else {
            caller.require_worker_of(sandbox)?;
            let row = app.read(async move |tx| Ok(sandboxes::find_sandbox(tx, sandbox).await?)).await?;
            if row.is_none_or(|row| row.state.has_ended()) {
                return Err(Problem::unauthorized());
            }
        }
        Ok(Self { sandbox })
    }
}

/// A caller that can report on the work of a sandbox: one that may work in its project, or the sandbox's own worker.
#[derive(Debug, Clone)]
pub struct WorkReporter {
    pub sandbox: SandboxId,
}

impl FromRequestParts<Arc<App>> for WorkReporter {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self> {
        let caller = Caller::from_request_parts(parts, app).await?;
        if caller.is_worker() {
            let ReaderOrWorker { sandbox } = ReaderOrWorker::authorize(app, caller, path_id(parts, app).await?).await?;
            return Ok(Self { sandbox });
        }
        let access = CanWork::<SandboxId>::authorize(app, caller, path_id(parts, app).await?).await?;
        Ok(Self { sandbox: access.id })
    }
}

/// A caller that can read the sandbox's blobs: one that can see the sandbox, or its worker until it is drained.
#[derive(Debug, Clone)]
pub struct BlobReader {
    pub sandbox: SandboxId,
}

impl FromRequestParts<Arc<App>> for BlobReader {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self> {
        let caller = Caller::from_request_parts(parts, app).await?;
        let sandbox: SandboxId = path_id(parts, app).await?;
        if !caller.is_worker() {
            CanSee::authorize(app, caller, sandbox).await?;
        } else {
            caller.require_worker_of(sandbox)?;
            crate::app::ingest::require_open_stream(app, sandbox).await?;
        }
        Ok(Self { sandbox })
    }
}

/// A caller that can see the sandbox, with the part of its files that the caller may read. Outside of the workspace are
/// login files and the environment of processes, so reading there requires the right to work in the project.
#[derive(Debug, Clone)]
pub struct FileReader {
    pub access: CanSee<SandboxId>,
    pub scope: ReadScope,
}

impl FromRequestParts<Arc<App>> for FileReader {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self> {
        let access = CanSee::<SandboxId>::from_request_parts(parts, app).await?;
        let (who, project) = (access.caller.clone(), access.project);
        let may_work = app
            .read(async move |tx| check_project(tx, &who, project, ProjectAction::UseSandboxes, SandboxId::KIND).await);
        let scope = match may_work.await {
            Ok(()) => ReadScope::WholeSandbox,
            Err(problem) if problem.code == Code::Forbidden => ReadScope::Workspace,
            Err(problem) => return Err(problem),
        };
        Ok(Self { access, scope })
    }
}

/// The caller's role in a project, if any.
pub async fn project_role(tx: &mut dyn Tx, caller: &Caller, project: ProjectId) -> Result<Option<Role>> {
    match &caller.principal {
        Principal::User { user, role, .. } => match projects::find_member_role(tx, project, *user).await? {
            Some(member) => Ok(Some(member)),
            // In the default project, users have their deployment role.
            None => Ok(is_default_project(tx, project).await?.then_some(*role)),
        },
        Principal::Service { role, project: None, .. } => Ok(is_default_project(tx, project).await?.then_some(*role)),
        Principal::Service { role, project: Some(own), .. } => Ok((*own == project).then_some(*role)),
        Principal::Worker { .. } => Ok(None),
    }
}

async fn is_default_project(tx: &mut dyn Tx, project: ProjectId) -> Result<bool> {
    Ok(projects::find_project(tx, project).await?.is_some_and(|project| project.is_default))
}

/// Requires that the caller may perform the action in the project. A hidden resource is "not found".
async fn check_project(
    tx: &mut dyn Tx,
    caller: &Caller,
    project: ProjectId,
    action: ProjectAction,
    kind: &str,
) -> Result<()> {
    if caller.role() == Some(Role::Admin) {
        return Ok(());
    }
    let in_project = project_role(tx, caller, project).await?;
    match check_permission(caller.role().unwrap_or(Role::Viewer), in_project, action) {
        PermissionVerdict::Allowed => Ok(()),
        PermissionVerdict::Forbidden => Err(Problem::forbidden("your role in this project doesn't allow that")),
        PermissionVerdict::Hidden => Err(Problem::not_found(kind)),
    }
}

/// Checks access to a sandbox again, for connections that outlive their first check. Returns its session.
pub async fn check_sandbox(
    tx: &mut dyn Tx,
    caller: &Caller,
    id: SandboxId,
    action: ProjectAction,
) -> Result<SessionId> {
    caller.require_not_worker()?;
    let owner = sandboxes::find_owner_ids(tx, id).await?;
    let (session, project) = owner.ok_or_else(|| Problem::not_found("sandbox"))?;
    check_project(tx, caller, project, action, "sandbox").await?;
    Ok(session)
}

/// The projects that a caller can see.
#[derive(Debug, Clone)]
pub enum VisibleProjects {
    All,
    These(Vec<ProjectId>),
}

impl VisibleProjects {
    /// Converts to the store's filter.
    pub fn as_filter(&self) -> ProjectFilter {
        match self {
            Self::All => ProjectFilter::all(),
            Self::These(projects) => ProjectFilter::from_ids(projects),
        }
    }

    /// True if it includes all projects of `other`.
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::All, _) => true,
            (Self::These(_), Self::All) => false,
            (Self::These(own), Self::These(requested)) => requested.iter().all(|project| own.contains(project)),
        }
    }

    pub fn contains(&self, project: ProjectId) -> bool {
        match self {
            Self::All => true,
            Self::These(projects) => projects.contains(&project),
        }
    }
}

pub async fn visible_projects(tx: &mut dyn Tx, caller: &Caller) -> Result<VisibleProjects> {
    caller.require_not_worker()?;
    if caller.role() == Some(Role::Admin) {
        return Ok(VisibleProjects::All);
    }
    let mut ids = match &caller.principal {
        Principal::User { user, .. } => {
            projects::list_user_projects(tx, *user).await?.into_iter().map(|(project, _)| project).collect()
        }
        Principal::Service { project: Some(project), .. } => return Ok(VisibleProjects::These(vec![*project])),
        Principal::Service { project: None, .. } | Principal::Worker { .. } => Vec::new(),
    };
    ids.extend(projects::find_default_project(tx).await?.map(|project| project.id));
    Ok(VisibleProjects::These(ids))
}
