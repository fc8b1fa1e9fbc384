//! The real key of an upstream: a project's own, else the configuration's, else the deployment's.

use super::refusal::Refusal;
use crate::options::ModelUpstream;
use crate::secrets::seal::open;
use crate::state::App;
use atoll_core::id::ProjectId;
use atoll_core::network::{Rule, Target};
use atoll_core::sandbox::{Network, NetworkPolicy};
use atoll_store::secrets::{self, Secret};
use axum::http::Uri;
use secrecy::SecretString;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A secret that was changed counts after this.
const FRESH: Duration = Duration::from_secs(5);
const MOST: usize = 1000;

/// What was read of the store a moment ago.
#[derive(Default)]
pub struct Credentials(Mutex<HashMap<(ProjectId, String), Read>>);

/// When, and what was there.
type Read = (Instant, Option<SecretString>);

impl Credentials {
    /// Nothing where the upstream wants none.
    pub async fn of(
        &self,
        app: &App,
        project: ProjectId,
        upstream: &ModelUpstream,
    ) -> Result<Option<SecretString>, Refusal> {
        let Some(name) = upstream.secret.clone() else { return found(upstream.key.clone(), upstream) };
        let place = (project, upstream.name.clone());
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&place).cloned();
        if let Some((_, key)) = known.filter(|(read, _)| read.elapsed() < FRESH) {
            return found(key, upstream);
        }
        let key = stored(app, project, name, upstream).await?;
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MOST {
            all.clear();
        }
        all.insert(place, (Instant::now(), key.clone()));
        drop(all);
        found(key, upstream)
    }
}

fn found(key: Option<SecretString>, upstream: &ModelUpstream) -> Result<Option<SecretString>, Refusal> {
    // Somebody's own place may want none.
    if key.is_some() || !upstream.needs_key {
        return Ok(key);
    }
    let uri = upstream.url.parse::<Uri>().ok();
    let host = uri.and_then(|uri| Some(uri.authority()?.to_string())).unwrap_or_default();
    Err(Refusal::NoKey { upstream: upstream.name.clone(), secret: upstream.secret.clone(), host })
}

async fn stored(
    app: &App,
    project: ProjectId,
    name: String,
    upstream: &ModelUpstream,
) -> Result<Option<SecretString>, Refusal> {
    let found = app.read(move |tx| Box::pin(async move { Ok(secrets::find(tx, project, &name).await?) })).await;
    let found = found.map_err(|problem| {
        tracing::warn!(upstream = upstream.name, detail = %problem.detail, "a model's key could not be read");
        Refusal::Busy
    })?;
    let usable = found.filter(|secret| may_go_to(secret, &upstream.url));
    match usable {
        // The configuration goes before what is everybody's, and not before what a project has set for itself.
        Some(secret) if secret.project_id.is_some() || upstream.key.is_none() => {
            let value = app.secrets.keys().and_then(|keys| open(&secret, &keys));
            value.map(Some).map_err(|error| {
                tracing::warn!(upstream = upstream.name, %error, "a model's key can't be opened");
                Refusal::KeyUnusable { upstream: upstream.name.clone(), detail: error.to_string() }
            })
        }
        Some(_) | None => Ok(upstream.key.clone()),
    }
}

/// A secret goes to the hosts that it is bound to and to no other.
fn may_go_to(secret: &Secret, url: &str) -> bool {
    let Ok(uri) = url.parse::<Uri>() else { return false };
    let port = if uri.scheme_str() == Some("https") { 443 } else { 80 };
    let target = uri.authority().and_then(|authority| Target::parse(authority.as_str(), Some(port)));
    let bound = Network { policy: NetworkPolicy::Allow, allow: secret.upstreams.clone() };
    match (target, Rule::new(&bound)) {
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
    fn a_secret_goes_where_it_is_bound_to() {
        let now = Timestamp::from_micros(0);
        let mut secret = Secret {
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
        assert!(may_go_to(&secret, "https://api.z.ai/api/anthropic"));
        assert!(may_go_to(&secret, "https://models.example:8443"));
        for other in ["https://z.ai", "https://api.z.ai:8443", "https://models.example", "nonsense", ""] {
            assert!(!may_go_to(&secret, other), "{other}");
        }
        secret.upstreams.clear();
        assert!(!may_go_to(&secret, "https://api.z.ai"), "bound to nothing, it goes nowhere");
    }
}
