//! Login files: the worker fetches their current content before each prompt and writes it into the agent's home.

use super::secrets::{exposure_event, named_secrets};
use super::{Work, fence, inbox};
use crate::extract::sha256_hex;
use crate::problem::Result;
use crate::secrets::seal::open_secret;
use crate::secrets::seal_keys::KeyRing;
use crate::secrets::secret_texts;
use crate::state::App;
use atoll_api::events::{EventData, SandboxNotice};
use atoll_core::id::SandboxId;
use atoll_core::login;
use atoll_core::secret::Exposure;
use atoll_protocol::{LoginFile, LoginsAnswer, LoginsRequest};
use atoll_store::sandboxes::{self, SandboxRow};
use atoll_store::secrets::SecretRow;
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};

/// The login files for one worker.
#[derive(Default)]
struct CollectedLogins {
    files: Vec<LoginFile>,
    exposed: Vec<(String, Exposure)>,
    /// Why some files could not be built.
    missing: Vec<String>,
    values: Vec<SecretString>,
    /// Input of the version hash; contains no secret value.
    version_parts: Vec<Value>,
}

pub async fn fetch_logins(app: &App, id: SandboxId, request: LoginsRequest) -> Result<LoginsAnswer> {
    app.write(async move |work| hand_over_logins(work, id, &request).await).await
}

/// Returns the current login files. Marks them as exposed in the row, and logs them when the worker has other ones.
async fn hand_over_logins(work: &mut Work<'_>, id: SandboxId, request: &LoginsRequest) -> Result<LoginsAnswer> {
    let (session, mut sandbox) = work.lock_sandbox(id).await?;
    inbox::require_not_ended(&sandbox)?;
    let before = (sandbox.stream, sandbox.boot);
    fence::admit_stream(work, &session, &mut sandbox, request.stream, request.boot).await?;
    let is_new_worker = before != (sandbox.stream, sandbox.boot);
    let gathered = collect_logins(work, &sandbox).await?;
    // Teach the redactor before the values can leave the sandbox.
    work.secrets.learn(Some(sandbox.project_id), &gathered.values);
    let version = sha256_hex(Value::from(gathered.version_parts).to_string().as_bytes());
    let mut events = Vec::new();
    if request.known.as_ref() != Some(&version) {
        let notices = gathered.missing.into_iter().map(|text| SandboxNotice { text, routine: false });
        events.extend(notices.map(|notice| EventData::SandboxNotice(notice).into_event(work.now)));
        if !gathered.exposed.is_empty() {
            events.push(exposure_event(work, &gathered.exposed));
        }
    }
    mark_exposed(work, &mut sandbox, &gathered.exposed).await?;
    if is_new_worker || !events.is_empty() {
        work.log(&mut sandbox, events).await?;
        sandboxes::update_sandbox(work.tx, &mut sandbox).await?;
    }
    Ok(LoginsAnswer { files: gathered.files, version })
}

async fn collect_logins(work: &mut Work<'_>, sandbox: &SandboxRow) -> Result<CollectedLogins> {
    let (mut all, mut ring) = (CollectedLogins::default(), None);
    for (name, row) in named_secrets(work.tx, sandbox.project_id, &sandbox.settings).await? {
        let Some((row, path)) = row.as_ref().and_then(|row| Some((row, login_path(row)?))) else { continue };
        if all.exposed.iter().any(|(other, _)| *other == name) {
            continue;
        }
        let ring = match &mut ring {
            Some(ring) => ring,
            none => none.insert(work.secrets.key_ring().map_err(|error| error.to_string())),
        };
        let result = if all.files.len() < login::MAX_LOGIN_FILES {
            build_login_file(row, path, ring)
        } else {
            Err(format!("the secret `{name}` exceeds the limit of {} login files per sandbox", login::MAX_LOGIN_FILES))
        };
        match result {
            Ok((file, values)) => {
                all.version_parts.push(json!([row.id, row.updated_at, path]));
                all.values.extend(values);
                all.files.push(file);
                all.exposed.push((name, Exposure::File(path.to_owned())));
            }
            Err(why) => {
                all.version_parts.push(json!([row.id, why]));
                all.missing.push(why);
            }
        }
    }
    Ok(all)
}

fn login_path(row: &SecretRow) -> Option<&str> {
    match row.expose.as_ref()? {
        Exposure::File(path) => Some(path),
        Exposure::Variable(_) => None,
    }
}

/// Builds the file as the sandbox gets it, and the values that the redactor must know.
fn build_login_file(
    row: &SecretRow,
    path: &str,
    ring: &Result<KeyRing, String>,
) -> Result<(LoginFile, Vec<SecretString>), String> {
    let ring = ring.as_ref().map_err(Clone::clone)?;
    let value = open_secret(row, ring).map_err(|error| error.to_string())?;
    let text = login::blank_refresh_tokens(value.expose_secret())
        .ok_or_else(|| format!("the secret `{}` is not JSON, so it cannot be a login file; set it again", row.name))?;
    Ok((LoginFile { path: path.to_owned(), text }, secret_texts(&value, row.expose.as_ref())))
}

/// Marks secrets as exposed that became files since the sandbox started.
async fn mark_exposed(work: &mut Work<'_>, sandbox: &mut SandboxRow, exposures: &[(String, Exposure)]) -> Result<()> {
    let marked = &mut sandbox.settings.exposed_secrets;
    let before = marked.len();
    for (name, _) in exposures {
        if !marked.contains(name) {
            marked.push(name.clone());
        }
    }
    if marked.len() != before {
        marked.sort_unstable();
        sandboxes::update_settings(work.tx, sandbox).await?;
    }
    Ok(())
}
