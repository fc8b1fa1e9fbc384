//! Set-up layers: sealing one, and starting a sandbox from one.

use super::snapshots::{quiesce_agent, timestamp_from_millis};
use super::{Local, git_run};
use atoll_core::provider::{
    CacheRef, CacheUse, CreateSpec, Error, MAX_CACHE_DEPTH, ProviderId, RepositorySource, is_checkout_name,
};
use atoll_jail::{CacheStart, SandboxInfo, Snapshot};

/// Worker command that removes what a layer must not share.
const SEAL_COMMAND: &str = "cache-seal";
/// Worker command that removes everything but the package managers' downloads.
const KEEP_DOWNLOADS_COMMAND: &str = "cache-downloads";

impl Local {
    pub(super) async fn seal_files(&self, id: &ProviderId, cache: &str) -> Result<CacheRef, Error> {
        let info = self.find_info(id).await?;
        let still = quiesce_agent(&info).await?;
        let (name, called) = (info.name.clone(), cache.to_owned());
        let result = self
            .call_launcher(move |launcher| {
                if let Some(existing) = launcher.list_caches()?.into_iter().find(|existing| existing.name == called) {
                    return Ok(Ok(existing));
                }
                match git_run::run_worker_command(launcher, &name, SEAL_COMMAND) {
                    Ok(()) => launcher.seal_cache(&name, &called).map(Ok),
                    Err(error) => Ok(Err(error)),
                }
            })
            .await;
        drop(still);
        let sealed = result??;
        self.report_fixed_dirs(id, &info).await;
        Ok(cache_ref(sealed))
    }

    pub(super) async fn list_caches(&self) -> Result<Vec<CacheRef>, Error> {
        Ok(self.call_launcher(|launcher| launcher.list_caches()).await?.into_iter().map(cache_ref).collect())
    }

    /// Fails if the layer can no longer serve as downloads: its chain is too deep, or it holds files of an image.
    pub(super) async fn check_downloads(&self, spec: &CreateSpec) -> Result<(), Error> {
        let Some(CacheUse::Downloads(name)) = &spec.cache else { return Ok(()) };
        let caches = self.call_launcher(|launcher| launcher.list_caches()).await?;
        let found = caches.iter().find(|cache| cache.name == *name);
        let is_usable = found.is_some_and(|cache| cache.depth < MAX_CACHE_DEPTH && cache.image.is_none());
        if is_usable { Ok(()) } else { Err(Error::CacheGone { name: name.clone() }) }
    }

    /// Places the repository into a prepared sandbox. A layer that does not take a checkout is deleted.
    pub(super) async fn fill_workspace(&self, name: &str, spec: &CreateSpec) -> Result<(), Error> {
        let (sandbox, source, cache) = (name.to_owned(), spec.source.clone(), spec.cache.clone());
        let filled = self.call_launcher(move |launcher| Ok(fill_files(launcher, &sandbox, source, cache))).await?;
        if filled.is_ok() {
            self.store_checkout(name, spec).await;
        }
        let (Err(Error::Refused { detail }), Some(cache)) = (&filled, &spec.cache) else { return filled };
        tracing::warn!(cache = cache.name(), %detail, "a layer cannot be used and is deleted");
        let name = cache.name().to_owned();
        // The server starts without the layer in any case.
        drop(self.call_launcher(move |launcher| launcher.forget_cache(&name)).await);
        Err(Error::CacheGone { name: cache.name().to_owned() })
    }
}

impl Local {
    /// Stores the checkout of a new sandbox as a layer, before a program of the sandbox runs. Without one, the next sandbox
    /// takes longer.
    async fn store_checkout(&self, name: &str, spec: &CreateSpec) {
        let Some(layer) = spec.source.as_ref().and_then(|source| source.store_as.clone()) else { return };
        let sandbox = name.to_owned();
        let sealed = self.call_launcher(move |launcher| {
            // The agent must be able to rename the directories of its checkout.
            let is_fit = launcher.find_sandbox(&sandbox)?.is_some_and(|info| !info.seals_fix_dirs);
            if !is_fit {
                return Ok(());
            }
            launcher.seal_cache(&sandbox, &layer)?;
            let is_fixed = launcher.find_sandbox(&sandbox)?.is_some_and(|info| info.has_fixed_dirs);
            if is_fixed { launcher.forget_cache(&layer) } else { Ok(()) }
        });
        if let Err(error) = sealed.await {
            tracing::warn!(sandbox = name, %error, "failed to store a checkout as a layer");
        }
    }
}

/// The state of the workspace before an import.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WorkspaceStart {
    Empty,
    SetUpLayer,
    CheckoutLayer,
}

fn fill_files(
    launcher: &atoll_jail::Launcher,
    sandbox: &str,
    source: Option<RepositorySource>,
    cache: Option<CacheUse>,
) -> Result<(), Error> {
    let start = match cache {
        Some(CacheUse::SetUp(_)) => WorkspaceStart::SetUpLayer,
        Some(CacheUse::Checkout(_)) => WorkspaceStart::CheckoutLayer,
        Some(CacheUse::Downloads(_)) => {
            git_run::run_worker_command(launcher, sandbox, KEEP_DOWNLOADS_COMMAND)?;
            WorkspaceStart::Empty
        }
        None => WorkspaceStart::Empty,
    };
    source.map_or(Ok(()), |source| git_run::import_source(launcher, sandbox, &source, start))
}

pub(super) fn cache_start(cache: &CacheUse) -> CacheStart {
    CacheStart { name: cache.name().to_owned(), downloads_only: matches!(cache, CacheUse::Downloads(_)) }
}

pub(super) fn cache_use(info: &SandboxInfo) -> Option<CacheUse> {
    let CacheStart { name, downloads_only } = info.cache.clone()?;
    Some(match (downloads_only, is_checkout_name(&name)) {
        (true, _) => CacheUse::Downloads(name),
        (false, true) => CacheUse::Checkout(name),
        (false, false) => CacheUse::SetUp(name),
    })
}

fn cache_ref(cache: Snapshot) -> CacheRef {
    let Snapshot { name, created_at, used_at, bytes, depth, .. } = cache;
    let used_at = used_at.and_then(timestamp_from_millis);
    CacheRef { name, bytes, created_at: timestamp_from_millis(created_at), used_at, depth }
}
