//! Stored secrets: set, remove, reseal, and expose them to sandboxes.

use super::Work;
use super::views::{cut_page, view_secret};
use crate::auth::access::{Admin, CanAdminister, CanList, CanSee, ClientCaller};
use crate::cursor::decode_id;
use crate::extract::page_size;
use crate::forge_logins;
use crate::idempotency::JsonResponse;
use crate::problem::{Problem, Result};
use crate::secrets::seal::{open_secret, seal_secret};
use crate::secrets::seal_keys::KeyRing;
use crate::secrets::{Secrets, secret_texts};
use crate::state::App;
use atoll_api::events::{EventData, ExposedSecret, SandboxNotice, SecretsExposed};
use atoll_api::{KeyRotation, NewSecret, Page, SecretListQuery};
use atoll_core::event::NewEvent;
use atoll_core::id::{ProjectId, SecretId};
use atoll_core::login;
use atoll_core::sandbox::Settings;
use atoll_core::secret::{self, Exposure};
use atoll_store::sandboxes::{self, SandboxRow};
use atoll_store::secrets::{self, SecretRow};
use atoll_store::{Store, Tx};
use axum::http::StatusCode;
use secrecy::{ExposeSecret, SecretString};
use std::collections::BTreeMap;

/// Page size when all secrets are read.
const PAGE_SIZE: i64 = 100;

/// A secret before it is sealed.
#[derive(Debug)]
pub struct SecretDraft {
    pub project: Option<ProjectId>,
    pub name: String,
    pub value: SecretString,
    pub upstreams: Vec<String>,
    pub expose: Option<Exposure>,
    pub actor: String,
}

/// Creates or replaces a secret. Returns whether it is new.
pub async fn put_secret(work: &mut Work<'_>, draft: SecretDraft, ring: &KeyRing) -> Result<(SecretRow, bool)> {
    let key = ring.current().ok_or_else(|| Problem::internal("a ring without a key to seal with"))?;
    secrets::lock_secrets(work.tx, draft.project).await?;
    let known = secrets::find_secret_in_scope(work.tx, draft.project, &draft.name).await?;
    let is_new = known.is_none();
    if is_new && secrets::count_secrets(work.tx, draft.project).await? >= secret::MAX_SECRETS_PER_PROJECT as i64 {
        let detail = format!("the limit of {} secrets is reached; remove one first", secret::MAX_SECRETS_PER_PROJECT);
        return Err(Problem::invalid(detail).with("field", "name"));
    }
    let mut row = SecretRow {
        id: known.as_ref().map_or_else(SecretId::new, |row| row.id),
        project_id: draft.project,
        name: draft.name,
        sealed: String::new(),
        key_id: String::new(),
        upstreams: draft.upstreams,
        expose: draft.expose,
        created_by: known.as_ref().map_or(Some(draft.actor), |row| row.created_by.clone()),
        created_at: known.map_or(work.now, |row| row.created_at),
        updated_at: work.now,
    };
    seal_secret(&mut row, &draft.value, key)?;
    if is_new {
        secrets::insert_secret(work.tx, &row).await?;
    } else {
        secrets::update_secret(work.tx, &row).await?;
    }
    Ok((row, is_new))
}

pub async fn remove_secret(work: &mut Work<'_>, project: Option<ProjectId>, name: &str) -> Result<SecretRow> {
    secrets::lock_secrets(work.tx, project).await?;
    let row =
        secrets::find_secret_in_scope(work.tx, project, name).await?.ok_or_else(|| Problem::not_found("secret"))?;
    secrets::delete_secret(work.tx, row.id).await?;
    Ok(row)
}

/// The result of resealing all secrets.
#[derive(Debug, Default)]
pub struct ResealReport {
    pub count: u64,
    /// Secrets that could not be opened, and are unchanged.
    pub unopened: Vec<SecretRow>,
}

/// Seals all secrets with the ring's current key.
pub async fn reseal_all(work: &mut Work<'_>, ring: &KeyRing) -> Result<ResealReport> {
    let key = ring.current().ok_or_else(|| Problem::internal("a ring without a key to seal with"))?;
    let (mut done, mut after) = (ResealReport::default(), None);
    loop {
        let page = secrets::read_secret_page_for_update(work.tx, after, PAGE_SIZE).await?;
        let Some(last) = page.last() else { return Ok(done) };
        after = Some(last.id);
        for mut row in page {
            match open_secret(&row, ring) {
                Ok(value) => {
                    seal_secret(&mut row, &value, key)?;
                    secrets::update_secret(work.tx, &row).await?;
                    done.count += 1;
                }
                Err(_) => done.unopened.push(row),
            }
        }
    }
}

/// Teaches the redactor every value. Returns a message if some secrets cannot be opened.
pub async fn teach_redactor(store: &Store, known: &Secrets) -> Result<Option<String>> {
    let (mut after, mut ring, mut failed, mut count) = (None, None, None, 0_u64);
    let mut values = BTreeMap::<_, Vec<_>>::new();
    loop {
        let page = store
            .read(async move |tx| Ok::<_, Problem>(secrets::read_secret_page(tx, after, PAGE_SIZE).await?))
            .await?;
        let Some(last) = page.last() else { break };
        after = Some(last.id);
        let ring = match &mut ring {
            Some(ring) => ring,
            none => match known.key_ring() {
                Ok(read) => none.insert(read),
                Err(error) => return Ok(Some(format!("cannot open secrets: {error}"))),
            },
        };
        for row in page {
            match open_secret(&row, ring) {
                Ok(value) => {
                    values.entry(row.project_id).or_default().extend(secret_texts(&value, row.expose.as_ref()));
                }
                Err(error) => {
                    count += 1;
                    failed.get_or_insert(error);
                }
            }
        }
    }
    for (project, values) in values {
        known.learn(project, &values);
    }
    Ok(failed.map(|error| format!("cannot open {count} secrets; the first error: {error}")))
}

/// The secrets that a sandbox's settings name.
pub(super) async fn named_secrets(
    tx: &mut dyn Tx,
    project: ProjectId,
    settings: &Settings,
) -> Result<Vec<(String, Option<SecretRow>)>> {
    let mut found = Vec::new();
    for name in settings.secrets.iter().flatten() {
        found.push((name.clone(), secrets::resolve_secret(tx, project, name).await?));
    }
    Ok(found)
}

fn secrets_problem(detail: String) -> Problem {
    Problem::invalid(detail).with("field", "secrets")
}

/// Checks that the named secrets exist and open, and records which ones the new sandbox will see.
pub async fn check_secrets(work: &mut Work<'_>, project: ProjectId, settings: &mut Settings) -> Result<()> {
    if settings.secrets.as_ref().is_none_or(Vec::is_empty) {
        settings.exposed_secrets.clear();
        return Ok(());
    }
    let (mut exposed, mut exposures, mut ring) = (Vec::new(), BTreeMap::new(), None);
    for (name, row) in named_secrets(work.tx, project, settings).await? {
        secret::check_secret_name("secrets", &name)?;
        let Some(row) = row else {
            let detail = format!("secrets: there is no secret `{name}`; create it with `atoll secret set {name}`");
            return Err(secrets_problem(detail).with("secret", name));
        };
        let Some(exposure) = &row.expose else { continue };
        let what = match exposure {
            Exposure::Variable(variable) if settings.env.contains_key(variable) => {
                return Err(secrets_problem(format!(
                    "secrets: `{name}` is the variable `{variable}`, which `env` sets too"
                )));
            }
            Exposure::Variable(_) => "variable",
            Exposure::File(_) => "file",
        };
        if let Some(other) = exposures.insert(exposure.clone(), name.clone()).filter(|other| *other != name) {
            return Err(secrets_problem(format!("secrets: `{name}` and `{other}` are both the {what} `{exposure}`")));
        }
        let files = exposures.keys().filter(|exposure| matches!(exposure, Exposure::File(_))).count();
        if files > login::MAX_LOGIN_FILES {
            return Err(secrets_problem(format!(
                "secrets: a sandbox has at most {} login files",
                login::MAX_LOGIN_FILES
            )));
        }
        let ring = match &mut ring {
            Some(ring) => ring,
            none => none.insert(work.secrets.key_ring()?),
        };
        open_secret(&row, ring)?;
        exposed.push(name);
    }
    exposed.sort_unstable();
    exposed.dedup();
    settings.exposed_secrets = exposed;
    Ok(())
}

/// The event that names the secrets exposed to the sandbox.
pub(super) fn exposure_event(work: &Work<'_>, exposures: &[(String, Exposure)]) -> NewEvent {
    let words: Vec<String> = exposures.iter().map(|(name, exposure)| format!("{name} as {exposure}")).collect();
    let secrets = exposures.iter().map(|(name, exposure)| {
        let (variable, file) = match exposure {
            Exposure::Variable(variable) => (Some(variable.clone()), None),
            Exposure::File(path) => (None, Some(path.clone())),
        };
        ExposedSecret { name: name.clone(), variable, file }
    });
    let text = format!("exposed in the sandbox: {}", words.join(", "));
    EventData::SecretsExposed(SecretsExposed { text, secrets: secrets.collect() }).into_event(work.now)
}

/// Returns the secret variables for a starting sandbox. Rows and events name them but never hold their values. `logins`
/// hands over secret files before each prompt.
pub async fn expose_variables(work: &mut Work<'_>, sandbox: &mut SandboxRow) -> Result<BTreeMap<String, String>> {
    let mut variables = BTreeMap::new();
    if sandbox.settings.secrets.as_ref().is_none_or(Vec::is_empty) {
        return Ok(variables);
    }
    let (mut names, mut exposures, mut values, mut ring) = (Vec::new(), Vec::new(), Vec::new(), None);
    let mut events = Vec::new();
    for (name, row) in named_secrets(work.tx, sandbox.project_id, &sandbox.settings).await? {
        let opened = match &row {
            None => Err(format!("the secret `{name}` was removed; the sandbox continues without it")),
            Some(row) => {
                let variable = match &row.expose {
                    None => continue,
                    Some(Exposure::File(_)) => {
                        names.push(name);
                        continue;
                    }
                    Some(Exposure::Variable(variable)) => variable,
                };
                let ring = match &mut ring {
                    Some(ring) => Ok(ring),
                    none => work.secrets.key_ring().map(|read| none.insert(read)),
                };
                let value = ring.and_then(|ring| open_secret(row, ring)).map_err(|error| error.to_string());
                value.map(|value| (variable.clone(), value))
            }
        };
        match opened {
            Ok((variable, value)) => {
                exposures.push((name.clone(), Exposure::Variable(variable.clone())));
                // The sandbox's own `env` wins.
                if !sandbox.settings.env.contains_key(&variable) {
                    variables.insert(variable, value.expose_secret().to_owned());
                }
                values.push(value);
                names.push(name);
            }
            Err(text) => {
                events.push(EventData::SandboxNotice(SandboxNotice { text, routine: false }).into_event(work.now))
            }
        }
    }
    // Teach the redactor before the values can leave the sandbox.
    work.secrets.learn(Some(sandbox.project_id), &values);
    if !exposures.is_empty() {
        events.push(exposure_event(work, &exposures));
    }
    names.sort_unstable();
    names.dedup();
    if sandbox.settings.exposed_secrets != names {
        sandbox.settings.exposed_secrets = names;
        sandboxes::update_settings(work.tx, sandbox).await?;
    }
    if !events.is_empty() {
        work.log(sandbox, events).await?;
        sandboxes::update_sandbox(work.tx, sandbox).await?;
    }
    Ok(variables)
}

fn check_exposure(new: &NewSecret) -> Result<Option<Exposure>> {
    let exposure = match (&new.expose, &new.expose_file) {
        (Some(_), Some(_)) => {
            let detail = "expose_file: a secret is a variable or a file, not both";
            return Err(Problem::invalid(detail).with("field", "expose_file"));
        }
        (Some(name), None) => Exposure::Variable(name.clone()),
        (None, Some(path)) => Exposure::File(path.clone()),
        (None, None) => return Ok(None),
    };
    exposure.check_bounds()?;
    Ok(Some(exposure))
}

/// Requires the right to change the secrets of a project, or of the deployment.
async fn authorize_change(app: &App, client: ClientCaller, project: Option<ProjectId>) -> Result<String> {
    match project {
        Some(project) => Ok(CanAdminister::authorize(app, client.0, project).await?.actor()),
        None => client.0.require_admin().map(|()| client.0.actor()),
    }
}

/// Creates or replaces a secret. The redactor learns the value before anything is stored.
pub async fn submit_secret(app: &App, client: ClientCaller, name: String, new: NewSecret) -> Result<JsonResponse> {
    let project = new.project_id;
    let actor = authorize_change(app, client, project).await?;
    secret::check_secret_name("name", &name)?;
    let expose = check_exposure(&new)?;
    secret::check_secret_value(new.value.expose_secret(), expose.as_ref())?;
    secret::check_upstreams(&new.upstreams)?;
    // The key of a model upstream is of no other use.
    let is_unbound = new.upstreams.is_empty() && expose.is_none();
    let upstreams = if is_unbound { app.gateway.hosts_of_secret(&name) } else { new.upstreams };
    let ring = app.secrets.sealing_ring()?;
    app.secrets.learn(project, &secret_texts(&new.value, expose.as_ref()));
    let draft = SecretDraft { project, name, value: new.value, upstreams, expose, actor: actor.clone() };
    let stored = app.write(async move |work| put_secret(work, draft, &ring).await);
    let (row, is_new) = stored.await?;
    tracing::info!(name = row.name, id = %row.id, actor, "secret set");
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    JsonResponse::new(status, view_secret(row))
}

/// Lists the secrets of the visible projects and of the deployment.
pub async fn list_secrets(app: &App, access: CanList, query: SecretListQuery) -> Result<Page<atoll_api::Secret>> {
    let limit = page_size(query.limit, 50, 200)?;
    let after = decode_id::<SecretId>("secrets", query.cursor.as_deref())?;
    let (filter, only) = (access.projects.as_filter(), query.project_id);
    if let Some(project) = only {
        CanSee::authorize(app, access.caller, project).await?;
    }
    let rows =
        app.read(async move |tx| Ok(secrets::list_secrets(tx, &filter, only, after.as_deref(), limit + 1).await?));
    Ok(cut_page("secrets", rows.await?, limit, |row| row.id.to_string()).map(view_secret))
}

pub async fn submit_removal(
    app: &App,
    client: ClientCaller,
    name: String,
    project: Option<ProjectId>,
) -> Result<atoll_api::Secret> {
    let actor = authorize_change(app, client, project).await?;
    let row = app.write(async move |work| remove_secret(work, project, &name).await).await?;
    tracing::info!(name = row.name, id = %row.id, actor, "secret removed");
    Ok(view_secret(row))
}

/// Creates a new key and reseals all secrets and logins at forges with it.
pub async fn rotate_key(app: &App, _: Admin) -> Result<KeyRotation> {
    let ring = app.secrets.rotate_key()?;
    let key_id = ring.current().map(|key| key.id.clone()).unwrap_or_default();
    let report = app.write(async move |work| {
        let mut report = reseal_all(work, &ring).await?;
        report.count += forge_logins::reseal_all(work.tx, &ring).await?;
        Ok(report)
    });
    let report = report.await?;
    tracing::info!(key_id, sealed = report.count, left = report.unopened.len(), "secrets resealed with a new key");
    let left = report.unopened.into_iter().map(view_secret).collect();
    Ok(KeyRotation { key_id, sealed: report.count, left })
}
