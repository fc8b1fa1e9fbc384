//! Open ports of sandboxes, and the links to them.

use super::Work;
use super::targets::{SandboxTarget, absence_problem, find_sandbox, load_sandbox};
use super::{pausing, sign_ins};
use crate::auth::access::{self, CanSee, CanWork};
use crate::auth::token_format::hash_secret;
use crate::auth::{self, Caller};
use crate::idempotency::JsonResponse;
use crate::previews::PreviewRefusal;
use crate::previews::hosts::generate_token;
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_api::events::{EventData, PortClosed, PortOpened, PreviewCreated, PreviewRevoked};
use atoll_api::{NewPreview, Port, PortList, Preview, PreviewList};
use atoll_core::event::{EventSource, NewEvent, kind};
use atoll_core::id::{PreviewId, SandboxId};
use atoll_core::principal::ProjectAction;
use atoll_core::provider::{PortAbility, ProviderId};
use atoll_core::sandbox::SandboxState;
use atoll_protocol::PROXY_PORT;
use atoll_store::open_ports::{self, OpenPort};
use atoll_store::previews::{self, PreviewRow};
use atoll_store::sandboxes::{self, SandboxRow};
use std::time::Duration;

/// Ports that the server remembers per sandbox.
const MAX_OPEN_PORTS: i64 = 128;
const MAX_PROGRAM_CHARS: usize = 64;
/// Previews per sandbox; a new one replaces the oldest.
const MAX_PREVIEWS: usize = 32;
const MAX_LIFETIME_S: u32 = 7 * 24 * 3600;

/// Records what a worker reports about its sandbox's ports.
pub async fn observe_event(work: &mut Work<'_>, sandbox: &SandboxRow, event: &NewEvent) -> Result<()> {
    let data = event.data.get();
    match event.event_type.as_str() {
        kind::PREVIEW_PORT_OPENED => {
            let Ok(PortOpened { port, program }) = serde_json::from_str(data) else { return Ok(()) };
            let program = program.map(|name| name.chars().take(MAX_PROGRAM_CHARS).collect());
            let open = OpenPort { port, program, opened_at: event.at };
            Ok(open_ports::put_open_port(work.tx, sandbox.id, &open, MAX_OPEN_PORTS).await?)
        }
        kind::PREVIEW_PORT_CLOSED => {
            let Ok(PortClosed { port }) = serde_json::from_str(data) else { return Ok(()) };
            Ok(open_ports::delete_open_port(work.tx, sandbox.id, port).await?)
        }
        _ => Ok(()),
    }
}

/// The ports on which programs of a sandbox listen: none unless it runs.
pub async fn list_ports_of(app: &App, row: &SandboxRow) -> Result<Vec<OpenPort>> {
    if row.state != SandboxState::Running {
        return Ok(Vec::new());
    }
    let id = row.id;
    app.read(async move |tx| Ok(open_ports::list_open_ports(tx, id).await?)).await
}

pub async fn list_ports(app: &App, access: CanSee<SandboxId>) -> Result<PortList> {
    let ports = list_ports_of(app, &load_sandbox(app, &access).await?).await?;
    let items = ports.into_iter().map(|OpenPort { port, program, opened_at }| Port { port, program, opened_at });
    Ok(PortList { items: items.collect() })
}

/// Creates a link to a port. `authority` is the host and port by which the caller reaches the server.
pub async fn create_preview(
    app: &App,
    access: CanWork<SandboxId>,
    new: NewPreview,
    authority: &str,
) -> Result<JsonResponse> {
    if new.port == 0 || new.port == PROXY_PORT {
        return Err(Problem::invalid(format!("port: from 1 to 65535, without {PROXY_PORT}, which Atoll uses")));
    }
    if new.ttl_s.is_some_and(|seconds| !(1..=MAX_LIFETIME_S).contains(&seconds)) {
        return Err(Problem::invalid(format!("ttl_s: from 1 to {MAX_LIFETIME_S}")));
    }
    let row = load_sandbox(app, &access).await?;
    let provider = app.providers()?.get(row.provider);
    if provider.capabilities().ports == PortAbility::None {
        let detail = format!("the provider {} cannot connect to ports", provider.kind());
        return Err(Problem::new(Code::ProviderUnsupported, detail));
    }
    let token = generate_token();
    let url = app.preview_hosts.preview_url(&token, authority).ok_or_else(|| {
        let detail = format!("a browser reaches no preview of {authority}: set preview.domain, or use localhost");
        Problem::invalid(detail)
    })?;
    let lifetime = new.ttl_s.map_or(app.config.preview.lifetime, |seconds| Duration::from_secs(seconds.into()));
    let (id, port, hash, actor) = (access.id, new.port, hash_secret(&token), access.actor());
    let (holder, sign_in) = (access.caller.principal.token(), access.caller.sign_in);
    // A stored response would contain the link.
    app.write(async move |work| {
        let (_, mut sandbox) = work.lock_sandbox(id).await?;
        if sandbox.state.has_ended() {
            return Err(Problem::new(Code::SandboxEnded, "the sandbox has ended, so its ports are closed"));
        }
        let known = previews::list_previews(work.tx, id, work.now).await?;
        for oldest in known.iter().take((known.len() + 1).saturating_sub(MAX_PREVIEWS)) {
            previews::delete_preview(work.tx, oldest.id).await?;
        }
        let expires_at = work.now + lifetime;
        let preview = PreviewRow {
            id: PreviewId::new(),
            sandbox: id,
            port,
            hash,
            token: holder,
            sign_in,
            created_at: work.now,
            expires_at,
        };
        previews::insert_preview(work.tx, &preview).await?;
        let created = EventData::PreviewCreated(PreviewCreated { preview_id: preview.id, port, expires_at });
        log_event(work, &mut sandbox, created, actor).await?;
        JsonResponse::created(Preview { url: Some(url), ..view_preview(preview) })
    })
    .await
}

async fn log_event(work: &mut Work<'_>, sandbox: &mut SandboxRow, data: EventData, actor: String) -> Result<()> {
    let event = data.into_event(work.now).with_source(EventSource::User, Some(actor));
    work.log(sandbox, vec![event]).await?;
    sandbox.updated_at = work.now;
    Ok(sandboxes::update_sandbox(work.tx, sandbox).await?)
}

fn view_preview(row: PreviewRow) -> Preview {
    let PreviewRow { id, port, created_at, expires_at, .. } = row;
    Preview { id, port, url: None, created_at, expires_at }
}

pub async fn list_sandbox_previews(app: &App, access: CanSee<SandboxId>) -> Result<PreviewList> {
    let (id, now) = (access.id, app.clock.now());
    let rows = app.read(async move |tx| Ok(previews::list_previews(tx, id, now).await?)).await?;
    Ok(PreviewList { items: rows.into_iter().map(view_preview).collect() })
}

/// Revokes a preview. Its open connections end at once.
pub async fn revoke_preview(app: &App, access: CanWork<SandboxId>, preview: PreviewId) -> Result<Preview> {
    let (id, actor) = (access.id, access.actor());
    let revoked = app
        .write(async move |work| {
            let (_, mut sandbox) = work.lock_sandbox(id).await?;
            let known = previews::list_previews(work.tx, id, work.now).await?;
            let row = known.into_iter().find(|row| row.id == preview);
            let row = row.ok_or_else(|| Problem::not_found("preview"))?;
            previews::delete_preview(work.tx, preview).await?;
            let revoked = EventData::PreviewRevoked(PreviewRevoked { preview_id: preview, port: row.port });
            log_event(work, &mut sandbox, revoked, actor).await?;
            Ok(view_preview(row))
        })
        .await?;
    app.tokens.forget();
    Ok(revoked)
}

/// A preview whose creator still has access and whose sandbox runs.
pub struct OpenPreview {
    row: PreviewRow,
    /// Its creator.
    pub caller: Caller,
    pub target: SandboxTarget,
}

impl OpenPreview {
    pub const fn port(&self) -> u16 {
        self.row.port
    }

    pub const fn sandbox(&self) -> SandboxId {
        self.row.sandbox
    }

    pub fn remaining(&self, app: &App) -> Duration {
        self.row.expires_at.elapsed_since(app.clock.now())
    }
}

/// Finds the preview of a link and checks everything that it requires.
pub async fn find_preview(app: &App, token: &str) -> Result<OpenPreview, PreviewRefusal> {
    let (hash, now, idle_since) = (hash_secret(token), app.clock.now(), sign_ins::idle_since(app));
    let found = app.read(async move |tx| {
        let Some(row) = previews::find_by_hash(tx, &hash).await? else { return Ok(None) };
        if row.expires_at <= now {
            return Ok(Some((row, None)));
        }
        let principal = auth::current_principal(tx, row.token, row.sign_in, now, idle_since).await?;
        let caller = Caller { principal, is_local: false, sign_in: row.sign_in };
        access::check_sandbox(tx, &caller, row.sandbox, ProjectAction::UseSandboxes).await?;
        Ok(Some((row, Some(caller))))
    });
    let (row, caller) = found.await?.ok_or(PreviewRefusal::Unknown)?;
    let caller = caller.ok_or(PreviewRefusal::Expired)?;
    let mut sandbox = find_sandbox(app, row.sandbox).await?;
    if sandbox.state.has_ended() {
        return Err(PreviewRefusal::SandboxEnded);
    }
    if pausing::is_asleep(&sandbox) {
        pausing::wake_idle(app, row.sandbox).await?;
        sandbox = find_sandbox(app, row.sandbox).await?;
    }
    pausing::require_not_paused(&sandbox)?;
    let Some(id) = sandbox.provider_id.clone().filter(|_| sandbox.state == SandboxState::Running) else {
        return Err(absence_problem(&sandbox).into());
    };
    let provider = app.providers()?.get(sandbox.provider);
    Ok(OpenPreview { row, caller, target: SandboxTarget { row: sandbox, provider, id: ProviderId(id) } })
}
