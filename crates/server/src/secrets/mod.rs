//! The seal keys of secrets, and the values for the redactor. `app::secrets` holds the stored secrets.

pub mod seal;
pub mod seal_keys;

use crate::problem::{Code, Problem, Result};
use atoll_core::id::ProjectId;
use atoll_core::login;
use atoll_core::redact::Redactor;
use atoll_core::secret::Exposure;
use seal_keys::{KeyRing, KeyStore};
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// Maximum values per project, far more than it can have at once. Beyond it, the oldest are forgotten.
const MAX_LEARNED_VALUES: usize = 20_000;

impl From<seal_keys::Error> for Problem {
    fn from(error: seal_keys::Error) -> Self {
        Self::new(Code::SecretKeyUnusable, error.to_string())
    }
}

/// The seal keys and the secret values of this server.
pub struct Secrets {
    key_store: KeyStore,
    /// Serializes the creation of keys.
    key_creation: Mutex<()>,
    known: RwLock<KnownValues>,
}

/// Values per project: redacting one project's secret in another project would reveal it.
struct KnownValues {
    /// Secrets of the configuration, redacted in every project.
    configured: Vec<SecretString>,
    /// `None` holds the deployment's secrets, redacted in every project.
    learned: HashMap<Option<ProjectId>, LearnedValues>,
    /// Built at first use.
    redactors: HashMap<ProjectId, Arc<Redactor>>,
}

/// Every value since the start, including replaced ones, which sandboxes may still hold.
#[derive(Default)]
struct LearnedValues {
    values: VecDeque<SecretString>,
    /// Detects known values.
    hashes: HashSet<[u8; 32]>,
}

impl LearnedValues {
    fn contains(&self, value: &SecretString) -> bool {
        self.hashes.contains(&hash_value(value))
    }

    fn add(&mut self, value: &SecretString) {
        if self.hashes.insert(hash_value(value)) {
            self.values.push_back(value.clone());
        }
        if self.values.len() > MAX_LEARNED_VALUES
            && let Some(oldest) = self.values.pop_front()
        {
            self.hashes.remove(&hash_value(&oldest));
        }
    }
}

impl KnownValues {
    fn build_redactor(&self, project: ProjectId) -> Redactor {
        let learned = [None, Some(project)].map(|scope| self.learned.get(&scope).map(|values| &values.values));
        let learned = learned.into_iter().flatten().flatten();
        Redactor::new(self.configured.iter().chain(learned).map(|secret| secret.expose_secret()))
    }
}

impl Secrets {
    pub fn new(data_dir: &Path, key: Option<SecretString>, fixed: Vec<SecretString>) -> Self {
        let known = KnownValues { configured: fixed, learned: HashMap::new(), redactors: HashMap::new() };
        Self { key_store: KeyStore::new(data_dir, key), key_creation: Mutex::default(), known: RwLock::new(known) }
    }

    pub fn key_ring(&self) -> Result<KeyRing, seal_keys::Error> {
        self.key_store.read_ring()
    }

    /// The key ring, with a key for sealing.
    pub fn sealing_ring(&self) -> Result<KeyRing, seal_keys::Error> {
        let _alone = self.key_creation.lock().unwrap_or_else(PoisonError::into_inner);
        self.key_store.sealing_ring()
    }

    /// The key ring with a new key for sealing, unless the key is configured.
    pub fn rotate_key(&self) -> Result<KeyRing, seal_keys::Error> {
        let _alone = self.key_creation.lock().unwrap_or_else(PoisonError::into_inner);
        self.key_store.rotate_key()
    }

    /// The current redactor of a project.
    pub fn redactor(&self, project: ProjectId) -> Arc<Redactor> {
        let redactor = self.known.read().unwrap_or_else(PoisonError::into_inner).redactors.get(&project).cloned();
        redactor.unwrap_or_else(|| {
            let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
            let redactor = Arc::new(known.build_redactor(project));
            Arc::clone(known.redactors.entry(project).or_insert(redactor))
        })
    }

    /// Redacts these values from now on, in one project or in all. Call it before the values become visible.
    pub fn learn(&self, project: Option<ProjectId>, values: &[SecretString]) {
        let all_known = {
            let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
            let learned = known.learned.get(&project);
            values.iter().all(|value| learned.is_some_and(|learned| learned.contains(value)))
        };
        if all_known {
            return;
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let learned = known.learned.entry(project).or_default();
        values.iter().for_each(|value| learned.add(value));
        match project {
            Some(project) => drop(known.redactors.remove(&project)),
            None => known.redactors.clear(),
        }
    }
}

/// The texts to redact for a value: the value itself, and each token of a login file.
pub fn secret_texts(value: &SecretString, exposure: Option<&Exposure>) -> Vec<SecretString> {
    let texts = match exposure {
        Some(Exposure::File(_)) => login::secret_strings(value.expose_secret()),
        Some(Exposure::Variable(_)) | None => BTreeSet::new(),
    };
    std::iter::once(value.clone()).chain(texts.into_iter().map(SecretString::from)).collect()
}

fn hash_value(value: &SecretString) -> [u8; 32] {
    Sha256::digest(value.expose_secret().as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redacts_learned_values() {
        let dir = tempfile::tempdir().unwrap();
        let secrets = Secrets::new(dir.path(), None, vec!["configured".into()]);
        let project = ProjectId::new();
        let before = secrets.redactor(project);
        secrets.learn(Some(project), &["first-value".into(), "tiny".into()]);
        secrets.learn(None, &["second-value".into()]);
        let text = "configured first-value second-value tiny";
        assert_eq!(secrets.redactor(project).redact(text).unwrap(), "[redacted] [redacted] [redacted] tiny");
        assert_eq!(before.redact(text).unwrap(), "[redacted] first-value second-value tiny");
        let known = secrets.redactor(project);
        secrets.learn(Some(project), &["first-value".into()]);
        assert!(Arc::ptr_eq(&known, &secrets.redactor(project)), "a known value builds no new redactor");
    }

    #[test]
    fn a_secret_is_redacted_only_in_its_project() {
        let dir = tempfile::tempdir().unwrap();
        let secrets = Secrets::new(dir.path(), None, Vec::new());
        let (one, other) = (ProjectId::new(), ProjectId::new());
        secrets.learn(Some(one), &["postgres".into()]);
        assert_eq!(secrets.redactor(one).redact("use postgres").unwrap(), "use [redacted]");
        assert_eq!(secrets.redactor(other).redact("use postgres"), None);
    }
}
