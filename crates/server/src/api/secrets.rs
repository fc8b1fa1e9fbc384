//! `/secrets`: set, list by name, remove, seal with a new key. No answer holds a value.

use super::Page;
use crate::app::secrets::{self as app_secrets, Draft};
use crate::auth::{Caller, access};
use crate::cursor;
use crate::extract::{Id, Params, must_be_json, page_size, parse, read_body};
use crate::once::Answer;
use crate::problem::{Problem, Result};
use crate::secrets::telling;
use crate::state::App;
use atoll_core::bounds;
use atoll_core::id::{ProjectId, SecretId};
use atoll_core::principal::Action;
use atoll_core::secret::{self, Exposure};
use atoll_core::time::Timestamp;
use atoll_store::secrets::{self, Secret};
use atoll_store::{Tx, projects};
use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What is known of a secret: everything but its value.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Secret)]
pub struct SecretView {
    id: SecretId,
    name: String,
    /// Without one it is the deployment's, for every project.
    project_id: Option<ProjectId>,
    /// Hosts that it may be sent to.
    upstreams: Vec<String>,
    /// Whether sandboxes that name it hold its value.
    exposed: bool,
    /// The variable that it is there.
    expose: Option<String>,
    /// Or the file that it is there, below the agent's home.
    expose_file: Option<String>,
    created_by: Option<String>,
    created_at: Timestamp,
    updated_at: Timestamp,
}

impl From<Secret> for SecretView {
    fn from(row: Secret) -> Self {
        let exposed = row.expose.is_some();
        let (expose, expose_file) = match row.expose {
            None => (None, None),
            Some(Exposure::Variable(name)) => (Some(name), None),
            Some(Exposure::File(path)) => (None, Some(path)),
        };
        Self {
            id: row.id,
            name: row.name,
            project_id: row.project_id,
            upstreams: row.upstreams,
            exposed,
            expose,
            expose_file,
            created_by: row.created_by,
            created_at: row.created_at,
            updated_at: row.updated_at,
        }
    }
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSecret {
    /// 1 byte to 64 KiB of text; 32 KiB where it is a variable; JSON where it is a file.
    #[serde(deserialize_with = "hidden")]
    #[schema(value_type = String, min_length = 1, max_length = 65536)]
    value: SecretString,
    /// Whose; the deployment's where absent, which takes an admin.
    project_id: Option<ProjectId>,
    /// Hosts that it may be sent to, such as `api.example.org` or `*.example.org`.
    #[serde(default)]
    #[schema(max_items = 50)]
    upstreams: Vec<String>,
    /// Puts it into the environment of sandboxes that name it, as this variable. Whoever works there can read it.
    expose: Option<String>,
    /// Or as this file below the agent's home, written before each prompt. Fields whose names contain `refresh` are kept
    /// there and blank, so that nobody inside can renew the login.
    #[schema(max_length = 200)]
    expose_file: Option<String>,
}

impl NewSecret {
    fn exposure(&self) -> Result<Option<Exposure>> {
        let exposure = match (&self.expose, &self.expose_file) {
            (Some(_), Some(_)) => {
                let detail = "expose_file: a secret is a variable or a file, not both";
                return Err(Problem::invalid(detail).with("field", "expose_file"));
            }
            (Some(name), None) => Exposure::Variable(name.clone()),
            (None, Some(path)) => Exposure::File(path.clone()),
            (None, None) => return Ok(None),
        };
        exposure.check()?;
        Ok(Some(exposure))
    }
}

fn hidden<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<SecretString, D::Error> {
    String::deserialize(deserializer).map(SecretString::from)
}

/// The body, or a refusal that repeats nothing of it: a mistake in its form must not show the value.
async fn read(request: Request) -> Result<NewSecret> {
    must_be_json(request.headers())?;
    let bytes = read_body(request, bounds::REQUEST_BYTES).await?;
    parse(&bytes).map_err(|_| {
        Problem::invalid(
            "the body is {\"value\": TEXT, \"project_id\"?: ID, \"upstreams\"?: [HOST], \"expose\"?: VARIABLE, \
             \"expose_file\"?: PATH} and nothing else; it is not repeated here",
        )
    })
}

/// The caller may change the secrets of this project, or of the deployment.
async fn may_change(tx: &mut dyn Tx, caller: &Caller, project: Option<ProjectId>) -> Result<()> {
    caller.must_not_be_worker()?;
    let Some(project) = project else { return caller.must_be_admin() };
    access::check(tx, caller, project, Action::Administer, "project").await?;
    projects::get(tx, project).await?.map(drop).ok_or_else(|| Problem::not_found("project"))
}

fn checked(name: &str) -> Result<()> {
    Ok(secret::name("name", name)?)
}

/// Make or replace a secret.
///
/// Its value can be used and replaced, but never read again. Asking twice is the same as asking once, so that there
/// is no `Idempotency-Key` here: nothing of the request is kept but the sealed value.
#[utoipa::path(put, path = "/secrets/{name}", tag = "secrets", params(("name" = String, Path, pattern = "^[A-Z_][A-Z0-9_]{0,63}$")),
    request_body = NewSecret,
    responses((status = 200, body = SecretView, description = "Replaced"), (status = 201, body = SecretView)))]
pub async fn put(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(name): Id<String>,
    request: Request,
) -> Result<Answer> {
    caller.must_not_be_worker()?;
    let new = read(request).await?;
    let (who, project) = (caller.clone(), new.project_id);
    // Before anything is made of it.
    app.read(move |tx| Box::pin(async move { may_change(tx, &who, project).await })).await?;
    checked(&name)?;
    let expose = new.exposure()?;
    secret::value(new.value.expose_secret(), expose.as_ref())?;
    secret::upstreams(&new.upstreams)?;
    let ring = app.secrets.for_sealing()?;
    app.secrets.learn(project, &telling(&new.value, expose.as_ref()));
    let actor = caller.actor();
    let draft = Draft { project, name, value: new.value, upstreams: new.upstreams, expose, actor: actor.clone() };
    let (row, is_new) = app
        .write(move |work| {
            Box::pin(async move {
                may_change(work.tx, &caller, project).await?;
                app_secrets::put(work, draft, &ring).await
            })
        })
        .await?;
    tracing::info!(name = row.name, id = %row.id, actor, "a secret was set");
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    Answer::new(status, SecretView::from(row))
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListQuery {
    /// Those that this project's sandboxes can use: its own and the deployment's.
    project_id: Option<ProjectId>,
    /// How many items, 1 to 200.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<i64>,
    cursor: Option<String>,
}

/// List secrets by name: those of the projects that one sees, and the deployment's.
#[utoipa::path(get, path = "/secrets", tag = "secrets", params(ListQuery),
    responses((status = 200, body = Page<SecretView>)))]
pub async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    Params(query): Params<ListQuery>,
) -> Result<Json<Page<SecretView>>> {
    let limit = page_size(query.limit, 50, 200)?;
    let after = cursor::read_id::<SecretId>("secrets", query.cursor.as_deref())?;
    let page = app.read(move |tx| {
        Box::pin(async move {
            let among = access::visible(tx, &caller).await?.among();
            if let Some(project) = query.project_id {
                access::check(tx, &caller, project, Action::See, "project").await?;
            }
            let found = secrets::list(tx, &among, query.project_id, after.as_deref(), limit + 1).await?;
            Ok(Page::cut("secrets", found, limit, |row| row.id.to_string()))
        })
    });
    Ok(Json(page.await?.map(SecretView::from)))
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct RemoveQuery {
    /// Whose; the deployment's where absent.
    project_id: Option<ProjectId>,
}

/// Remove a secret. Sandboxes that hold its value keep it until they end; a login file goes before the next prompt.
#[utoipa::path(delete, path = "/secrets/{name}", tag = "secrets", params(("name" = String, Path, pattern = "^[A-Z_][A-Z0-9_]{0,63}$"), RemoveQuery),
    responses((status = 200, body = SecretView)))]
pub async fn remove(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(name): Id<String>,
    Params(query): Params<RemoveQuery>,
) -> Result<Answer> {
    let actor = caller.actor();
    let row = app
        .write(move |work| {
            Box::pin(async move {
                may_change(work.tx, &caller, query.project_id).await?;
                app_secrets::remove(work, query.project_id, &name).await
            })
        })
        .await?;
    tracing::info!(name = row.name, id = %row.id, actor, "a secret was removed");
    Answer::ok(SecretView::from(row))
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Rotated {
    /// The key that seals from now on.
    key_id: String,
    /// How many secrets are sealed with it now.
    sealed: u64,
    /// Those that could not be opened and stay as they are.
    left: Vec<SecretView>,
}

/// Make a new key and seal every secret with it.
///
/// Older keys stay in the file, for older backups. Where the configuration names the key, that one is used.
#[utoipa::path(post, path = "/secrets/rotate", tag = "secrets", responses((status = 200, body = Rotated)))]
pub async fn rotate(State(app): State<Arc<App>>, caller: Caller) -> Result<Answer> {
    caller.must_be_admin()?;
    let ring = app.secrets.renew()?;
    let key_id = ring.current().map(|key| key.id.clone()).unwrap_or_default();
    let done = app.write(move |work| Box::pin(async move { app_secrets::reseal(work, &ring).await })).await?;
    tracing::info!(key_id, sealed = done.count, left = done.left.len(), "secrets were sealed with a new key");
    let left = done.left.into_iter().map(SecretView::from).collect();
    Answer::ok(Rotated { key_id, sealed: done.count, left })
}
