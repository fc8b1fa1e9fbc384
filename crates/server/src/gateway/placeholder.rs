//! The keys that sandboxes have in place of the real ones. Each is good on its own sandbox's connections and nowhere
//! else, so that one that gets out opens nothing.

use atoll_core::id::SandboxId;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use secrecy::{ExposeSecret, SecretBox};
use sha2::{Digest, Sha256};

/// What they are derived from: a restarted server knows those of its predecessor.
pub struct Placeholders(SecretBox<[u8; 32]>);

impl Placeholders {
    /// From its stored form.
    pub fn read(text: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        Some(Self(SecretBox::new(Box::new(bytes.try_into().ok()?))))
    }

    pub fn random() -> Self {
        Self(SecretBox::new(Box::new(rand::random())))
    }

    pub fn written(&self) -> String {
        URL_SAFE_NO_PAD.encode(self.0.expose_secret())
    }

    pub fn of(&self, sandbox: SandboxId) -> String {
        let hash = Sha256::new()
            .chain_update(self.0.expose_secret())
            .chain_update(b"model gateway\0")
            .chain_update(sandbox.to_string());
        format!("atoll-gateway-{}", URL_SAFE_NO_PAD.encode(&hash.finalize()[..24]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sandbox_has_its_own_for_good() {
        let (placeholders, one, other) = (Placeholders::random(), SandboxId::new(), SandboxId::new());
        assert_ne!(placeholders.of(one), placeholders.of(other));
        let again = Placeholders::read(&placeholders.written()).unwrap();
        assert_eq!(placeholders.of(one), again.of(one));
        assert_ne!(Placeholders::random().of(one), placeholders.of(one));
        assert!(Placeholders::read("short").is_none());
    }
}
