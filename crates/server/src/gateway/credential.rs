//! Finds the real key of an upstream: the project's secret, else the configured key, else the deployment's secret. If the
//! secret is a login, the key is its access token.

use super::agent_login::{self, CredentialText, Login};
use super::gateway_refusal::GatewayRefusal;
use super::login_renewal::LoginRenewals;
use crate::secrets::seal::open_secret;
use crate::state::App;
use atoll_config::Upstream;
use atoll_core::id::ProjectId;
use atoll_core::network::{NetworkRule, NetworkTarget};
use atoll_core::sandbox::{Network, NetworkPolicy};
use atoll_store::secrets::{self, SecretRow};
use axum::http::Uri;
use secrecy::{ExposeSecret, SecretString};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A changed secret takes effect after this time.
const CACHE_TTL: Duration = Duration::from_secs(5);
const MAX_CACHED_CREDENTIALS: usize = 1000;
/// A younger login is not renewed when an upstream rejects it.
const MIN_RENEWAL_AGE: Duration = Duration::from_secs(10);

/// The key for one request to an upstream.
#[derive(Clone)]
pub struct UpstreamKey {
    pub text: SecretString,
    pub kind: KeyKind,
}

#[derive(Clone)]
pub enum KeyKind {
    Plain,
    /// Access token of a login, with the account id that some upstreams require.
    Login {
        account: Option<String>,
    },
}

/// A key or a login, before it is parsed.
#[derive(Clone)]
pub struct StoredCredential {
    pub text: SecretString,
    /// The stored secret; `None` for a configured key.
    pub row: Option<Arc<SecretRow>>,
}

/// The time of the read, and its result.
type CachedCredential = (Instant, Option<StoredCredential>);

#[derive(Default)]
pub struct Credentials {
    /// Recent reads of the store.
    cache: Mutex<HashMap<(ProjectId, String), CachedCredential>>,
    renewals: LoginRenewals,
}

impl Credentials {
    /// The key for an upstream; `None` if it needs none. Renews a login that is due.
    pub async fn find_key(
        &self,
        app: &Arc<App>,
        project: ProjectId,
        upstream: &Upstream,
    ) -> Result<Option<UpstreamKey>, GatewayRefusal> {
        let Some(found) = self.find_credential(app, project, upstream).await? else {
            return if upstream.needs_key { Err(missing_key(upstream)) } else { Ok(None) };
        };
        let login = match agent_login::parse_credential(upstream.api, &found.text) {
            CredentialText::Key => return Ok(Some(UpstreamKey { text: found.text, kind: KeyKind::Plain })),
            CredentialText::Login(login) => login,
            CredentialText::UnknownJson => {
                return Err(unusable_key(upstream, "it is JSON, but not a known login format"));
            }
        };
        if !login.is_due(app.clock.now()) {
            learn_tokens(app, &found, &login);
            return Ok(Some(login_key(login)));
        }
        self.renew_login(app, upstream, found).await.map(Some)
    }

    /// A replacement for a key that the upstream rejected, if there is one.
    pub async fn key_after_rejection(
        &self,
        app: &Arc<App>,
        project: ProjectId,
        upstream: &Upstream,
        refused: &UpstreamKey,
    ) -> Option<UpstreamKey> {
        match refused.kind {
            KeyKind::Plain => return None,
            KeyKind::Login { .. } => {}
        }
        let found = self.find_credential(app, project, upstream).await.ok()??;
        // A new login has not expired, so another error caused the rejection.
        let age = app.clock.now().elapsed_since(found.row.as_ref()?.updated_at);
        if age < MIN_RENEWAL_AGE {
            return None;
        }
        let key = self.renew_login(app, upstream, found).await.ok()?;
        (key.text.expose_secret() != refused.text.expose_secret()).then_some(key)
    }

    async fn renew_login(
        &self,
        app: &Arc<App>,
        upstream: &Upstream,
        found: StoredCredential,
    ) -> Result<UpstreamKey, GatewayRefusal> {
        let renewed = self.renewals.renew_login(app, upstream, found).await;
        // The store now holds the result.
        self.cache.lock().unwrap_or_else(PoisonError::into_inner).clear();
        renewed.map(login_key)
    }

    async fn find_credential(
        &self,
        app: &App,
        project: ProjectId,
        upstream: &Upstream,
    ) -> Result<Option<StoredCredential>, GatewayRefusal> {
        let Some(name) = upstream.secret.clone() else { return Ok(configured_credential(upstream)) };
        let place = (project, upstream.name.clone());
        let known = self.cache.lock().unwrap_or_else(PoisonError::into_inner).get(&place).cloned();
        if let Some((_, found)) = known.filter(|(read, _)| read.elapsed() < CACHE_TTL) {
            return Ok(found);
        }
        let found = load_credential(app, project, name, upstream).await?;
        let mut all = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MAX_CACHED_CREDENTIALS {
            all.clear();
        }
        all.insert(place, (Instant::now(), found.clone()));
        Ok(found)
    }
}

fn login_key(login: Login) -> UpstreamKey {
    UpstreamKey { text: login.access, kind: KeyKind::Login { account: login.account } }
}

/// Adds the tokens of a login to the redactor.
pub fn learn_tokens(app: &App, found: &StoredCredential, login: &Login) {
    let tokens: Vec<_> = [Some(&login.access), login.refresh.as_ref()].into_iter().flatten().cloned().collect();
    app.secrets.learn(found.row.as_ref().and_then(|row| row.project_id), &tokens);
}

fn configured_credential(upstream: &Upstream) -> Option<StoredCredential> {
    upstream.key.clone().map(|text| StoredCredential { text, row: None })
}

fn missing_key(upstream: &Upstream) -> GatewayRefusal {
    GatewayRefusal::MissingKey { upstream: upstream.name.clone(), secret: upstream.secret.clone() }
}

pub fn unusable_key(upstream: &Upstream, detail: impl Into<String>) -> GatewayRefusal {
    GatewayRefusal::KeyUnusable { upstream: upstream.name.clone(), detail: detail.into() }
}

async fn load_credential(
    app: &App,
    project: ProjectId,
    name: String,
    upstream: &Upstream,
) -> Result<Option<StoredCredential>, GatewayRefusal> {
    let found = app.read(async move |tx| Ok(secrets::resolve_secret(tx, project, &name).await?)).await;
    let found = found.map_err(|problem| {
        tracing::warn!(upstream = upstream.name, detail = %problem.detail, "failed to read the key of an upstream");
        GatewayRefusal::Busy
    })?;
    let usable = found.filter(|secret| is_bound_to(secret, &upstream.url));
    match usable {
        // A project's secret wins over the configured key, which wins over the deployment's secret.
        Some(secret) if secret.project_id.is_some() || upstream.key.is_none() => {
            let text = app.secrets.key_ring().and_then(|keys| open_secret(&secret, &keys)).map_err(|error| {
                tracing::warn!(upstream = upstream.name, %error, "failed to open the key of an upstream");
                unusable_key(upstream, error.to_string())
            })?;
            Ok(Some(StoredCredential { text, row: Some(Arc::new(secret)) }))
        }
        Some(_) | None => Ok(configured_credential(upstream)),
    }
}

/// The secret is bound to the host of this URL.
pub fn is_bound_to(secret: &SecretRow, url: &str) -> bool {
    let Ok(uri) = url.parse::<Uri>() else { return false };
    let port = if uri.scheme_str() == Some("https") { 443 } else { 80 };
    let target = uri.authority().and_then(|authority| NetworkTarget::parse(authority.as_str(), Some(port)));
    let bound = Network { policy: NetworkPolicy::Allow, allow: secret.upstreams.clone() };
    match (target, NetworkRule::new(&bound, &[])) {
        (Some(target), Ok(rule)) => rule.permits(&target),
        (None, _) | (_, Err(_)) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::id::SecretId;
    use atoll_core::time::Timestamp;

    #[test]
    fn a_secret_is_sent_only_to_its_hosts() {
        let now = Timestamp::from_micros(0);
        let mut secret = SecretRow {
            id: SecretId::new(),
            project_id: None,
            name: "KEY".into(),
            sealed: String::new(),
            key_id: String::new(),
            upstreams: vec!["api.z.ai".into(), "models.example:8443".into()],
            expose: None,
            created_by: None,
            created_at: now,
            updated_at: now,
        };
        assert!(is_bound_to(&secret, "https://api.z.ai/api/anthropic"));
        assert!(is_bound_to(&secret, "https://models.example:8443"));
        for other in ["https://z.ai", "https://api.z.ai:8443", "https://models.example", "nonsense", ""] {
            assert!(!is_bound_to(&secret, other), "{other}");
        }
        secret.upstreams.clear();
        assert!(!is_bound_to(&secret, "https://api.z.ai"), "an unbound secret is sent nowhere");
    }
}
