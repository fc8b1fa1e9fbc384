//! The placeholder keys of sandboxes. Each is valid only on its own sandbox's connections, so a leaked one is useless.

use atoll_core::id::SandboxId;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use secrecy::{ExposeSecret, SecretBox};
use sha2::{Digest, Sha256};

/// The stored secret that placeholders are derived from, so that they survive a restart.
pub struct Placeholders(SecretBox<[u8; 32]>);

impl Placeholders {
    /// Decodes the stored form.
    pub fn decode(text: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        Some(Self(SecretBox::new(Box::new(bytes.try_into().ok()?))))
    }

    pub fn generate() -> Self {
        Self(SecretBox::new(Box::new(rand::random())))
    }

    pub fn encode(&self) -> String {
        URL_SAFE_NO_PAD.encode(self.0.expose_secret())
    }

    pub fn derive_key(&self, sandbox: SandboxId) -> String {
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
    fn each_sandbox_has_its_own_stable_placeholder() {
        let (placeholders, one, other) = (Placeholders::generate(), SandboxId::new(), SandboxId::new());
        assert_ne!(placeholders.derive_key(one), placeholders.derive_key(other));
        let again = Placeholders::decode(&placeholders.encode()).unwrap();
        assert_eq!(placeholders.derive_key(one), again.derive_key(one));
        assert_ne!(Placeholders::generate().derive_key(one), placeholders.derive_key(one));
        assert!(Placeholders::decode("short").is_none());
    }
}
