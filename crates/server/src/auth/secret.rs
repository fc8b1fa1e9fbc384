//! Tokens as they are written: `atoll_<id>_<secret>`. Only a hash of the secret is stored.

use atoll_core::id::TokenId;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

const PREFIX: &str = "atoll_";

/// A token that was just made: the one time it can be shown.
#[derive(Debug)]
pub struct NewSecret {
    pub id: TokenId,
    pub token: SecretString,
    pub hash: String,
}

/// 256 random bits: a slow hash would protect nothing more.
pub fn generate(id: TokenId) -> NewSecret {
    let secret = URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>());
    let hash = hash(&secret);
    let short = id.to_string();
    let short = short.strip_prefix("tok_").unwrap_or(&short);
    NewSecret { id, token: SecretString::from(format!("{PREFIX}{short}_{secret}")), hash }
}

fn hash(secret: &str) -> String {
    URL_SAFE_NO_PAD.encode(Sha256::digest(secret.as_bytes()))
}

/// The id and the hash of what was shown, if it has the form of a token.
pub fn parse(token: &SecretString) -> Option<(TokenId, String)> {
    let (id, secret) = token.expose_secret().strip_prefix(PREFIX)?.split_once('_')?;
    Some((format!("tok_{id}").parse().ok()?, hash(secret)))
}

pub fn same(a: &str, b: &str) -> bool {
    a.as_bytes().ct_eq(b.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_made_is_recognised_and_nothing_else() {
        let made = generate(TokenId::new());
        let (id, hash) = parse(&made.token).unwrap();
        assert!(id == made.id && same(&hash, &made.hash));
        let other = generate(made.id);
        assert!(!same(&parse(&other.token).unwrap().1, &made.hash));
        for bad in ["", "atoll_", "atoll_x_y", "bearer", "atoll_0_"] {
            assert!(parse(&SecretString::from(bad)).is_none(), "{bad}");
        }
    }

    #[test]
    fn a_token_is_redacted_wherever_it_turns_up() {
        let made = generate(TokenId::new());
        let text = format!("{{\"x\":\"{}\"}}", made.token.expose_secret());
        let redacted = atoll_core::redact::Redactor::default().redact(&text).unwrap();
        assert_eq!(redacted, r#"{"x":"[redacted]"}"#);
    }
}
