//! Secrets in the store: setting, removing, sealing anew, and which of them a sandbox gets.

use super::Work;
use crate::problem::{Problem, Result};
use crate::secrets::keys::Ring;
use crate::secrets::seal::{open, seal};
use crate::secrets::{Secrets, telling};
use atoll_core::event::NewEvent;
use atoll_core::id::{ProjectId, SecretId};
use atoll_core::login;
use atoll_core::sandbox::Settings;
use atoll_core::secret::{self, Exposure};
use atoll_store::sandboxes::{self, Sandbox};
use atoll_store::secrets::{self, Secret};
use atoll_store::{Store, Tx};
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;
use std::collections::BTreeMap;

/// How many are taken at once where all of them are gone through.
const PAGE: i64 = 100;

/// A secret as somebody wants it.
#[derive(Debug)]
pub struct Draft {
    pub project: Option<ProjectId>,
    pub name: String,
    pub value: SecretString,
    pub upstreams: Vec<String>,
    pub expose: Option<Exposure>,
    pub actor: String,
}

/// Makes or replaces one; says whether it is new.
pub async fn put(work: &mut Work<'_>, draft: Draft, ring: &Ring) -> Result<(Secret, bool)> {
    let key = ring.current().ok_or_else(|| Problem::internal("a ring without a key to seal with"))?;
    secrets::lock(work.tx, draft.project).await?;
    let known = secrets::get(work.tx, draft.project, &draft.name).await?;
    let is_new = known.is_none();
    if is_new && secrets::count(work.tx, draft.project).await? >= secret::PER_PROJECT as i64 {
        let detail = format!("there are {} already, which is as many as there may be", secret::PER_PROJECT);
        return Err(Problem::invalid(detail).with("field", "name"));
    }
    let mut row = Secret {
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
    seal(&mut row, &draft.value, key)?;
    if is_new {
        secrets::insert(work.tx, &row).await?;
    } else {
        secrets::update(work.tx, &row).await?;
    }
    Ok((row, is_new))
}

pub async fn remove(work: &mut Work<'_>, project: Option<ProjectId>, name: &str) -> Result<Secret> {
    secrets::lock(work.tx, project).await?;
    let row = secrets::get(work.tx, project, name).await?.ok_or_else(|| Problem::not_found("secret"))?;
    secrets::delete(work.tx, row.id).await?;
    Ok(row)
}

/// What became of all secrets when they were sealed anew.
#[derive(Debug, Default)]
pub struct Resealed {
    pub count: u64,
    /// Those that did not open, and stay as they are.
    pub left: Vec<Secret>,
}

/// Seals everything with the ring's current key.
pub async fn reseal(work: &mut Work<'_>, ring: &Ring) -> Result<Resealed> {
    let key = ring.current().ok_or_else(|| Problem::internal("a ring without a key to seal with"))?;
    let (mut done, mut after) = (Resealed::default(), None);
    loop {
        let page = secrets::page_locked(work.tx, after, PAGE).await?;
        let Some(last) = page.last() else { return Ok(done) };
        after = Some(last.id);
        for mut row in page {
            match open(&row, ring) {
                Ok(value) => {
                    seal(&mut row, &value, key)?;
                    secrets::update(work.tx, &row).await?;
                    done.count += 1;
                }
                Err(_) => done.left.push(row),
            }
        }
    }
}

/// Lets the redactor know every value that opens, and says in a sentence what does not.
pub async fn learn_all(store: &Store, known: &Secrets) -> Result<Option<String>> {
    let (mut after, mut ring, mut failed, mut count) = (None, None, None, 0_u64);
    let mut values = BTreeMap::<_, Vec<_>>::new();
    loop {
        let page = store
            .read(move |tx| Box::pin(async move { Ok::<_, Problem>(secrets::page(tx, after, PAGE).await?) }))
            .await?;
        let Some(last) = page.last() else { break };
        after = Some(last.id);
        let ring = match &mut ring {
            Some(ring) => ring,
            none => match known.keys() {
                Ok(read) => none.insert(read),
                Err(error) => return Ok(Some(format!("secrets can't be opened: {error}"))),
            },
        };
        for row in page {
            match open(&row, ring) {
                Ok(value) => {
                    values.entry(row.project_id).or_default().extend(telling(&value, row.expose.as_ref()));
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
    Ok(failed.map(|error| format!("{count} secrets can't be opened; of the first: {error}")))
}

/// The ones that a sandbox names, each with its name as it stands there.
pub(super) async fn named(
    tx: &mut dyn Tx,
    project: ProjectId,
    settings: &Settings,
) -> Result<Vec<(String, Option<Secret>)>> {
    let mut found = Vec::new();
    for name in settings.secrets.iter().flatten() {
        found.push((name.clone(), secrets::find(tx, project, name).await?));
    }
    Ok(found)
}

fn refuse(detail: String) -> Problem {
    Problem::invalid(detail).with("field", "secrets")
}

/// Before a sandbox is made: what it names is there and can be had, and it is written down what it will see.
pub async fn check(work: &mut Work<'_>, project: ProjectId, settings: &mut Settings) -> Result<()> {
    if settings.secrets.as_ref().is_none_or(Vec::is_empty) {
        settings.exposed_secrets.clear();
        return Ok(());
    }
    let (mut exposed, mut taken, mut ring) = (Vec::new(), BTreeMap::new(), None);
    for (name, row) in named(work.tx, project, settings).await? {
        secret::name("secrets", &name)?;
        let Some(row) = row else {
            let detail = format!("secrets: there is no secret `{name}`; make it with `atoll secret set {name}`");
            return Err(refuse(detail).with("secret", name));
        };
        let Some(exposure) = &row.expose else { continue };
        let what = match exposure {
            Exposure::Variable(variable) if settings.env.contains_key(variable) => {
                return Err(refuse(format!("secrets: `{name}` is the variable `{variable}`, which `env` sets too")));
            }
            Exposure::Variable(_) => "variable",
            Exposure::File(_) => "file",
        };
        if let Some(other) = taken.insert(exposure.clone(), name.clone()).filter(|other| *other != name) {
            return Err(refuse(format!("secrets: `{name}` and `{other}` are both the {what} `{exposure}`")));
        }
        let files = taken.keys().filter(|exposure| matches!(exposure, Exposure::File(_))).count();
        if files > login::FILES {
            return Err(refuse(format!("secrets: a sandbox has at most {} login files", login::FILES)));
        }
        let ring = match &mut ring {
            Some(ring) => ring,
            none => none.insert(work.secrets.keys()?),
        };
        open(&row, ring)?;
        exposed.push(name);
    }
    exposed.sort_unstable();
    exposed.dedup();
    settings.exposed_secrets = exposed;
    Ok(())
}

/// Says in the log what the sandbox holds from now on, by name.
pub(super) fn exposure(work: &Work<'_>, told: &[(String, Exposure)]) -> NewEvent {
    let words: Vec<String> = told.iter().map(|(name, exposure)| format!("{name} as {exposure}")).collect();
    let list: Vec<_> = told
        .iter()
        .map(|(name, exposure)| match exposure {
            Exposure::Variable(variable) => json!({ "name": name, "variable": variable }),
            Exposure::File(path) => json!({ "name": name, "file": path }),
        })
        .collect();
    let data = json!({ "text": format!("inside, for whoever works there: {}", words.join(", ")), "secrets": list });
    NewEvent::system("secrets.exposed", work.now, &data)
}

/// The variables that a starting sandbox gets. They are in no row and no event; that it has them is in both. Files are
/// handed over before each prompt (`logins`).
pub async fn hand_over(work: &mut Work<'_>, sandbox: &mut Sandbox) -> Result<BTreeMap<String, String>> {
    let mut variables = BTreeMap::new();
    if sandbox.settings.secrets.as_ref().is_none_or(Vec::is_empty) {
        return Ok(variables);
    }
    let (mut names, mut told, mut values, mut ring) = (Vec::new(), Vec::new(), Vec::new(), None);
    let mut events = Vec::new();
    for (name, row) in named(work.tx, sandbox.project_id, &sandbox.settings).await? {
        let opened = match &row {
            None => Err(format!("the secret `{name}` was removed since; the sandbox goes on without it")),
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
                    none => work.secrets.keys().map(|read| none.insert(read)),
                };
                let value = ring.and_then(|ring| open(row, ring)).map_err(|error| error.to_string());
                value.map(|value| (variable.clone(), value))
            }
        };
        match opened {
            Ok((variable, value)) => {
                told.push((name.clone(), Exposure::Variable(variable.clone())));
                // A variable that the sandbox's own settings have since taken stays theirs.
                if !sandbox.settings.env.contains_key(&variable) {
                    variables.insert(variable, value.expose_secret().to_owned());
                }
                values.push(value);
                names.push(name);
            }
            Err(text) => events.push(NewEvent::system("sandbox.notice", work.now, &json!({ "text": text }))),
        }
    }
    // Before the sandbox can show them to anybody.
    work.secrets.learn(Some(sandbox.project_id), &values);
    if !told.is_empty() {
        events.push(exposure(work, &told));
    }
    names.sort_unstable();
    names.dedup();
    if sandbox.settings.exposed_secrets != names {
        sandbox.settings.exposed_secrets = names;
        sandboxes::set_settings(work.tx, sandbox).await?;
    }
    if !events.is_empty() {
        work.log(sandbox, events).await?;
        sandboxes::update(work.tx, sandbox).await?;
    }
    Ok(variables)
}
