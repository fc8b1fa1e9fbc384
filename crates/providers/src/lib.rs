//! Who makes Atoll's sandboxes. Each module is one provider behind the contract of
//! `atoll_core::provider`; they never see each other, and nothing here knows of the store or of HTTP.
//!
//! `conformance` holds the promises of the contract as checks that run against every provider.

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;

pub mod docker;
pub mod external;
pub mod fake;
pub mod inside;
pub mod local;
#[cfg(test)]
mod tests;
mod turns;

pub use docker::{Docker, DockerOptions};
pub use external::External;
pub use fake::{Fake, FakeOptions};
pub use inside::{Kept, LinkHost, Notice};
pub use local::Local;

use atoll_core::provider::{CreateSpec, Error, Found, Page, ProviderId};
use atoll_core::sandbox::ProviderKind;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The state behind `mutex`, also after a thread panicked while it held it: every change here is
/// one step, so nothing is ever left half done.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All of `wanted` are among `labels`.
fn carries(labels: &BTreeMap<String, String>, wanted: &BTreeMap<String, String>) -> bool {
    wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// What a sandbox carries: the user's labels and, over them, the ones it is found again by.
fn all_labels(spec: &CreateSpec) -> BTreeMap<String, String> {
    let mut labels = spec.labels.clone();
    labels.extend(spec.identity.labels());
    labels
}

/// For providers that can't say how well their sandboxes are kept apart: who demands a tier is refused.
fn demands_no_tier(provider: ProviderKind, spec: &CreateSpec) -> Result<(), Error> {
    match spec.settings.isolation {
        None => Ok(()),
        Some(_) => Err(Error::Unsupported { provider, ability: "promise an isolation tier" }),
    }
}

/// For providers that neither mount nor take results out: who protects paths is refused.
fn protects_nothing(provider: ProviderKind, spec: &CreateSpec) -> Result<(), Error> {
    if spec.settings.protected.is_empty() {
        return Ok(());
    }
    Err(Error::Unsupported { provider, ability: "protect paths of the workspace" })
}

/// For providers whose sandboxes see nothing of this machine: the agent has to be there already.
fn shows_nothing(provider: ProviderKind, spec: &CreateSpec) -> Result<(), Error> {
    if spec.programs.is_empty() {
        return Ok(());
    }
    Err(Error::Unsupported { provider, ability: "show an agent's program of this machine; have it installed there" })
}

const PAGE: usize = 100;

/// One page of what is in memory, after `cursor` (the last id of the page before).
fn page<T>(all: &BTreeMap<ProviderId, T>, cursor: Option<&str>, found: impl Fn(&T) -> Found) -> Page {
    let after = cursor.map_or(Bound::Unbounded, |last| Bound::Excluded(ProviderId(last.to_owned())));
    let mut rest = all.range((after, Bound::Unbounded)).map(|(_, one)| found(one));
    let items: Vec<Found> = rest.by_ref().take(PAGE).collect();
    let next_cursor = rest.next().and_then(|_| items.last()).map(|last| last.id.0.clone());
    Page { items, next_cursor }
}
