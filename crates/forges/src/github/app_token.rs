//! Tokens of a GitHub App: a signed JWT, exchanged for a token that is limited to one repository.

use super::client::{GitHub, Repeat};
use crate::error::{Error, Result};
use crate::forge::RepositoryName;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use reqwest::Method;
use ring::rand::SystemRandom;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::json;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Allows for a clock that is ahead of GitHub's.
const CLOCK_SKEW_S: u64 = 60;
/// GitHub accepts at most 10 minutes.
const JWT_LIFETIME_S: u64 = 540;
/// An installation token lasts an hour. It is replaced when less than this is left.
const TOKEN_LIFETIME: Duration = Duration::from_secs(3600);
const RENEWAL_MARGIN: Duration = Duration::from_secs(300);
const MAX_CACHED_TOKENS: usize = 1000;

/// An App and its key.
#[derive(Debug, Clone)]
pub struct AppCredentials {
    /// The client id, or the numeric id.
    pub app_id: String,
    /// The private key, PEM.
    pub private_key: SecretString,
}

impl AppCredentials {
    /// Signs a JWT that authenticates the App for a few minutes.
    fn sign_jwt(&self, now: u64) -> Result<SecretString> {
        let unusable = |detail: &str| Error::Configuration { detail: format!("github.app_key: {detail}") };
        let pem = self.private_key.expose_secret().as_bytes();
        let key = PrivateKeyDer::from_pem_slice(pem).map_err(|_| unusable("is not a private key in PEM form"))?;
        let pair = match &key {
            PrivateKeyDer::Pkcs1(der) => RsaKeyPair::from_der(der.secret_pkcs1_der()),
            PrivateKeyDer::Pkcs8(der) => RsaKeyPair::from_pkcs8(der.secret_pkcs8_der()),
            _ => return Err(unusable("is not an RSA key")),
        };
        let pair = pair.map_err(|_| unusable("is not a usable RSA key"))?;
        let claims =
            json!({ "iat": now.saturating_sub(CLOCK_SKEW_S), "exp": now + JWT_LIFETIME_S, "iss": self.app_id });
        let encode = |text: String| URL_SAFE_NO_PAD.encode(text);
        let signed =
            format!("{}.{}", encode(json!({ "alg": "RS256", "typ": "JWT" }).to_string()), encode(claims.to_string()));
        let mut signature = vec![0; pair.public().modulus_len()];
        pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), signed.as_bytes(), &mut signature)
            .map_err(|_| unusable("cannot sign"))?;
        Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)).into())
    }
}

#[derive(Deserialize)]
struct Installation {
    id: u64,
}

#[derive(Deserialize)]
struct InstallationToken {
    token: String,
}

struct CachedToken {
    token: SecretString,
    requested_at: Instant,
}

/// Installation tokens by repository, until shortly before they expire.
#[derive(Default)]
pub(super) struct AppTokens {
    cached: Mutex<HashMap<String, CachedToken>>,
    /// One request at a time: all others then find its token.
    requests: Arc<tokio::sync::Mutex<()>>,
}

impl AppTokens {
    pub async fn find_or_request(
        &self,
        github: &GitHub,
        app: &AppCredentials,
        repository: &RepositoryName,
    ) -> Result<SecretString> {
        if let Some(token) = self.find(repository) {
            return Ok(token);
        }
        let _alone = self.requests.lock().await;
        if let Some(token) = self.find(repository) {
            return Ok(token);
        }
        let requested_at = Instant::now();
        let token = request_token(github, app, repository).await?;
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        if cached.len() >= MAX_CACHED_TOKENS {
            cached.clear();
        }
        cached.insert(repository.to_string(), CachedToken { token: token.clone(), requested_at });
        Ok(token)
    }

    /// Requests another token at the next use, unless there is another one already.
    pub fn forget(&self, repository: &RepositoryName, token: &SecretString) {
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        let name = repository.to_string();
        if cached.get(&name).is_some_and(|known| known.token.expose_secret() == token.expose_secret()) {
            cached.remove(&name);
        }
    }

    fn find(&self, repository: &RepositoryName) -> Option<SecretString> {
        let cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        let found = cached.get(&repository.to_string())?;
        (found.requested_at.elapsed() + RENEWAL_MARGIN < TOKEN_LIFETIME).then(|| found.token.clone())
    }
}

async fn request_token(github: &GitHub, app: &AppCredentials, repository: &RepositoryName) -> Result<SecretString> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let jwt = app.sign_jwt(now)?;
    let path = format!("/repos/{}/{}/installation", repository.owner, repository.name);
    let found = github.send_as(&jwt, Method::GET, &path, None::<&()>, Repeat::Safe).await?;
    let installation: Installation = found.parse("installation of the App on the repository")?;
    let path = format!("/app/installations/{}/access_tokens", installation.id);
    let body = json!({ "repositories": [repository.name] });
    let created = github.send_as(&jwt, Method::POST, &path, Some(&body), Repeat::Safe).await?;
    Ok(created.parse::<InstallationToken>("installation of the App")?.token.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring::signature::{RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};
    use serde_json::Value;
    use std::process::Command;

    /// A key made by openssl, in the form that GitHub hands out or in PKCS#8.
    fn make_key(is_pkcs1: bool) -> String {
        let form: &[&str] = if is_pkcs1 { &["-traditional"] } else { &[] };
        let made = Command::new("openssl").args(["genrsa"]).args(form).arg("2048").output().unwrap();
        String::from_utf8(made.stdout).unwrap()
    }

    #[test]
    fn signs_a_jwt_with_both_forms_of_a_key() {
        for is_pkcs1 in [true, false] {
            let pem = make_key(is_pkcs1);
            let app = AppCredentials { app_id: "Iv1.abc".into(), private_key: pem.clone().into() };
            let jwt = app.sign_jwt(10_000).unwrap();
            let parts: Vec<&str> = jwt.expose_secret().split('.').collect();
            let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).unwrap();
            let claims: Value = serde_json::from_slice(&decode(parts[1])).unwrap();
            assert_eq!(claims, json!({ "iat": 9_940, "exp": 10_540, "iss": "Iv1.abc" }));
            let key = PrivateKeyDer::from_pem_slice(pem.as_bytes()).unwrap();
            let pair = match &key {
                PrivateKeyDer::Pkcs1(der) => RsaKeyPair::from_der(der.secret_pkcs1_der()),
                PrivateKeyDer::Pkcs8(der) => RsaKeyPair::from_pkcs8(der.secret_pkcs8_der()),
                _ => panic!("neither form"),
            };
            let public = pair.unwrap().public().as_ref().to_vec();
            let signed = format!("{}.{}", parts[0], parts[1]);
            let verified = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, public);
            verified.verify(signed.as_bytes(), &decode(parts[2])).unwrap();
        }
    }

    #[test]
    fn a_bad_key_is_an_error_without_the_key() {
        for text in ["hidden-key", "-----BEGIN RSA PRIVATE KEY-----\nhidden\n-----END RSA PRIVATE KEY-----\n"] {
            let app = AppCredentials { app_id: "1".into(), private_key: text.into() };
            let error = app.sign_jwt(0).unwrap_err().to_string();
            assert!(error.starts_with("github.app_key:") && !error.contains("hidden"), "{error}");
            assert!(!format!("{app:?}").contains("hidden"));
        }
    }
}
