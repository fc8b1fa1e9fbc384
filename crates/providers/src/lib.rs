//! Sandbox providers. Each module implements the contract of `atoll_core::provider`. Providers do not use each other,
//! the store or HTTP.
//!
//! `conformance` checks the promises of the contract against every provider.

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;

pub mod docker;
pub mod external;
pub mod fake;
mod host_maximum;
pub mod local;
mod sandbox_locks;
#[cfg(test)]
mod tests;
pub mod worker_client;

pub use docker::{Docker, DockerOptions};
pub use external::External;
pub use fake::{Fake, FakeOptions};
pub use local::Local;
pub use worker_client::{DiskLimitEffect, LinkHost, SandboxNotice};

use atoll_core::provider::{Capabilities, CreateSpec, Error, ProviderId, ProviderPage, ProviderSandbox};
use atoll_core::sandbox::ProviderKind;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Returns the capabilities of a provider, without creating one.
pub const fn capabilities_of(kind: ProviderKind) -> Capabilities {
    match kind {
        ProviderKind::Local => local::CAPABILITIES,
        ProviderKind::Docker => docker::CAPABILITIES,
        ProviderKind::External => external::CAPABILITIES,
        ProviderKind::Fake => fake::CAPABILITIES,
    }
}

/// Locks `mutex`, also after a panic: every change is a single step, so the state is always consistent.
fn lock_state<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// True if `labels` contains all of `wanted`.
fn has_labels(labels: &BTreeMap<String, String>, required: &BTreeMap<String, String>) -> bool {
    required.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// The label with the path of the worktree that a sandbox works on.
const WORKTREE_LABEL: &str = "atoll.worktree";

/// A sandbox's labels: the user's, overridden by the identity labels and the worktree's path.
fn all_labels(spec: &CreateSpec) -> BTreeMap<String, String> {
    let mut labels = spec.labels.clone();
    labels.extend(spec.identity.labels());
    let worktree = spec.settings.repo.as_ref().and_then(|repo| repo.path.clone());
    labels.extend(worktree.map(|path| (WORKTREE_LABEL.to_owned(), path)));
    labels
}

/// Refuses a required isolation tier, for providers that cannot promise one.
fn refuse_isolation_tier(provider: ProviderKind, spec: &CreateSpec) -> Result<(), Error> {
    match spec.settings.isolation {
        None => Ok(()),
        Some(_) => Err(Error::Unsupported { provider, ability: "promise an isolation tier" }),
    }
}

/// Refuses protected paths, for providers that neither mount nor export results.
fn refuse_protected_paths(provider: ProviderKind, spec: &CreateSpec) -> Result<(), Error> {
    if spec.settings.protected.is_empty() {
        return Ok(());
    }
    Err(Error::Unsupported { provider, ability: "protect paths of the workspace" })
}

/// Refuses mounted programs, for providers whose sandboxes do not share this machine's files.
fn refuse_programs(provider: ProviderKind, spec: &CreateSpec) -> Result<(), Error> {
    if spec.programs.is_empty() {
        return Ok(());
    }
    Err(Error::Unsupported { provider, ability: "mount an agent's program; install the agent in the sandbox instead" })
}

const PAGE_SIZE: usize = 100;

/// Returns one page of `all`, after `cursor` (the last id of the previous page).
fn list_page<T>(
    all: &BTreeMap<ProviderId, T>,
    cursor: Option<&str>,
    found: impl Fn(&T) -> ProviderSandbox,
) -> ProviderPage {
    let after = cursor.map_or(Bound::Unbounded, |last| Bound::Excluded(ProviderId(last.to_owned())));
    let mut rest = all.range((after, Bound::Unbounded)).map(|(_, one)| found(one));
    let items: Vec<ProviderSandbox> = rest.by_ref().take(PAGE_SIZE).collect();
    let next_cursor = rest.next().and_then(|_| items.last()).map(|last| last.id.0.clone());
    ProviderPage { items, next_cursor }
}
