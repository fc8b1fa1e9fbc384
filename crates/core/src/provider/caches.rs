//! Set-up layers: the files that a project's set-up leaves, sealed, so that later sandboxes start from them.

use crate::id::ProjectId;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

/// Directory of the package managers' download caches in a sandbox. [`CacheUse::Downloads`] keeps only this one.
pub const PACKAGE_CACHE_DIR: &str = "/home/agent/.cache/packages";

/// Maximum layers of a set-up layer that may serve as [`CacheUse::Downloads`]: each seal above one adds a layer.
pub const MAX_CACHE_DEPTH: u32 = 8;

/// Name of a project's set-up layer at its provider, prefixed with the project so that projects cannot use each
/// other's. A key has at most 32 lower-case letters and digits.
pub fn provider_cache_name(project: ProjectId, key: &str) -> String {
    format!("{project}.{key}")
}

/// First letters of the key of a checkout layer. The key of a set-up layer has only hexadecimal digits.
const CHECKOUT_KEY_START: &str = "co";
const REPOSITORY_DIGITS: usize = 12;
const COMMIT_DIGITS: usize = 18;

/// Start of the keys of a repository's checkout layers; `digest` is the repository's, in hexadecimal digits.
pub fn checkout_key_prefix(digest: &str) -> String {
    let digits: String = digest.chars().take(REPOSITORY_DIGITS).collect();
    format!("{CHECKOUT_KEY_START}{digits}")
}

/// Key of the checkout layer at a commit.
pub fn checkout_key(prefix: &str, commit: &str) -> String {
    let digits: String = commit.chars().take(COMMIT_DIGITS).collect();
    format!("{prefix}{digits}")
}

/// The start of the commit in the key of a checkout layer; `None` for other layers.
pub fn checkout_commit(key: &str) -> Option<&str> {
    key.strip_prefix(CHECKOUT_KEY_START)?.get(REPOSITORY_DIGITS..).filter(|commit| commit.len() == COMMIT_DIGITS)
}

/// True for a layer that holds only a checkout, by its name at the provider.
pub fn is_checkout_name(name: &str) -> bool {
    split_cache_name(name).is_some_and(|(_, key)| checkout_commit(key).is_some())
}

/// The set-up layer that a new sandbox starts from, by its name at the provider.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "name", rename_all = "snake_case")]
pub enum CacheUse {
    /// All files that set-up left, with the sandbox's own checkout in place of the layer's.
    SetUp(String),
    /// Only the files below [`PACKAGE_CACHE_DIR`].
    Downloads(String),
    /// A checkout of the repository, which git changes into the sandbox's own.
    Checkout(String),
}

impl CacheUse {
    pub fn name(&self) -> &str {
        match self {
            Self::SetUp(name) | Self::Downloads(name) | Self::Checkout(name) => name,
        }
    }
}

/// A sealed set-up layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheRef {
    pub name: String,
    /// Disk usage of the layers that no older set-up layer has; absent until measured.
    pub bytes: Option<u64>,
    pub created_at: Option<Timestamp>,
    /// When a sandbox last started from it.
    pub used_at: Option<Timestamp>,
    /// Number of layers that it consists of.
    pub depth: u32,
}

impl CacheRef {
    /// When a sandbox last started from it, or else its creation.
    pub fn last_use(&self) -> Option<Timestamp> {
        self.used_at.max(self.created_at)
    }
}

/// Splits the name of a set-up layer at its provider into project and key.
pub fn split_cache_name(name: &str) -> Option<(ProjectId, &str)> {
    let (project, key) = name.split_once('.')?;
    Some((project.parse().ok()?, key))
}

/// The least recently used set-up layer, if all together exceed `max_bytes`. Layers without a size count nothing yet.
pub fn next_eviction(caches: &[CacheRef], max_bytes: u64) -> Option<&CacheRef> {
    let total = caches.iter().filter_map(|cache| cache.bytes).fold(0, u64::saturating_add);
    let oldest = || caches.iter().min_by_key(|cache| (cache.last_use(), &cache.name));
    if total > max_bytes { oldest() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(name: &str, bytes: Option<u64>, created: i64, used: Option<i64>) -> CacheRef {
        let at = |micros| Some(Timestamp::from_micros(micros));
        CacheRef { name: name.into(), bytes, created_at: at(created), used_at: used.and_then(at), depth: 1 }
    }

    #[test]
    fn evicts_the_least_recently_used_layer_while_all_exceed_the_bound() {
        let mut caches = vec![
            cache("a", Some(40), 1, Some(9)),
            cache("b", Some(40), 2, None),
            cache("c", None, 3, None),
            cache("d", Some(40), 4, Some(5)),
        ];
        assert_eq!(next_eviction(&caches, 120), None);
        let mut order = Vec::new();
        while let Some(victim) = next_eviction(&caches, 30).map(|victim| victim.name.clone()) {
            caches.retain(|cache| cache.name != victim);
            order.push(victim);
        }
        assert_eq!(order, ["b", "c", "d", "a"], "one that is larger than the bound goes, too");
        assert_eq!(next_eviction(&[cache("c", None, 3, None)], 0), None, "not measured yet");
    }

    #[test]
    fn a_checkout_key_has_its_repository_and_commit() {
        let (digest, commit) = ("a1".repeat(32), "c0ffee".repeat(7));
        let prefix = checkout_key_prefix(&digest);
        let key = checkout_key(&prefix, &commit);
        assert!(key.len() == 32 && key.starts_with(&prefix));
        assert_eq!(checkout_commit(&key), Some(&commit[..18]));
        assert!(is_checkout_name(&provider_cache_name(ProjectId::new(), &key)));
        assert!(!is_checkout_name(&provider_cache_name(ProjectId::new(), &digest[..32])));
        assert_eq!(checkout_commit("co"), None);
    }

    #[test]
    fn a_name_has_its_project() {
        let project = ProjectId::new();
        let name = provider_cache_name(project, "k3y");
        assert_eq!(split_cache_name(&name), Some((project, "k3y")));
        assert_eq!(split_cache_name("k3y"), None);
        assert_eq!(split_cache_name("other.k3y"), None);
    }
}
