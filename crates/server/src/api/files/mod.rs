//! `/sandboxes/{id}/files`: what is in a sandbox, as its agent may see it. Everything is done by a helper inside, with
//! the agent's rights; what comes out is only passed on.

pub mod content;
mod range;
pub mod tree;

use crate::auth::{Caller, access};
use crate::cursor;
use crate::extract::{Body, Id, Params, page_size};
use crate::problem::{Code, Problem, Result};
use crate::providers::Providers;
use crate::state::App;
use atoll_core::event::{NewEvent, Source, kind};
use atoll_core::id::SandboxId;
use atoll_core::principal::Action;
use atoll_core::provider::files::{FileEntry, FileKind, bad_path};
use atoll_core::provider::{ByteStream, FileDone, FileError, FileFault, FileJob, Provider, ProviderId};
use atoll_core::sandbox::{ProviderKind, SandboxState};
use atoll_core::time::Timestamp;
use atoll_store::sandboxes;
use axum::extract::State;
use futures_util::{StreamExt, stream};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, PoisonError};

/// One entry of a sandbox's file system.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct SandboxFile {
    /// Bytes that are not UTF-8 stand as `\xNN`.
    name: String,
    /// The name's bytes in hexadecimal, where it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    name_hex: Option<String>,
    kind: FileKind,
    size: u64,
    /// Permission bits, in octal.
    mode: String,
    modified_at: Timestamp,
    /// What a link points to.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

impl From<FileEntry> for SandboxFile {
    fn from(entry: FileEntry) -> Self {
        Self {
            name: entry.name,
            name_hex: entry.name_hex,
            kind: entry.kind,
            size: entry.size,
            mode: format!("{:04o}", entry.mode & 0o7777),
            modified_at: Timestamp::from_micros(entry.modified.div_euclid(1000)),
            target: entry.target,
        }
    }
}

impl From<FileError> for Problem {
    fn from(error: FileError) -> Self {
        let code = match error.fault {
            FileFault::NotFound => Code::FileNotFound,
            FileFault::IsDirectory => Code::FileIsDirectory,
            FileFault::NotADirectory => Code::NotADirectory,
            FileFault::Denied => Code::FileDenied,
            FileFault::Exists => Code::FileExists,
            FileFault::NotEmpty => Code::DirectoryNotEmpty,
            FileFault::NoSpace => Code::SandboxFull,
            FileFault::UnsupportedKind => Code::FileUnsupported,
            FileFault::Changed => Code::FileChanged,
            FileFault::TooLong | FileFault::BadContent => Code::Invalid,
            FileFault::Failed => Code::ProviderRefused,
        };
        Self::new(code, error.detail)
    }
}

/// A sandbox that is there, at its provider.
struct Place {
    sandbox: SandboxId,
    kind: ProviderKind,
    at: ProviderId,
    actor: String,
    providers: Arc<Providers>,
}

impl Place {
    /// If the caller may do this with the sandbox's files.
    async fn find(app: &App, caller: Caller, sandbox: SandboxId, action: Action) -> Result<Self> {
        let (actor, providers) = (caller.actor(), app.providers()?);
        app.read(move |tx| {
            Box::pin(async move {
                access::sandbox(tx, &caller, sandbox, action).await?;
                let row = sandboxes::get(tx, sandbox).await?.ok_or_else(|| Problem::not_found("sandbox"))?;
                crate::app::pausing::refuse_paused(&row)?;
                let gone = || {
                    Problem::new(Code::SandboxGone, "there is nothing of it to look into")
                        .with("state", row.state.as_str())
                };
                let at = super::diff::at_provider(&row).filter(|_| row.state != SandboxState::Pending);
                let (kind, at) = at.ok_or_else(gone)?;
                Ok(Self { sandbox, kind, at, actor, providers })
            })
        })
        .await
    }

    fn provider(&self) -> &dyn Provider {
        self.providers.get(self.kind)
    }

    async fn run(&self, job: &FileJob) -> Result<FileDone> {
        Ok(self.provider().files(&self.at, job).await??)
    }

    /// What a person did to the files, for the log.
    async fn log(&self, app: &App, event_type: &'static str, data: Value) -> Result<()> {
        let (id, actor) = (self.sandbox, self.actor.clone());
        app.write(move |work| {
            Box::pin(async move {
                let (_, mut sandbox) = work.locked(id).await?;
                let event = NewEvent::system(event_type, work.now, &data).by(Source::User, Some(actor));
                work.log(&mut sandbox, vec![event]).await?;
                Ok(sandboxes::update(work.tx, &mut sandbox).await?)
            })
        })
        .await
    }
}

fn checked(path: &str) -> Result<()> {
    match bad_path(path) {
        Some(error) => Err(Problem::invalid(format!("path: {}", error.detail))),
        None => Ok(()),
    }
}

/// The body of a request on its way to a provider. What the provider leaves of it can still be read here: a client
/// that is sending would else see a broken connection in place of the answer.
struct Sent(Arc<Mutex<axum::body::BodyDataStream>>);

impl Sent {
    fn new(body: axum::body::Body) -> Self {
        Self(Arc::new(Mutex::new(body.into_data_stream())))
    }

    fn data(&self) -> ByteStream {
        let body = Arc::clone(&self.0);
        let broken = |_| atoll_core::provider::Error::Refused { detail: "the body broke off".to_owned() };
        Box::pin(stream::poll_fn(move |context| {
            let mut body = body.lock().unwrap_or_else(PoisonError::into_inner);
            body.poll_next_unpin(context).map(|piece| piece.map(|piece| piece.map_err(broken)))
        }))
    }

    async fn drain(self) {
        // The provider is done with it, so nobody else has it.
        if let Some(body) = Arc::into_inner(self.0) {
            let body = body.into_inner().unwrap_or_else(PoisonError::into_inner);
            crate::extract::drain(axum::body::Body::from_stream(body)).await;
        }
    }
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PathQuery {
    /// Absolute inside the sandbox, or relative to its workspace.
    path: String,
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListQuery {
    /// A directory; the workspace unless named.
    path: Option<String>,
    /// How many entries, 1 to 1000.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

/// List a directory of a sandbox, sorted by name.
#[utoipa::path(get, path = "/sandboxes/{id}/files/list", tag = "files", params(("id" = SandboxId, Path), ListQuery),
    responses((status = 200, body = super::Page<SandboxFile>)))]
pub async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Params(query): Params<ListQuery>,
) -> Result<axum::Json<super::Page<SandboxFile>>> {
    let path = query.path.unwrap_or_else(|| ".".to_owned());
    checked(&path)?;
    let limit = u32::try_from(page_size(query.limit, 200, 1000)?).unwrap_or(200);
    let place = Place::find(&app, caller, id, Action::See).await?;
    let after = cursor::read("files", query.cursor.as_deref())?;
    match place.run(&FileJob::List { path, after, limit }).await? {
        FileDone::Listed { entries, next } => Ok(axum::Json(super::Page {
            items: entries.into_iter().map(SandboxFile::from).collect(),
            next_cursor: next.map(|next| cursor::write("files", &next)),
        })),
        FileDone::Seen(_) | FileDone::Done => Err(Problem::internal("a list of files without a list")),
    }
}

/// Look at one file, directory or link; a link is not followed.
#[utoipa::path(get, path = "/sandboxes/{id}/files/stat", tag = "files", params(("id" = SandboxId, Path), PathQuery),
    responses((status = 200, body = SandboxFile)))]
pub async fn stat(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Params(PathQuery { path }): Params<PathQuery>,
) -> Result<axum::Json<SandboxFile>> {
    checked(&path)?;
    let place = Place::find(&app, caller, id, Action::See).await?;
    match place.run(&FileJob::Stat { path }).await? {
        FileDone::Seen(entry) => Ok(axum::Json(entry.into())),
        FileDone::Listed { .. } | FileDone::Done => Err(Problem::internal("a look at a file without a file")),
    }
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveFile {
    from: String,
    to: String,
    /// What is at `to` goes.
    #[serde(default)]
    replace: bool,
}

/// Move or rename a file or directory.
#[utoipa::path(post, path = "/sandboxes/{id}/files/move", tag = "files", params(("id" = SandboxId, Path)),
    request_body = MoveFile, responses((status = 200)))]
pub async fn rename(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Body { value: MoveFile { from, to, replace }, .. }: Body<MoveFile>,
) -> Result<axum::Json<Value>> {
    checked(&from)?;
    checked(&to)?;
    let place = Place::find(&app, caller, id, Action::Work).await?;
    let told = json!({ "from": from, "to": to });
    place.run(&FileJob::Move { from, to, replace }).await?;
    place.log(&app, kind::FILES_MOVED, told.clone()).await?;
    Ok(axum::Json(told))
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewDirectory {
    path: String,
}

/// Make a directory, with those above it; one that is there is as good.
#[utoipa::path(post, path = "/sandboxes/{id}/files/directory", tag = "files", params(("id" = SandboxId, Path)),
    request_body = NewDirectory, responses((status = 200)))]
pub async fn make_directory(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Body { value: NewDirectory { path }, .. }: Body<NewDirectory>,
) -> Result<axum::Json<Value>> {
    checked(&path)?;
    let place = Place::find(&app, caller, id, Action::Work).await?;
    let told = json!({ "path": path });
    place.run(&FileJob::MakeDirectory { path }).await?;
    place.log(&app, kind::FILES_MADE, told.clone()).await?;
    Ok(axum::Json(told))
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct DeleteQuery {
    /// Absolute inside the sandbox, or relative to its workspace.
    path: String,
    /// A directory with everything in it.
    #[serde(default)]
    recursive: bool,
}

/// Delete a file, a link, or a directory.
#[utoipa::path(delete, path = "/sandboxes/{id}/files", tag = "files", params(("id" = SandboxId, Path), DeleteQuery),
    responses((status = 200)))]
pub async fn delete(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Params(DeleteQuery { path, recursive }): Params<DeleteQuery>,
) -> Result<axum::Json<Value>> {
    checked(&path)?;
    let place = Place::find(&app, caller, id, Action::Work).await?;
    let told = json!({ "path": path });
    place.run(&FileJob::Delete { path, recursive }).await?;
    place.log(&app, kind::FILES_DELETED, told.clone()).await?;
    Ok(axum::Json(told))
}
