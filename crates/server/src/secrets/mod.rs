//! Secrets: the keys that seal them, and what the redactor knows of them. What is stored is in `app::secrets`.

pub mod keys;
pub mod seal;

use crate::problem::{Code, Problem, Result};
use atoll_core::redact::Redactor;
use keys::{Place, Ring};
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use std::collections::{HashSet, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// How many values the redactor knows at most; beyond, the oldest are forgotten.
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

struct Known {
    /// Of the configuration.
    fixed: Vec<SecretString>,
    /// Every value since the start, also those that were replaced: sandboxes may still hold them.
    learned: VecDeque<SecretString>,
    /// By a hash, which is enough to know that one is there already.
    hashes: HashSet<[u8; 32]>,
    redactor: Arc<Redactor>,
}

impl Secrets {
    pub fn new(data_dir: &Path, key: Option<SecretString>, fixed: Vec<SecretString>) -> Self {
        let redactor = Arc::new(Redactor::new(fixed.iter().map(|secret| secret.expose_secret())));
        let known = Known { fixed, learned: VecDeque::new(), hashes: HashSet::new(), redactor };
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

    /// What takes known values out of text now.
    pub fn redactor(&self) -> Arc<Redactor> {
        Arc::clone(&self.known.read().unwrap_or_else(PoisonError::into_inner).redactor)
    }

    /// From now on these values are taken out. To be called before anybody can have them.
    pub fn learn(&self, values: &[SecretString]) {
        let all_known = {
            let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
            values.iter().all(|value| known.hashes.contains(&hash(value)))
        };
        if all_known {
            return;
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        for value in values {
            if known.hashes.insert(hash(value)) {
                known.learned.push_back(value.clone());
            }
        }
        while known.learned.len() > LEARNED {
            if let Some(oldest) = known.learned.pop_front() {
                known.hashes.remove(&hash(&oldest));
            }
        }
        let redactor = Redactor::new(known.fixed.iter().chain(&known.learned).map(|secret| secret.expose_secret()));
        known.redactor = Arc::new(redactor);
    }
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
        let before = secrets.redactor();
        secrets.learn(&["first-value".into(), "second-value".into(), "tiny".into()]);
        let text = "configured first-value second-value tiny";
        assert_eq!(secrets.redactor().redact(text).unwrap(), "[redacted] [redacted] [redacted] tiny");
        assert_eq!(before.redact(text).unwrap(), "[redacted] first-value second-value tiny");
        let known = secrets.redactor();
        secrets.learn(&["first-value".into()]);
        assert!(Arc::ptr_eq(&known, &secrets.redactor()), "nothing new, nothing made");
    }
}
