//! The set-up layers of a project: the key of a set-up, the layer that a sandbox starts from, and storing a new one.

use super::setup_plan::PlannedSetup;
use crate::gateway::registry_addresses;
use crate::state::App;
use atoll_core::provider::capabilities::CacheAbility;
use atoll_core::provider::{
    CacheRef, CacheUse, MAX_CACHE_DEPTH, Provider, ProviderId, RepositorySource, is_checkout_name, provider_cache_name,
};
use atoll_core::setup::{CacheKey, CacheKeyInputs};
use atoll_store::sandboxes::SandboxRow;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Length of a key in a layer's name.
const KEY_CHARS: usize = 32;
const SEAL_TIMEOUT: Duration = Duration::from_secs(600);
/// Layers of a set-up without lock files are used for at most this time.
const UNLOCKED_AGE: Duration = Duration::from_secs(24 * 3600);
const PROGRAM_DIRS: [&str; 3] = ["/usr/local/bin", "/usr/bin", "/bin"];

/// The layer of a set-up, stored or not.
#[derive(Debug, Clone)]
pub(super) struct SetupCache {
    pub key: String,
    pub key_parts: BTreeMap<String, String>,
    /// The layer's name at the provider.
    pub name: String,
    /// The layer that the sandbox starts from.
    pub start: Option<CacheUse>,
    /// False if an agent wrote the commit: it could have changed the project's scripts.
    may_store: bool,
}

impl SetupCache {
    /// Finds the layer of a set-up; `None` if it cannot have one.
    pub(super) async fn find(
        app: &App,
        provider: &dyn Provider,
        sandbox: &SandboxRow,
        setup: &PlannedSetup,
        source: Option<&RepositorySource>,
    ) -> Option<Self> {
        let settings = &sandbox.settings;
        let can_store = match provider.capabilities().caches {
            CacheAbility::Layers => settings.snapshot.is_none(),
            CacheAbility::None => false,
        };
        if !can_store {
            return None;
        }
        let key = compute_key(app, provider, sandbox, setup).await?;
        let short: String = key.digest.chars().take(KEY_CHARS).collect();
        let name = provider_cache_name(sandbox.project_id, &short);
        let base = settings.repo.as_ref().and_then(|repo| repo.base.as_ref());
        let may_store = source.is_none_or(|source| Some(&source.commit) == base) && !fills_submodules(sandbox);
        let start = choose_start(provider, sandbox, &name).await;
        let key_parts = key.parts.into_iter().map(|part| (part.name, part.digest)).collect();
        Some(Self { key: short, key_parts, name, start, may_store })
    }

    /// True if the sandbox started from the layer of this very set-up.
    pub(super) fn is_complete(&self, started_from: Option<&CacheUse>) -> bool {
        started_from == Some(&CacheUse::SetUp(self.name.clone()))
    }

    /// True if this set-up stores the layer at its end.
    pub(super) fn will_store(&self) -> bool {
        self.may_store && !self.is_complete(self.start.as_ref())
    }

    /// Chooses the layer to start from again: another sandbox may have stored one meanwhile.
    pub(super) async fn refresh_start(&mut self, provider: &dyn Provider, sandbox: &SandboxRow) {
        self.start = choose_start(provider, sandbox, &self.name).await;
    }

    /// Stores the sandbox's files as a layer. Without one, the next sandbox is set up again.
    pub(super) async fn store(&self, provider: &dyn Provider, sandbox: &ProviderId) -> bool {
        if !self.may_store {
            return false;
        }
        match tokio::time::timeout(SEAL_TIMEOUT, provider.seal_cache(sandbox, &self.name)).await {
            Ok(Ok(_)) => true,
            Ok(Err(error)) => {
                tracing::warn!(sandbox = sandbox.0, %error, "failed to store a set-up layer");
                false
            }
            Err(_) => {
                tracing::warn!(sandbox = sandbox.0, "storing a set-up layer timed out");
                false
            }
        }
    }
}

/// What set-up leaves in submodules is not kept: their checkouts are created again.
fn fills_submodules(sandbox: &SandboxRow) -> bool {
    sandbox.settings.repo.as_ref().is_some_and(|repo| repo.submodules)
}

/// The layer with all files of the set-up, or else the downloads of the project's newest one.
async fn choose_start(provider: &dyn Provider, sandbox: &SandboxRow, name: &str) -> Option<CacheUse> {
    let caches = provider.caches().await.unwrap_or_default();
    if !fills_submodules(sandbox) && caches.iter().any(|cache| cache.name == name) {
        return Some(CacheUse::SetUp(name.to_owned()));
    }
    // An image has its own files below.
    if sandbox.settings.image.is_some() {
        return None;
    }
    let prefix = provider_cache_name(sandbox.project_id, "");
    let is_usable = |cache: &CacheRef| {
        cache.name.starts_with(&prefix) && cache.depth < MAX_CACHE_DEPTH && !is_checkout_name(&cache.name)
    };
    let usable = caches.into_iter().filter(is_usable);
    usable.max_by_key(|cache| cache.created_at).map(|newest| CacheUse::Downloads(newest.name))
}

async fn compute_key(
    app: &App,
    provider: &dyn Provider,
    sandbox: &SandboxRow,
    setup: &PlannedSetup,
) -> Option<CacheKey> {
    let plan = &setup.plan;
    let (root, mut tools) = match &sandbox.settings.image {
        Some(image) => (describe_image(provider, image).await?, BTreeMap::new()),
        None => {
            let (directories, tools) = (app.config.local.tools.clone(), plan.tools());
            let tools: Vec<String> = tools.into_iter().map(str::to_owned).collect();
            tokio::task::spawn_blocking(move || describe_host(directories, &tools)).await.ok()?
        }
    };
    if !plan.locked {
        let age = app.clock.now().as_micros() / i64::try_from(UNLOCKED_AGE.as_micros()).unwrap_or(i64::MAX);
        tools.insert("day".to_owned(), age.to_string());
    }
    let addresses = registry_addresses(&app.config.registries).into_iter();
    let registries = addresses.map(|registry| (registry.kind.to_string(), registry.url)).collect();
    let checkout = sandbox.settings.repo.as_ref().and_then(super::checkout_layer::describe_checkout);
    let inputs = CacheKeyInputs {
        root: &root,
        tools: &tools,
        plan,
        files: &setup.files,
        env: &sandbox.settings.env,
        registries: &registries,
        network: setup.environment.network.as_ref()?,
        checkout: checkout.as_deref(),
    };
    // A key file that is too large to read makes the set-up unique.
    CacheKey::compute(&inputs).ok()
}

/// An image and when it was imported, since another import can have the same name.
async fn describe_image(provider: &dyn Provider, name: &str) -> Option<String> {
    let image = provider.images().await.ok()?.into_iter().find(|image| image.name == name)?;
    let imported = image.created_at.map(|at| at.as_micros()).unwrap_or_default();
    Some(format!("image {name} {imported}"))
}

/// The host's release, and the versions of the tools that a set-up uses. The size and time of a program stand for its
/// version. If the tools are unknown, every installed program counts.
fn describe_host(directories: Vec<PathBuf>, tools: &[String]) -> (String, BTreeMap<String, String>) {
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let program_dirs: Vec<PathBuf> = PROGRAM_DIRS.iter().map(PathBuf::from).chain(directories).collect();
    let mut versions = BTreeMap::new();
    if tools.is_empty() {
        let known = program_dirs.iter().filter_map(|dir| Some((dir.display().to_string(), describe_file(dir)?)));
        versions.extend(known);
    }
    for tool in tools {
        let found = program_dirs.iter().find_map(|dir| describe_file(&dir.join(tool)));
        versions.insert(tool.clone(), found.unwrap_or_else(|| "missing".to_owned()));
    }
    (format!("host {release}"), versions)
}

fn describe_file(path: &Path) -> Option<String> {
    let (target, found) = (std::fs::canonicalize(path).ok()?, std::fs::metadata(path).ok()?);
    Some(format!("{} {} {}.{}", target.display(), found.size(), found.mtime(), found.mtime_nsec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_program_changes_the_description_of_the_host() {
        let dir = tempfile::tempdir().unwrap();
        let describe = |tools: &[&str]| {
            let tools: Vec<String> = tools.iter().map(|tool| (*tool).to_owned()).collect();
            describe_host(vec![dir.path().to_owned()], &tools).1
        };
        assert_eq!(describe(&["frobnicate"])["frobnicate"], "missing");
        let unknown = describe(&[]);
        std::fs::write(dir.path().join("frobnicate"), "1").unwrap();
        let first = describe(&["frobnicate"]);
        assert_ne!(first["frobnicate"], "missing");
        assert_ne!(describe(&[]), unknown, "any program counts if the tools are unknown");
        std::fs::write(dir.path().join("frobnicate"), "22").unwrap();
        assert_ne!(describe(&["frobnicate"]), first);
        assert_eq!(describe(&["frobnicate"]), describe(&["frobnicate"]));
    }
}
