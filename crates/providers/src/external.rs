//! Workers that a person starts by hand. Atoll creates nothing, so it supports almost no operation.
//!
//! Nothing here must survive a restart: the provider id is the sandbox id with a prefix.

use crate::{all_labels, has_labels, lock_state, refuse_isolation_tier, refuse_programs, refuse_protected_paths};
use atoll_core::id::SandboxId;
use atoll_core::provider::{Capabilities, capabilities as can};
use atoll_core::provider::{
    CreateSpec, Error, ImplementProvider, ProviderId, ProviderPage, ProviderSandbox, ProviderState, SandboxLookup,
};
use atoll_core::sandbox::ProviderKind;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Mutex;

pub const CAPABILITIES: Capabilities = Capabilities {
    isolation: can::Isolation::Unmanaged,
    listing: can::Listing::Local,
    egress: can::EgressAbility::Unmanaged,
    worker: can::WorkerHost::Person,
    ..Capabilities::NONE
};

const ID_PREFIX: &str = "external_";

#[derive(Debug, Default)]
pub struct External {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    sandboxes: BTreeMap<ProviderId, ProviderSandbox>,
    keys: HashMap<String, ProviderId>,
    destroyed: BTreeSet<ProviderId>,
}

impl External {
    pub fn new() -> Self {
        Self::default()
    }
}

fn describe_sandbox(id: &ProviderId, labels: BTreeMap<String, String>) -> ProviderSandbox {
    ProviderSandbox {
        id: id.clone(),
        state: ProviderState::Running,
        labels,
        notices: Vec::new(),
        disk_notice: None,
        cache: None,
    }
}

fn parse_sandbox_id(id: &ProviderId) -> Option<SandboxId> {
    id.0.strip_prefix(ID_PREFIX)?.parse().ok()
}

impl ImplementProvider for External {
    fn kind(&self) -> ProviderKind {
        ProviderKind::External
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    async fn create(&self, spec: &CreateSpec, key: &str) -> Result<ProviderSandbox, Error> {
        refuse_isolation_tier(self.kind(), spec)?;
        refuse_protected_paths(self.kind(), spec)?;
        refuse_programs(self.kind(), spec)?;
        let mut state = lock_state(&self.state);
        if let Some(known) = state.keys.get(key).and_then(|id| state.sandboxes.get(id)) {
            return Ok(known.clone());
        }
        let id = ProviderId(format!("{ID_PREFIX}{}", spec.identity.sandbox));
        let sandbox = describe_sandbox(&id, all_labels(spec));
        state.destroyed.remove(&id);
        state.keys.insert(key.to_owned(), id.clone());
        state.sandboxes.insert(id, sandbox.clone());
        Ok(sandbox)
    }

    /// Reports every well-formed id as found until it is destroyed, also one that another process created: a missing
    /// record does not prove that the sandbox is gone. Heartbeats show whether its worker is alive.
    async fn get(&self, id: &ProviderId) -> SandboxLookup {
        let state = lock_state(&self.state);
        if let Some(known) = state.sandboxes.get(id) {
            return SandboxLookup::Found(known.clone());
        }
        match parse_sandbox_id(id) {
            Some(sandbox) if !state.destroyed.contains(id) => {
                // The identity labels are all that the id reveals.
                let labels = [("atoll", "1".to_owned()), ("atoll.sandbox", sandbox.to_string())];
                SandboxLookup::Found(describe_sandbox(id, labels.map(|(key, value)| (key.to_owned(), value)).into()))
            }
            Some(_) | None => SandboxLookup::Gone,
        }
    }

    /// Lists only what this process created (`Listing::Local`).
    async fn list(&self, cursor: Option<&str>) -> Result<ProviderPage, Error> {
        Ok(crate::list_page(&lock_state(&self.state).sandboxes, cursor, ProviderSandbox::clone))
    }

    async fn find_by_labels(&self, labels: &BTreeMap<String, String>) -> Result<Vec<ProviderSandbox>, Error> {
        let state = lock_state(&self.state);
        Ok(state.sandboxes.values().filter(|known| has_labels(&known.labels, labels)).cloned().collect())
    }

    /// Removes the record only. The worker learns from its heartbeats that the sandbox has ended.
    async fn destroy(&self, id: &ProviderId) -> Result<(), Error> {
        let mut state = lock_state(&self.state);
        state.sandboxes.remove(id);
        state.keys.retain(|_, known| known != id);
        if parse_sandbox_id(id).is_some() {
            state.destroyed.insert(id.clone());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn ids_of_another_process_are_found_until_destroyed() {
        let id = ProviderId(format!("{ID_PREFIX}{}", SandboxId::new()));
        let provider = External::new();
        assert!(matches!(provider.get(&id).await, SandboxLookup::Found(_)));
        provider.destroy(&id).await.unwrap();
        assert_eq!(provider.get(&id).await, SandboxLookup::Gone);
        assert_eq!(provider.get(&ProviderId("external_x".into())).await, SandboxLookup::Gone);
    }
}
