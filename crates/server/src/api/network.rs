//! `/sandboxes/{id}/network`: what a sandbox may reach, and what it has.

use crate::app::network;
use crate::auth::{Caller, access};
use crate::egress::Traffic;
use crate::extract::{Body, Id};
use crate::once::{Answer, Once};
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_core::id::SandboxId;
use atoll_core::principal::Action;
use atoll_core::provider::capabilities::Egress;
use atoll_core::sandbox::{Network, NetworkPolicy};
use atoll_store::sandboxes::{self, Sandbox};
use axum::extract::State;
use serde::Serialize;
use std::sync::Arc;

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct NetworkView {
    policy: NetworkPolicy,
    /// The hosts of the policy `allow`.
    allow: Vec<String>,
    /// What went where since the server started, busiest first.
    hosts: Vec<Traffic>,
    total: Total,
}

#[derive(Debug, Default, Serialize, utoipa::ToSchema)]
pub struct Total {
    sent: u64,
    received: u64,
    connections: u64,
    refused: u64,
}

impl NetworkView {
    fn new(row: &Sandbox, hosts: Vec<Traffic>) -> Self {
        let network = row.settings.network.clone();
        let network = network.unwrap_or(Network { policy: NetworkPolicy::None, allow: Vec::new() });
        let total = hosts.iter().fold(Total::default(), |sum, line| Total {
            sent: sum.sent.saturating_add(line.sent),
            received: sum.received.saturating_add(line.received),
            connections: sum.connections.saturating_add(line.connections),
            refused: sum.refused.saturating_add(line.refused),
        });
        Self { policy: network.policy, allow: network.allow, hosts, total }
    }
}

/// What a sandbox may reach, and what it has.
#[utoipa::path(get, path = "/sandboxes/{id}/network", tag = "sandboxes", params(("id" = SandboxId, Path)),
    responses((status = 200, body = NetworkView)))]
pub async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
) -> Result<axum::Json<NetworkView>> {
    let row = app.read(move |tx| {
        Box::pin(async move {
            access::sandbox(tx, &caller, id, Action::See).await?;
            sandboxes::get(tx, id).await?.ok_or_else(|| Problem::not_found("sandbox"))
        })
    });
    Ok(axum::Json(NetworkView::new(&row.await?, app.egress.traffic(id))))
}

/// Change what a sandbox may reach.
///
/// It counts at once: connections that the new policy does not allow are closed.
#[utoipa::path(put, path = "/sandboxes/{id}/network", tag = "sandboxes", params(("id" = SandboxId, Path), ("Idempotency-Key" = Option<String>, Header)),
    request_body = Network, responses((status = 200, body = NetworkView)))]
pub async fn change(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    once: Once,
    Body { value, hash }: Body<Network>,
) -> Result<Answer> {
    let (who, providers, traffic) = (caller.clone(), app.providers()?, app.egress.traffic(id));
    app.write_once(&caller, once, hash, move |work| {
        Box::pin(async move {
            access::sandbox(work.tx, &who, id, Action::Work).await?;
            let row = sandboxes::get(work.tx, id).await?.ok_or_else(|| Problem::not_found("sandbox"))?;
            let ability = providers.get(row.provider).capabilities().egress;
            let able = match ability {
                Egress::Domains => true,
                Egress::AllOrNothing => value.policy != NetworkPolicy::Allow,
                Egress::None | Egress::Unmanaged => false,
            };
            if !able {
                let detail = format!("the provider {} can't change the network of a sandbox to that", row.provider);
                return Err(Problem::new(Code::ProviderUnsupported, detail));
            }
            let row = network::change(work, id, value, who.actor()).await?;
            Answer::ok(NetworkView::new(&row, traffic))
        })
    })
    .await
}
