//! Login files: what a worker writes into the agent's home before each prompt, as it is now.

use super::secrets::{exposure, named};
use super::{Work, fence, inbox};
use crate::extract::hash_of;
use crate::problem::Result;
use crate::secrets::keys::Ring;
use crate::secrets::seal::open;
use crate::secrets::telling;
use atoll_core::event::NewEvent;
use atoll_core::id::SandboxId;
use atoll_core::login;
use atoll_core::secret::Exposure;
use atoll_protocol::{LoginFile, LoginsAnswer, LoginsRequest};
use atoll_store::sandboxes::{self, Sandbox};
use atoll_store::secrets::Secret;
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};

/// What was gathered for one worker.
#[derive(Default)]
struct Gathered {
    files: Vec<LoginFile>,
    told: Vec<(String, Exposure)>,
    /// Why something that is there could not be had.
    missing: Vec<String>,
    values: Vec<SecretString>,
    /// Of what all this was made; nothing of a value.
    made_of: Vec<Value>,
}

/// The files that the sandbox's agent finds from now on. That it has them stands in its row, and in its log whenever
/// they are others than the worker knows.
pub async fn hand_over(work: &mut Work<'_>, id: SandboxId, request: &LoginsRequest) -> Result<LoginsAnswer> {
    let (session, mut sandbox) = work.locked(id).await?;
    inbox::refuse_ended(&sandbox)?;
    let before = (sandbox.stream, sandbox.boot);
    fence::admit(work, &session, &mut sandbox, request.stream, request.boot).await?;
    let is_new_worker = before != (sandbox.stream, sandbox.boot);
    let gathered = gather(work, &sandbox).await?;
    // Before the sandbox can show them to anybody.
    work.secrets.learn(Some(sandbox.project_id), &gathered.values);
    let version = hash_of(Value::from(gathered.made_of).to_string().as_bytes());
    let mut events = Vec::new();
    if request.known.as_ref() != Some(&version) {
        let notice = |text: &String| NewEvent::system("sandbox.notice", work.now, &json!({ "text": text }));
        events.extend(gathered.missing.iter().map(notice));
        if !gathered.told.is_empty() {
            events.push(exposure(work, &gathered.told));
        }
    }
    mark(work, &mut sandbox, &gathered.told).await?;
    if is_new_worker || !events.is_empty() {
        work.log(&mut sandbox, events).await?;
        sandboxes::update(work.tx, &mut sandbox).await?;
    }
    Ok(LoginsAnswer { files: gathered.files, version })
}

async fn gather(work: &mut Work<'_>, sandbox: &Sandbox) -> Result<Gathered> {
    let (mut all, mut ring) = (Gathered::default(), None);
    for (name, row) in named(work.tx, sandbox.project_id, &sandbox.settings).await? {
        let Some((row, path)) = row.as_ref().and_then(|row| Some((row, file(row)?))) else { continue };
        if all.told.iter().any(|(other, _)| *other == name) {
            continue;
        }
        let ring = match &mut ring {
            Some(ring) => ring,
            none => none.insert(work.secrets.keys().map_err(|error| error.to_string())),
        };
        let made = if all.files.len() < login::FILES {
            made(row, path, ring)
        } else {
            Err(format!("the secret `{name}` is one login file too many; a sandbox has at most {}", login::FILES))
        };
        match made {
            Ok((file, values)) => {
                all.made_of.push(json!([row.id, row.updated_at, path]));
                all.values.extend(values);
                all.files.push(file);
                all.told.push((name, Exposure::File(path.to_owned())));
            }
            Err(why) => {
                all.made_of.push(json!([row.id, why]));
                all.missing.push(why);
            }
        }
    }
    Ok(all)
}

fn file(row: &Secret) -> Option<&str> {
    match row.expose.as_ref()? {
        Exposure::File(path) => Some(path),
        Exposure::Variable(_) => None,
    }
}

/// The file as the sandbox gets it, and all that must not be seen of it.
fn made(row: &Secret, path: &str, ring: &Result<Ring, String>) -> Result<(LoginFile, Vec<SecretString>), String> {
    let ring = ring.as_ref().map_err(Clone::clone)?;
    let value = open(row, ring).map_err(|error| error.to_string())?;
    let text = login::blanked(value.expose_secret())
        .ok_or_else(|| format!("the secret `{}` is no JSON, and so no login file; set it again", row.name))?;
    Ok((LoginFile { path: path.to_owned(), text }, telling(&value, row.expose.as_ref())))
}

/// One that became a file since the sandbox began is exposed from now on.
async fn mark(work: &mut Work<'_>, sandbox: &mut Sandbox, told: &[(String, Exposure)]) -> Result<()> {
    let marked = &mut sandbox.settings.exposed_secrets;
    let before = marked.len();
    for (name, _) in told {
        if !marked.contains(name) {
            marked.push(name.clone());
        }
    }
    if marked.len() != before {
        marked.sort_unstable();
        sandboxes::set_settings(work.tx, sandbox).await?;
    }
    Ok(())
}
