//! `/sandboxes/{id}/results`: what came out of a sandbox.

use super::sandboxes::SandboxView;
use crate::app::results;
use crate::auth::{Caller, access};
use crate::extract::Id;
use crate::once::{Answer, Once};
use crate::problem::{Problem, Result};
use crate::state::App;
use atoll_core::event::TypePattern;
use atoll_core::id::SandboxId;
use atoll_core::principal::Action;
use atoll_core::sandbox::SandboxState;
use atoll_store::{events, sandboxes};
use axum::extract::State;
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Taken {
    /// What is out of it now.
    taken: Vec<TakenResult>,
    sandbox: SandboxView,
}

/// One thing that came out of a sandbox.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum TakenResult {
    Branch { branch: String, commit: String, repo: Option<String> },
}

/// The branches that the log tells of.
async fn taken(app: &App, id: SandboxId) -> Result<Taken> {
    app.read(move |tx| {
        Box::pin(async move {
            let row = sandboxes::get(tx, id).await?.ok_or_else(|| Problem::not_found("sandbox"))?;
            let mut taken = Vec::new();
            let branches = TypePattern::Exact("git.branch_created".into());
            let filter = events::Filter { types: vec![branches], ..events::Filter::default() };
            let (place, newest) = ((id, row.session_id), events::Order::NewestFirst);
            for event in events::page(tx, place, &filter, newest, i64::MAX, 10).await?.events {
                let data: serde_json::Value = serde_json::from_str(event.data.get()).unwrap_or_default();
                let word = |key: &str| data.get(key).and_then(|value| value.as_str()).map(str::to_owned);
                if let (Some(branch), Some(commit)) = (word("branch"), word("commit")) {
                    taken.push(TakenResult::Branch { branch, commit, repo: word("repo") });
                }
            }
            let labels = sandboxes::labels(tx, id).await?;
            Ok(Taken { taken, sandbox: SandboxView::new(row, labels) })
        })
    })
    .await
}

/// Until the results are out or have failed, or it takes too long to wait for.
async fn until_out(app: &App, id: SandboxId) {
    let mut states = app.hub.states();
    let out = async {
        loop {
            let row = app.read(move |tx| Box::pin(async move { Ok(sandboxes::get(tx, id).await?) })).await;
            if !matches!(row, Ok(Some(row)) if row.state == SandboxState::Completing) {
                return;
            }
            // A word that was missed costs a second, not the answer.
            drop(tokio::time::timeout(Duration::from_secs(1), states.recv()).await);
        }
    };
    drop(tokio::time::timeout(RESULTS_WAIT, out).await);
}

const RESULTS_WAIT: Duration = Duration::from_secs(60);

/// Take the results out, and say what they are.
#[utoipa::path(post, path = "/sandboxes/{id}/results", tag = "sandboxes", params(("id" = SandboxId, Path), ("Idempotency-Key" = Option<String>, Header)),
    responses((status = 200, body = Taken)))]
pub async fn take(State(app): State<Arc<App>>, caller: Caller, Id(id): Id<SandboxId>, once: Once) -> Result<Answer> {
    let who = caller.clone();
    // Asking for it twice is the same as once; what is out by then is in the answer.
    app.write_once(&caller, once, String::new(), move |work| {
        Box::pin(async move {
            access::sandbox(work.tx, &who, id, Action::Work).await?;
            let row = results::take(work, id, who.actor()).await?;
            Answer::ok(SandboxView::new(row, sandboxes::labels(work.tx, id).await?))
        })
    })
    .await?;
    until_out(&app, id).await;
    Answer::ok(taken(&app, id).await?)
}
