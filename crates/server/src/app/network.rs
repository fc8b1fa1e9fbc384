//! Network policies of sandboxes: checked before they are stored, stored before they apply.

use super::Work;
use super::targets::load_sandbox;
use super::views::view_network;
use crate::auth::access::{CanSee, CanWork};
use crate::idempotency::{IdempotencyKey, JsonResponse};
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_api::NetworkStatus;
use atoll_api::events::{EventData, NetworkChanged};
use atoll_core::event::EventSource;
use atoll_core::id::SandboxId;
use atoll_core::network::{AllowEntry, MAX_ALLOW_ENTRIES};
use atoll_core::provider::capabilities::EgressAbility;
use atoll_core::sandbox::{Network, NetworkPolicy};
use atoll_store::sandboxes::{self, SandboxRow};

/// Checks that a policy is meaningful: a wrong one would silently block everything.
pub fn check_network(network: &Network) -> Result<()> {
    let invalid = |detail: String| Problem::invalid(detail).with("field", "network.allow");
    match network.policy {
        NetworkPolicy::Allow | NetworkPolicy::Packages => {}
        NetworkPolicy::None | NetworkPolicy::All if network.allow.is_empty() => {}
        NetworkPolicy::None | NetworkPolicy::All => {
            let policy = network.policy.as_str();
            return Err(invalid(format!(
                "network.allow: only the policies `allow` and `packages` take a list, not `{policy}`"
            )));
        }
    }
    if network.allow.len() > MAX_ALLOW_ENTRIES {
        return Err(invalid(format!("network.allow: at most {MAX_ALLOW_ENTRIES}")));
    }
    for entry in &network.allow {
        atoll_core::bounds::check_line("network.allow", entry, 255)?;
        AllowEntry::parse(entry).map_err(|error| invalid(format!("network.allow: {error}")))?;
    }
    Ok(())
}

/// Changes the policy of a live sandbox. It applies as soon as it is stored.
pub async fn change_network(work: &mut Work<'_>, id: SandboxId, network: Network, actor: String) -> Result<SandboxRow> {
    check_network(&network)?;
    let (_, mut sandbox) = work.lock_sandbox(id).await?;
    if sandbox.state.has_ended() {
        return Err(Problem::new(Code::SandboxEnded, "the sandbox has ended, so its network is closed"));
    }
    if sandbox.settings.network.as_ref() == Some(&network) {
        return Ok(sandbox);
    }
    let changed = EventData::NetworkChanged(NetworkChanged { policy: network.policy, allow: network.allow.clone() });
    let event = changed.into_event(work.now).with_source(EventSource::User, Some(actor));
    sandbox.settings.network = Some(network);
    sandboxes::update_settings(work.tx, &sandbox).await?;
    work.log(&mut sandbox, vec![event]).await?;
    sandbox.updated_at = work.now;
    sandboxes::update_sandbox(work.tx, &mut sandbox).await?;
    // During set-up, it applies from the end of set-up on.
    work.out.networks.push((id, sandbox.version, sandbox.current_network().cloned()));
    Ok(sandbox)
}

pub async fn read_network(app: &App, access: CanSee<SandboxId>) -> Result<NetworkStatus> {
    Ok(view_network(&load_sandbox(app, &access).await?, app.egress.host_traffic(access.id)))
}

/// Changes the policy, if the provider can enforce it.
pub async fn submit_change(
    app: &App,
    access: CanWork<SandboxId>,
    key: IdempotencyKey,
    network: Network,
) -> Result<JsonResponse> {
    let (id, actor, traffic) = (access.id, access.actor(), app.egress.host_traffic(access.id));
    let provider = app.providers()?.get(load_sandbox(app, &access).await?.provider);
    let is_supported = match provider.capabilities().egress {
        EgressAbility::Domains => true,
        EgressAbility::AllOrNothing => matches!(network.policy, NetworkPolicy::None | NetworkPolicy::All),
        EgressAbility::None | EgressAbility::Unmanaged => false,
    };
    if !is_supported {
        let detail = format!("the provider {} cannot change a sandbox's network to this policy", provider.kind());
        return Err(Problem::new(Code::ProviderUnsupported, detail));
    }
    app.write_once(&access.caller, key, async move |work| {
        JsonResponse::ok(view_network(&change_network(work, id, network, actor).await?, traffic))
    })
    .await
}
