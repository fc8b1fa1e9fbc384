//! `/sandboxes/{id}/limits`: how much an agent may use before a person is asked.

use crate::app::limits::{self, Change};
use crate::auth::{Caller, access};
use crate::extract::{Body, Id};
use crate::once::{Answer, Once};
use crate::problem::{Problem, Result};
use crate::state::App;
use atoll_core::id::SandboxId;
use atoll_core::limit::Limit;
use atoll_core::principal::Action;
use atoll_core::sandbox::{Activity, AgentLimits};
use atoll_store::sandboxes::{self, Sandbox};
use axum::extract::State;
use serde::{Deserialize, Deserializer, Serialize};
use std::sync::Arc;

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct LimitsView {
    limits: AgentLimits,
    /// The one that the agent is held back by.
    limit_paused: Option<Limit>,
    activity: Activity,
    turns: i64,
    /// What models have cost, in US dollars.
    cost_usd: f64,
}

impl LimitsView {
    fn new(row: &Sandbox) -> Self {
        Self {
            limits: row.settings.limits.unwrap_or_default(),
            limit_paused: row.limit_paused,
            activity: row.activity,
            turns: row.turn.unwrap_or(0),
            cost_usd: super::sandboxes::dollars(row.cost_model_micros),
        }
    }
}

/// What is absent stays; `null` takes a limit away.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeLimits {
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<u32>, minimum = 1)]
    turns: Option<Option<u32>>,
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<f64>)]
    cost_usd: Option<Option<f64>>,
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<u32>, minimum = 1)]
    turn_s: Option<Option<u32>>,
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<u32>, minimum = 1)]
    no_progress_s: Option<Option<u32>>,
}

fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> std::result::Result<Option<Option<T>>, D::Error> {
    Option::<T>::deserialize(from).map(Some)
}

/// How much a sandbox's agent may use, and what it has used.
#[utoipa::path(get, path = "/sandboxes/{id}/limits", tag = "sandboxes", params(("id" = SandboxId, Path)),
    responses((status = 200, body = LimitsView)))]
pub async fn get(State(app): State<Arc<App>>, caller: Caller, Id(id): Id<SandboxId>) -> Result<axum::Json<LimitsView>> {
    let row = app.read(move |tx| {
        Box::pin(async move {
            access::sandbox(tx, &caller, id, Action::See).await?;
            sandboxes::get(tx, id).await?.ok_or_else(|| Problem::not_found("sandbox"))
        })
    });
    Ok(axum::Json(LimitsView::new(&row.await?)))
}

/// Change the limits of a sandbox's agent.
///
/// One that is held back by a limit goes on from there when it is raised or taken away.
#[utoipa::path(patch, path = "/sandboxes/{id}/limits", tag = "sandboxes", params(("id" = SandboxId, Path), ("Idempotency-Key" = Option<String>, Header)),
    request_body = ChangeLimits, responses((status = 200, body = LimitsView)))]
pub async fn change(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    once: Once,
    Body { value, hash }: Body<ChangeLimits>,
) -> Result<Answer> {
    let ChangeLimits { turns, cost_usd, turn_s, no_progress_s } = value;
    let change = Change { turns, cost_usd, turn_s, no_progress_s };
    let who = caller.clone();
    let answer = app
        .write_once(&caller, once, hash, move |work| {
            Box::pin(async move {
                access::sandbox(work.tx, &who, id, Action::Work).await?;
                let row = limits::change(work, id, &change, who.actor()).await?;
                Answer::ok(LimitsView::new(&row))
            })
        })
        .await?;
    // The gateway remembers what a sandbox may spend, and asks again only when that is too little.
    if let Ok(Some(row)) = app.read(move |tx| Box::pin(async move { Ok(sandboxes::get(tx, id).await?) })).await {
        app.gateway.limits_changed(id, &row.settings.limits.unwrap_or_default());
    }
    Ok(answer)
}
