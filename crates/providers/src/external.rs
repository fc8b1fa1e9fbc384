//! Workers that somebody starts by hand. Atoll makes nothing, so nearly everything is unsupported.
//!
//! Nothing here must survive a restart: the id at the provider is the sandbox's own id with a
//! prefix, and there is no machine that could be asked about it.

use crate::{all_labels, carries, demands_no_tier, locked, protects_nothing, shows_nothing};
use atoll_core::BoxFuture;
use atoll_core::id::SandboxId;
use atoll_core::provider::{Answer, CreateSpec, Found, Lookup, Page, Provider, ProviderId, ProviderState};
use atoll_core::provider::{Capabilities, capabilities as can};
use atoll_core::sandbox::ProviderKind;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Mutex;

const PREFIX: &str = "external_";

#[derive(Debug, Default)]
pub struct External {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    known: BTreeMap<ProviderId, Found>,
    keys: HashMap<String, ProviderId>,
    forgotten: BTreeSet<ProviderId>,
}

impl External {
    pub fn new() -> Self {
        Self::default()
    }
}

fn found(id: &ProviderId, labels: BTreeMap<String, String>) -> Found {
    Found { id: id.clone(), state: ProviderState::Running, epoch: 1, labels, expires_at: None, notices: Vec::new() }
}

fn sandbox_of(id: &ProviderId) -> Option<SandboxId> {
    id.0.strip_prefix(PREFIX)?.parse().ok()
}

impl Provider for External {
    fn kind(&self) -> ProviderKind {
        ProviderKind::External
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            isolation: can::Isolation::Unmanaged,
            listing: can::Listing::Local,
            pause: can::PauseAbility::None,
            fork: can::ForkAbility::None,
            snapshot: can::SnapshotAbility::None,
            egress: can::Egress::Unmanaged,
            output: can::OutputAbility::None,
            attach: can::AttachAbility::None,
            files: can::FileAbility::None,
            preview: can::PreviewAbility::None,
            protected: can::ProtectedPaths::None,
            max_memory_gb: None,
            max_cpu: None,
            max_disk_gb: None,
        }
    }

    fn create<'a>(&'a self, spec: &'a CreateSpec, key: &'a str) -> Answer<'a, Found> {
        Box::pin(async move {
            demands_no_tier(self.kind(), spec)?;
            protects_nothing(self.kind(), spec)?;
            shows_nothing(self.kind(), spec)?;
            let mut state = locked(&self.state);
            if let Some(known) = state.keys.get(key).and_then(|id| state.known.get(id)) {
                return Ok(known.clone());
            }
            let id = ProviderId(format!("{PREFIX}{}", spec.identity.sandbox));
            let made = found(&id, all_labels(spec));
            state.forgotten.remove(&id);
            state.keys.insert(key.to_owned(), id.clone());
            state.known.insert(id, made.clone());
            Ok(made)
        })
    }

    /// There is nobody to ask. An id of our own form counts as found until it is destroyed, also
    /// when another process made it: not knowing of a sandbox is no reason to call it gone. Whether
    /// its worker lives is for its heartbeats to say.
    fn get<'a>(&'a self, id: &'a ProviderId) -> BoxFuture<'a, Lookup> {
        Box::pin(async move {
            let state = locked(&self.state);
            if let Some(known) = state.known.get(id) {
                return Lookup::Found(known.clone());
            }
            match sandbox_of(id) {
                Some(sandbox) if !state.forgotten.contains(id) => {
                    // All that can be said of it without having made it.
                    let labels = [("atoll", "1".to_owned()), ("atoll.sandbox", sandbox.to_string())];
                    Lookup::Found(found(id, labels.map(|(key, value)| (key.to_owned(), value)).into()))
                }
                Some(_) | None => Lookup::Gone,
            }
        })
    }

    /// What this process made: `Listing::Local` says so.
    fn list<'a>(&'a self, cursor: Option<&'a str>) -> Answer<'a, Page> {
        Box::pin(async move { Ok(crate::page(&locked(&self.state).known, cursor, Found::clone)) })
    }

    fn find<'a>(&'a self, labels: &'a BTreeMap<String, String>) -> Answer<'a, Vec<Found>> {
        Box::pin(async move {
            let state = locked(&self.state);
            Ok(state.known.values().filter(|known| carries(&known.labels, labels)).cloned().collect())
        })
    }

    /// Forgets it. The worker is not touched: it learns from its heartbeats that it has ended.
    fn destroy<'a>(&'a self, id: &'a ProviderId) -> Answer<'a, ()> {
        Box::pin(async move {
            let mut state = locked(&self.state);
            state.known.remove(id);
            state.keys.retain(|_, known| known != id);
            if sandbox_of(id).is_some() {
                state.forgotten.insert(id.clone());
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_another_process_made_is_not_called_gone() {
        let id = ProviderId(format!("{PREFIX}{}", SandboxId::new()));
        let provider = External::new();
        assert!(matches!(provider.get(&id).await, Lookup::Found(_)));
        provider.destroy(&id).await.unwrap();
        assert_eq!(provider.get(&id).await, Lookup::Gone);
        assert_eq!(provider.get(&ProviderId("external_x".into())).await, Lookup::Gone);
    }
}
