//! The text form of tokens: `atoll_<id>_<secret>`. Only a hash of the secret is stored.

use atoll_core::id::TokenId;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

const PREFIX: &str = "atoll_";

/// A new token, which is shown only once.
#[derive(Debug)]
pub struct IssuedToken {
    pub id: TokenId,
    pub token: SecretString,
    pub hash: String,
}

/// A new secret, which is shown only once.
#[derive(Debug)]
pub struct IssuedSecret {
    pub secret: SecretString,
    pub hash: String,
}

/// Generates a secret of 256 random bits, for which a slow hash adds no protection.
pub fn generate_secret() -> IssuedSecret {
    let secret = URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>());
    let hash = hash_secret(&secret);
    IssuedSecret { secret: SecretString::from(secret), hash }
}

pub fn generate_token(id: TokenId) -> IssuedToken {
    let IssuedSecret { secret, hash } = generate_secret();
    let short = id.to_string();
    let short = short.strip_prefix("tok_").unwrap_or(&short);
    IssuedToken { id, token: SecretString::from(format!("{PREFIX}{short}_{}", secret.expose_secret())), hash }
}

pub fn hash_secret(secret: &str) -> String {
    URL_SAFE_NO_PAD.encode(Sha256::digest(secret.as_bytes()))
}

/// Parses a token into its id and the hash of its secret.
pub fn parse_token(token: &SecretString) -> Option<(TokenId, String)> {
    let (id, secret) = token.expose_secret().strip_prefix(PREFIX)?.split_once('_')?;
    Some((format!("tok_{id}").parse().ok()?, hash_secret(secret)))
}

pub fn equal_hashes(a: &str, b: &str) -> bool {
    a.as_bytes().ct_eq(b.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognises_only_the_generated_token() {
        let generated = generate_token(TokenId::new());
        let (id, hash) = parse_token(&generated.token).unwrap();
        assert!(id == generated.id && equal_hashes(&hash, &generated.hash));
        let other = generate_token(generated.id);
        assert!(!equal_hashes(&parse_token(&other.token).unwrap().1, &generated.hash));
        for bad in ["", "atoll_", "atoll_x_y", "bearer", "atoll_0_"] {
            assert!(parse_token(&SecretString::from(bad)).is_none(), "{bad}");
        }
    }

    #[test]
    fn the_redactor_removes_tokens() {
        let generated = generate_token(TokenId::new());
        let text = format!("{{\"x\":\"{}\"}}", generated.token.expose_secret());
        let redacted = atoll_core::redact::Redactor::default().redact(&text).unwrap();
        assert_eq!(redacted, r#"{"x":"[redacted]"}"#);
    }
}
