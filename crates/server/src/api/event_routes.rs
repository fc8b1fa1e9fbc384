//! `/sandboxes/{id}/events`, `/trajectory`, `/transcript` and `/logs`: the event log and what is derived from it.

use crate::app::{event_log, log_export, transcript_export};
use crate::auth::access::CanSee;
use crate::extract::Params;
use crate::problem::Result;
use crate::state::App;
use atoll_api::events::AnyEvent;
use atoll_api::{EventsQuery, LogQuery, Page, Trajectory, TrajectoryQuery, TranscriptForm, TranscriptQuery};
use atoll_core::event::Event;
use atoll_core::id::SandboxId;
use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;

/// List a sandbox's events.
///
/// A page can be shorter than `limit`, even empty, and still have a `next_cursor`.
#[utoipa::path(get, path = "/sandboxes/{id}/events", tag = "events", params(("id" = SandboxId, Path), EventsQuery),
    responses((status = 200, body = Page<AnyEvent>)))]
pub async fn list_events(
    State(app): State<Arc<App>>,
    access: CanSee<SandboxId>,
    Params(query): Params<EventsQuery>,
) -> Result<Json<Page<Event>>> {
    event_log::list_events(&app, access, query).await.map(Json)
}

/// Show the agent's work, without heartbeats and usage reports.
#[utoipa::path(get, path = "/sandboxes/{id}/trajectory", tag = "events", params(("id" = SandboxId, Path), TrajectoryQuery),
    responses((status = 200, body = Trajectory)))]
pub async fn read_trajectory(
    State(app): State<Arc<App>>,
    access: CanSee<SandboxId>,
    Params(query): Params<TrajectoryQuery>,
) -> Result<Json<Trajectory>> {
    event_log::read_trajectory(&app, access, query).await.map(Json)
}

/// Export the conversation of a sandbox.
///
/// `portable` is a JSON document: `format`, `version`, a header, and `entries`, oldest first. `native` is the agent's own
/// file, if it writes one.
#[utoipa::path(get, path = "/sandboxes/{id}/transcript", tag = "events",
    params(("id" = SandboxId, Path), TranscriptQuery),
    responses((status = 200, body = Object)))]
pub async fn export_transcript(
    State(app): State<Arc<App>>,
    access: CanSee<SandboxId>,
    Params(query): Params<TranscriptQuery>,
) -> Result<Response> {
    match query.form {
        TranscriptForm::Portable => {
            let content = transcript_export::export_portable(app, access).await?;
            Ok(([(header::CONTENT_TYPE, "application/json")], content).into_response())
        }
        TranscriptForm::Native => {
            let transcript = transcript_export::export_native(&app, access).await?;
            let headers = [
                (header::CONTENT_TYPE, transcript.content_type.to_owned()),
                (header::CONTENT_LENGTH, transcript.size.to_string()),
                (header::CONTENT_DISPOSITION, "attachment".to_owned()),
            ];
            Ok((headers, transcript.content).into_response())
        }
    }
}

/// Export the event log as text: one line per event, with its time, seq, type and most telling field.
///
/// The lines are made for people and terminals; programs read `events`.
#[utoipa::path(get, path = "/sandboxes/{id}/logs", tag = "events", params(("id" = SandboxId, Path), LogQuery),
    responses((status = 200, body = String, content_type = "text/plain")))]
pub async fn export_log(
    State(app): State<Arc<App>>,
    access: CanSee<SandboxId>,
    Params(query): Params<LogQuery>,
) -> Result<Response> {
    let content = log_export::export_log(app, access, query).await?;
    Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], content).into_response())
}
