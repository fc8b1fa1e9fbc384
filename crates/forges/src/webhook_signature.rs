//! Signatures of webhooks: HMAC-SHA256 over the raw body.

use ring::hmac;
use secrecy::{ExposeSecret, SecretString};

/// Checks the header `X-Hub-Signature-256` in constant time.
pub fn is_signed(secret: &SecretString, body: &[u8], header: &str) -> bool {
    let Some(signature) = header.strip_prefix("sha256=").and_then(decode_hex) else { return false };
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.expose_secret().as_bytes());
    hmac::verify(&key, body, &signature).is_ok()
}

/// Signs a body, as a forge does.
pub fn sign(secret: &SecretString, body: &[u8]) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.expose_secret().as_bytes());
    let hex: String = hmac::sign(&key, body).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256={hex}")
}

fn decode_hex(text: &str) -> Option<Vec<u8>> {
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of GitHub's documentation.
    const SIGNED: &str = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";

    #[test]
    fn agrees_with_the_documented_example() {
        let secret = SecretString::from("It's a Secret to Everybody");
        assert_eq!(sign(&secret, b"Hello, World!"), SIGNED);
        assert!(is_signed(&secret, b"Hello, World!", SIGNED));
    }

    #[test]
    fn rejects_everything_else() {
        let secret = SecretString::from("It's a Secret to Everybody");
        let upper = SIGNED.replace("757107ea", "757107EB");
        for header in ["", "sha256=", "sha1=757107ea", &SIGNED[7..], &SIGNED[..70], &upper, &format!("{SIGNED}0")] {
            assert!(!is_signed(&secret, b"Hello, World!", header), "{header}");
        }
        assert!(!is_signed(&secret, b"Hello, World?", SIGNED));
        assert!(!is_signed(&SecretString::from("other"), b"Hello, World!", SIGNED));
    }
}
