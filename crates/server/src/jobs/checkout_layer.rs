//! Checkout layers: a repository's checkout that later sandboxes of the project start from, and change into their own.
//!
//! The provider stores one after the first import, before the worker starts. A sandbox with a set-up layer needs none.

use crate::problem::Result;
use crate::repositories::PreparedRepository;
use crate::state::App;
use atoll_core::provider::capabilities::CacheAbility;
use atoll_core::provider::{
    CacheRef, CacheUse, Provider, checkout_commit, checkout_key, checkout_key_prefix, provider_cache_name,
};
use atoll_core::sandbox::Repo;
use atoll_store::sandboxes::SandboxRow;
use sha2::{Digest, Sha256};
use std::time::Duration;

/// An older layer is replaced, because ever more commits lead from it to the repository's state.
const MAX_LAYER_AGE: Duration = Duration::from_secs(7 * 24 * 3600);

/// The checkout layer of a sandbox's repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CheckoutLayer {
    /// The repository cannot have one here.
    None,
    /// The sandbox starts from this layer, which is at this commit.
    Start { name: String, commit: String },
    /// The sandbox's checkout becomes the layer with this name.
    Store { name: String },
}

impl CheckoutLayer {
    pub(super) async fn find(
        app: &App,
        provider: &dyn Provider,
        sandbox: &SandboxRow,
        prepared: &PreparedRepository,
    ) -> Result<Self> {
        let settings = &sandbox.settings;
        let has_layers = match provider.capabilities().caches {
            CacheAbility::Layers => settings.snapshot.is_none() && prepared.is_complete,
            CacheAbility::None => false,
        };
        let Some(repo) = settings.repo.as_ref().filter(|_| has_layers) else { return Ok(Self::None) };
        let prefix = checkout_key_prefix(&describe_repository(repo, settings.image.as_deref()));
        let name_prefix = provider_cache_name(sandbox.project_id, &prefix);
        let oldest = app.clock.now() - MAX_LAYER_AGE;
        let is_recent = |cache: &CacheRef| cache.created_at.is_some_and(|created| created > oldest);
        let mut found: Vec<CacheRef> = provider.caches().await.unwrap_or_default();
        found.retain(|cache| cache.name.starts_with(&name_prefix) && is_recent(cache));
        // The layer of the very commit first, else the newest one.
        let commit = &prepared.source.commit;
        let own = provider_cache_name(sandbox.project_id, &checkout_key(&prefix, commit));
        if repo.submodules || repo.lfs {
            // Git changes only the files of the repository itself from one commit to another.
            found.retain(|cache| cache.name == own);
        }
        found.sort_by_key(|cache| (cache.name == own, cache.created_at));
        while let Some(layer) = found.pop() {
            let key = layer.name.rsplit('.').next().unwrap_or_default();
            let Some(start) = checkout_commit(key) else { continue };
            if let Some(commit) = prepared.find_commit(start.to_owned()).await? {
                return Ok(Self::Start { name: layer.name, commit });
            }
        }
        // An agent wrote other commits: they never become part of a layer.
        let is_base = repo.base.as_ref() == Some(commit);
        Ok(if is_base { Self::Store { name: own } } else { Self::None })
    }

    /// The layer that the provider starts from.
    pub(super) fn start(&self) -> Option<CacheUse> {
        match self {
            Self::Start { name, .. } => Some(CacheUse::Checkout(name.clone())),
            Self::None | Self::Store { .. } => None,
        }
    }

    /// The commit that the bundle builds on.
    pub(super) fn commit(&self) -> Option<String> {
        match self {
            Self::Start { commit, .. } => Some(commit.clone()),
            Self::None | Self::Store { .. } => None,
        }
    }

    pub(super) fn store_as(&self) -> Option<String> {
        match self {
            Self::Store { name } => Some(name.clone()),
            Self::None | Self::Start { .. } => None,
        }
    }
}

/// The settings that change which files a checkout has; `None` without any.
pub(super) fn describe_checkout(repo: &Repo) -> Option<String> {
    let flags = [("submodules", repo.submodules), ("lfs", repo.lfs)];
    let flags = flags.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| format!("\0{name}"));
    let text: String = flags.chain(repo.sparse.iter().map(|dir| format!("\0sparse {dir}"))).collect();
    Some(text).filter(|text| !text.is_empty())
}

/// Distinguishes repositories, roots and settings of the checkout; a layer belongs to one root.
fn describe_repository(repo: &Repo, image: Option<&str>) -> String {
    let mut text = format!("{}\0{}", repo.location().unwrap_or_default(), image.unwrap_or_default());
    text.extend(describe_checkout(repo));
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setting_of_the_checkout_has_its_own_layers() {
        let repo = Repo { url: Some("https://example.org/a".to_owned()), ..Repo::default() };
        let sparse = |dirs: &[&str]| Repo { sparse: dirs.iter().map(|&dir| dir.to_owned()).collect(), ..repo.clone() };
        let all = [
            repo.clone(),
            Repo { submodules: true, ..repo.clone() },
            Repo { lfs: true, ..repo.clone() },
            Repo { lfs: true, submodules: true, ..repo.clone() },
            sparse(&["a"]),
            sparse(&["a", "b"]),
        ];
        let keys: std::collections::BTreeSet<_> = all.iter().map(|repo| describe_repository(repo, None)).collect();
        assert_eq!(keys.len(), all.len());
        assert_ne!(describe_repository(&repo, None), describe_repository(&repo, Some("image")));
        let other_work = Repo { branch: Some("x".to_owned()), base: Some("y".to_owned()), ..repo.clone() };
        assert_eq!(describe_repository(&repo, None), describe_repository(&other_work, None));
    }
}
