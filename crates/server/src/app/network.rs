//! What a sandbox may reach: checked before it is stored, stored before it counts.

use super::Work;
use crate::problem::{Code, Problem, Result};
use atoll_core::event::{NewEvent, Source, kind};
use atoll_core::id::SandboxId;
use atoll_core::network::{Entry, MOST_ENTRIES};
use atoll_core::sandbox::{Network, NetworkPolicy};
use atoll_store::sandboxes::{self, Sandbox};
use serde_json::json;

/// Whether a policy makes sense; what does not would let nothing out, and nobody would know why.
pub fn check(network: &Network) -> Result<()> {
    let invalid = |detail: String| Problem::invalid(detail).with("field", "network.allow");
    match network.policy {
        NetworkPolicy::Allow => {}
        NetworkPolicy::None | NetworkPolicy::All if network.allow.is_empty() => {}
        NetworkPolicy::None | NetworkPolicy::All => {
            let policy = network.policy.as_str();
            return Err(invalid(format!("network.allow: is a list for the policy `allow`, not for `{policy}`")));
        }
    }
    if network.allow.len() > MOST_ENTRIES {
        return Err(invalid(format!("network.allow: at most {MOST_ENTRIES}")));
    }
    for entry in &network.allow {
        atoll_core::bounds::line("network.allow", entry, 255)?;
        Entry::parse(entry).map_err(|error| invalid(format!("network.allow: {error}")))?;
    }
    Ok(())
}

/// Changes the policy of a living sandbox, which counts as soon as it is stored.
pub async fn change(work: &mut Work<'_>, id: SandboxId, network: Network, actor: String) -> Result<Sandbox> {
    check(&network)?;
    let (_, mut sandbox) = work.locked(id).await?;
    if sandbox.state.has_ended() {
        return Err(Problem::new(Code::SandboxEnded, "nothing leaves it any more"));
    }
    if sandbox.settings.network.as_ref() == Some(&network) {
        return Ok(sandbox);
    }
    let data = json!({ "policy": network.policy, "allow": network.allow });
    let event = NewEvent::system(kind::NETWORK_CHANGED, work.now, &data).by(Source::User, Some(actor));
    sandbox.settings.network = Some(network.clone());
    sandboxes::set_settings(work.tx, &sandbox).await?;
    work.log(&mut sandbox, vec![event]).await?;
    sandbox.updated_at = work.now;
    sandboxes::update(work.tx, &mut sandbox).await?;
    work.out.networks.push((id, sandbox.version, network));
    Ok(sandbox)
}
