//! Secrets: the keys that seal them, and what the redactor knows of them. What is stored is in `app::secrets`.

pub mod keys;
pub mod seal;

use crate::problem::{Code, Problem, Result};
use atoll_core::id::ProjectId;
use atoll_core::login;
use atoll_core::redact::Redactor;
use atoll_core::secret::Exposure;
use keys::{Place, Ring};
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// How many values of one project are known at most, many times what it can have at once; beyond, the oldest are
/// forgotten.
const LEARNED: usize = 20_000;

impl From<keys::Error> for Problem {
    fn from(error: keys::Error) -> Self {
        Self::new(Code::SecretKeyUnusable, error.to_string())
    }
}

/// What this server knows of secrets.
pub struct Secrets {
    place: Place,
    /// Two at once would both make a key.
    making: Mutex<()>,
    known: RwLock<Known>,
}

/// By project: what is a secret in one is an ordinary word in another, whose words would tell by what is missing.
struct Known {
    /// Of the configuration, for every project.
    fixed: Vec<SecretString>,
    /// The deployment's, for every project, are those of none.
    learned: HashMap<Option<ProjectId>, Values>,
    /// Made when they are first asked for.
    redactors: HashMap<ProjectId, Arc<Redactor>>,
}

/// Every value since the start, also those that were replaced: sandboxes may still hold them.
#[derive(Default)]
struct Values {
    values: VecDeque<SecretString>,
    /// Enough to know that one is there already.
    hashes: HashSet<[u8; 32]>,
}

impl Values {
    fn has(&self, value: &SecretString) -> bool {
        self.hashes.contains(&hash(value))
    }

    fn add(&mut self, value: &SecretString) {
        if self.hashes.insert(hash(value)) {
            self.values.push_back(value.clone());
        }
        if self.values.len() > LEARNED
            && let Some(oldest) = self.values.pop_front()
        {
            self.hashes.remove(&hash(&oldest));
        }
    }
}

impl Known {
    fn redactor(&self, project: ProjectId) -> Redactor {
        let learned = [None, Some(project)].map(|whose| self.learned.get(&whose).map(|values| &values.values));
        let learned = learned.into_iter().flatten().flatten();
        Redactor::new(self.fixed.iter().chain(learned).map(|secret| secret.expose_secret()))
    }
}

impl Secrets {
    pub fn new(data_dir: &Path, key: Option<SecretString>, fixed: Vec<SecretString>) -> Self {
        let known = Known { fixed, learned: HashMap::new(), redactors: HashMap::new() };
        Self { place: Place::new(data_dir, key), making: Mutex::default(), known: RwLock::new(known) }
    }

    pub fn keys(&self) -> Result<Ring, keys::Error> {
        self.place.read()
    }

    /// With a key to seal with.
    pub fn for_sealing(&self) -> Result<Ring, keys::Error> {
        let _alone = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        self.place.for_sealing()
    }

    /// With a new key to seal with, unless the configuration names it.
    pub fn renew(&self) -> Result<Ring, keys::Error> {
        let _alone = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        self.place.renew()
    }

    /// What takes the values that are known in a project out of text now.
    pub fn redactor(&self, project: ProjectId) -> Arc<Redactor> {
        let made = self.known.read().unwrap_or_else(PoisonError::into_inner).redactors.get(&project).cloned();
        made.unwrap_or_else(|| {
            let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
            let made = Arc::new(known.redactor(project));
            Arc::clone(known.redactors.entry(project).or_insert(made))
        })
    }

    /// From now on these values are taken out, in a project or in all of them. To be called before anybody can have
    /// them.
    pub fn learn(&self, project: Option<ProjectId>, values: &[SecretString]) {
        let all_known = {
            let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
            let learned = known.learned.get(&project);
            values.iter().all(|value| learned.is_some_and(|learned| learned.has(value)))
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

/// All that must not be seen of a value: of a login file also each token that it holds.
pub fn telling(value: &SecretString, exposure: Option<&Exposure>) -> Vec<SecretString> {
    let texts = match exposure {
        Some(Exposure::File(_)) => login::texts(value.expose_secret()),
        Some(Exposure::Variable(_)) | None => BTreeSet::new(),
    };
    std::iter::once(value.clone()).chain(texts.into_iter().map(SecretString::from)).collect()
}

fn hash(value: &SecretString) -> [u8; 32] {
    Sha256::digest(value.expose_secret().as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_learned_is_taken_out_from_then_on() {
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
        assert!(Arc::ptr_eq(&known, &secrets.redactor(project)), "nothing new, nothing made");
    }

    #[test]
    fn a_secret_of_one_project_is_a_word_in_another() {
        let dir = tempfile::tempdir().unwrap();
        let secrets = Secrets::new(dir.path(), None, Vec::new());
        let (one, other) = (ProjectId::new(), ProjectId::new());
        secrets.learn(Some(one), &["postgres".into()]);
        assert_eq!(secrets.redactor(one).redact("use postgres").unwrap(), "use [redacted]");
        assert_eq!(secrets.redactor(other).redact("use postgres"), None);
    }
}
