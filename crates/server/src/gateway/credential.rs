//! The real key of an upstream: a project's own, else the configuration's, else the deployment's. Where a login is stored
//! in its place, the key is the token in it, renewed in time.

use super::login::{self, Login, Read};
use super::refusal::Refusal;
use super::renew::Renewing;
use crate::options::ModelUpstream;
use crate::secrets::seal::open;
use crate::state::App;
use atoll_core::id::ProjectId;
use atoll_core::network::{Rule, Target};
use atoll_core::sandbox::{Network, NetworkPolicy};
use atoll_store::secrets::{self, Secret};
use axum::http::Uri;
use secrecy::{ExposeSecret, SecretString};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A secret that was changed counts after this.
const FRESH: Duration = Duration::from_secs(5);
const MOST: usize = 1000;
/// A login that was stored or renewed so shortly ago is not renewed again because an upstream refused it.
const YOUNG: Duration = Duration::from_secs(10);

/// What is shown to an upstream.
#[derive(Clone)]
pub struct Key {
    pub text: SecretString,
    pub kind: KeyKind,
}

#[derive(Clone)]
pub enum KeyKind {
    Plain,
    /// A login's token, and whose it is, where the upstream wants to hear that too.
    Login {
        account: Option<String>,
    },
}

/// What is there for an upstream.
#[derive(Clone)]
pub struct Found {
    pub text: SecretString,
    /// Where it is stored; none: in the configuration.
    pub row: Option<Arc<Secret>>,
}

/// When it was looked for, and what was there.
type Seen = (Instant, Option<Found>);

#[derive(Default)]
pub struct Credentials {
    /// What was read of the store a moment ago.
    known: Mutex<HashMap<(ProjectId, String), Seen>>,
    renewing: Renewing,
}

impl Credentials {
    /// Nothing where the upstream wants none.
    pub async fn of(
        &self,
        app: &Arc<App>,
        project: ProjectId,
        upstream: &ModelUpstream,
    ) -> Result<Option<Key>, Refusal> {
        let Some(found) = self.find(app, project, upstream).await? else {
            return if upstream.needs_key { Err(missing(upstream)) } else { Ok(None) };
        };
        let login = match login::read(upstream.api, &found.text) {
            Read::Key => return Ok(Some(Key { text: found.text, kind: KeyKind::Plain })),
            Read::Login(login) => login,
            Read::Neither => return Err(unusable(upstream, "it is JSON, but no login of an agent that is known here")),
        };
        if !login.is_due(app.clock.now()) {
            learn(app, &found, &login);
            return Ok(Some(key(login)));
        }
        self.renew(app, upstream, found).await.map(Some)
    }

    /// After the upstream did not take it: another one, if there is.
    pub async fn after(
        &self,
        app: &Arc<App>,
        project: ProjectId,
        upstream: &ModelUpstream,
        refused: &Key,
    ) -> Option<Key> {
        match refused.kind {
            KeyKind::Plain => return None,
            KeyKind::Login { .. } => {}
        }
        let found = self.find(app, project, upstream).await.ok()??;
        // One that is new can't be too old: then something else is wrong with it.
        let age = app.clock.now().elapsed_since(found.row.as_ref()?.updated_at);
        if age < YOUNG {
            return None;
        }
        let key = self.renew(app, upstream, found).await.ok()?;
        (key.text.expose_secret() != refused.text.expose_secret()).then_some(key)
    }

    async fn renew(&self, app: &Arc<App>, upstream: &ModelUpstream, found: Found) -> Result<Key, Refusal> {
        let renewed = self.renewing.renew(app, upstream, found).await;
        // Whatever came of it stands in the store.
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clear();
        renewed.map(key)
    }

    async fn find(&self, app: &App, project: ProjectId, upstream: &ModelUpstream) -> Result<Option<Found>, Refusal> {
        let Some(name) = upstream.secret.clone() else { return Ok(configured(upstream)) };
        let place = (project, upstream.name.clone());
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&place).cloned();
        if let Some((_, found)) = known.filter(|(read, _)| read.elapsed() < FRESH) {
            return Ok(found);
        }
        let found = stored(app, project, name, upstream).await?;
        let mut all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MOST {
            all.clear();
        }
        all.insert(place, (Instant::now(), found.clone()));
        Ok(found)
    }
}

fn key(login: Login) -> Key {
    Key { text: login.access, kind: KeyKind::Login { account: login.account } }
}

/// The tokens in a login are secrets as well as the whole.
pub fn learn(app: &App, found: &Found, login: &Login) {
    let tokens: Vec<_> = [Some(&login.access), login.refresh.as_ref()].into_iter().flatten().cloned().collect();
    app.secrets.learn(found.row.as_ref().and_then(|row| row.project_id), &tokens);
}

fn configured(upstream: &ModelUpstream) -> Option<Found> {
    upstream.key.clone().map(|text| Found { text, row: None })
}

fn missing(upstream: &ModelUpstream) -> Refusal {
    let uri = upstream.url.parse::<Uri>().ok();
    let host = uri.and_then(|uri| Some(uri.authority()?.to_string())).unwrap_or_default();
    Refusal::NoKey { upstream: upstream.name.clone(), secret: upstream.secret.clone(), host }
}

pub fn unusable(upstream: &ModelUpstream, detail: impl Into<String>) -> Refusal {
    Refusal::KeyUnusable { upstream: upstream.name.clone(), detail: detail.into() }
}

async fn stored(
    app: &App,
    project: ProjectId,
    name: String,
    upstream: &ModelUpstream,
) -> Result<Option<Found>, Refusal> {
    let found = app.read(move |tx| Box::pin(async move { Ok(secrets::find(tx, project, &name).await?) })).await;
    let found = found.map_err(|problem| {
        tracing::warn!(upstream = upstream.name, detail = %problem.detail, "a model's key could not be read");
        Refusal::Busy
    })?;
    let usable = found.filter(|secret| may_go_to(secret, &upstream.url));
    match usable {
        // The configuration goes before what is everybody's, and not before what a project has set for itself.
        Some(secret) if secret.project_id.is_some() || upstream.key.is_none() => {
            let text = app.secrets.keys().and_then(|keys| open(&secret, &keys)).map_err(|error| {
                tracing::warn!(upstream = upstream.name, %error, "a model's key can't be opened");
                unusable(upstream, error.to_string())
            })?;
            Ok(Some(Found { text, row: Some(Arc::new(secret)) }))
        }
        Some(_) | None => Ok(configured(upstream)),
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
