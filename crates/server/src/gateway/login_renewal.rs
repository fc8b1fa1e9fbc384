//! Renews logins at their token endpoint and stores the result. Only the server renews them: a second client that renews
//! the same login would invalidate it.

use super::agent_login::{self, CredentialText, Login, TokenGrant};
use super::credential::{StoredCredential, learn_tokens, unusable_key};
use super::gateway_refusal::GatewayRefusal;
use crate::secrets::seal::{open_secret, seal_secret};
use crate::state::App;
use atoll_config::Upstream;
use atoll_core::id::SecretId;
use atoll_core::model::{BodyEncoding, LoginRenewal};
use atoll_store::secrets::{self, SecretRow};
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderValue, Method, Request, StatusCode, Uri};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Timeout of a renewal request.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_RESPONSE_BYTES: usize = 64 << 10;
/// Attempts to store a renewed login. Without it the login is lost.
const MAX_STORE_ATTEMPTS: u32 = 8;
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(100);

/// One lock per stored login, so that one renewal runs at a time.
#[derive(Default)]
pub struct LoginRenewals(Mutex<HashMap<SecretId, Arc<tokio::sync::Mutex<()>>>>);

impl LoginRenewals {
    /// Renews a login, or returns the one that another request or server has renewed meanwhile.
    pub async fn renew_login(
        &self,
        app: &Arc<App>,
        upstream: &Upstream,
        credential: StoredCredential,
    ) -> Result<Login, GatewayRefusal> {
        let Some(row) = credential.row.clone() else {
            return unexpired_login(app, upstream, &credential.text).ok_or_else(|| {
                unusable_key(
                    upstream,
                    "the configured login has expired, and only a stored one can be renewed: store it with \
                     `atoll secret set`",
                )
            });
        };
        let alone = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            all.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(all.entry(row.id).or_default())
        };
        let (app, upstream) = (Arc::clone(app), upstream.clone());
        // A separate task, so that a client's disconnect does not cancel the renewal: losing its response loses the login.
        let renewing = tokio::spawn(async move {
            let _alone = alone.lock().await;
            renew_locked(&app, &upstream, &credential, &row).await
        });
        renewing.await.unwrap_or(Err(GatewayRefusal::Busy))
    }
}

fn unexpired_login(app: &App, upstream: &Upstream, text: &SecretString) -> Option<Login> {
    match agent_login::parse_credential(upstream.api, text) {
        CredentialText::Login(login) if !login.is_expired(app.clock.now()) => Some(login),
        CredentialText::Login(_) | CredentialText::Key | CredentialText::UnknownJson => None,
    }
}

async fn renew_locked(
    app: &Arc<App>,
    upstream: &Upstream,
    credential: &StoredCredential,
    row: &SecretRow,
) -> Result<Login, GatewayRefusal> {
    if let Some(other) = login_changed_since(app, upstream, credential, row).await? {
        return Ok(other);
    }
    let CredentialText::Login(old) = agent_login::parse_credential(upstream.api, &credential.text) else {
        return Err(GatewayRefusal::Busy);
    };
    let request = match (&upstream.login, &old.refresh) {
        (Some(renewal), Some(refresh)) => request_grant(app, upstream, renewal, refresh).await,
        (None, _) => Err(unusable_key(
            upstream,
            format!("no endpoint to renew its login: set `login` of {} in `upstreams`", upstream.name),
        )),
        (_, None) => Err(unusable_key(
            upstream,
            "its login has no refresh token: log in again and store it with `atoll secret set`",
        )),
    };
    let grant = match request {
        Ok(grant) => grant,
        Err(refusal) => {
            tracing::warn!(
                upstream = upstream.name,
                secret = row.name,
                detail = refusal.message(),
                "failed to renew a login"
            );
            // Another server may have renewed it, or the old login is still valid.
            let other = login_changed_since(app, upstream, credential, row).await?;
            return other.or_else(|| unexpired_login(app, upstream, &credential.text)).ok_or(refusal);
        }
    };
    let text = agent_login::apply_grant(upstream.api, &credential.text, &grant, app.clock.now());
    let text = text.ok_or_else(|| unusable_key(upstream, "failed to update its login file"))?;
    let CredentialText::Login(new) = agent_login::parse_credential(upstream.api, &text) else {
        return Err(GatewayRefusal::Busy);
    };
    learn_tokens(app, credential, &new);
    app.secrets.learn(row.project_id, std::slice::from_ref(&text));
    store_login(app, row, text).await;
    Ok(new)
}

/// The stored login, if it changed since it was read.
async fn login_changed_since(
    app: &App,
    upstream: &Upstream,
    credential: &StoredCredential,
    row: &SecretRow,
) -> Result<Option<Login>, GatewayRefusal> {
    let (project, name) = (row.project_id, row.name.clone());
    let read = app.read(async move |tx| Ok(secrets::find_secret_in_scope(tx, project, &name).await?)).await;
    let now =
        read.map_err(|_| GatewayRefusal::Busy)?.ok_or_else(|| unusable_key(upstream, "the secret was just removed"))?;
    let text = app.secrets.key_ring().and_then(|keys| open_secret(&now, &keys));
    let text = text.map_err(|error| unusable_key(upstream, error.to_string()))?;
    if text.expose_secret() == credential.text.expose_secret() {
        return Ok(None);
    }
    let login = unexpired_login(app, upstream, &text);
    if let Some(login) = &login {
        learn_tokens(app, credential, login);
    }
    Ok(login)
}

/// Stores a renewed login, unless the secret was set again meanwhile.
async fn store_login(app: &Arc<App>, row: &SecretRow, text: SecretString) {
    let mut pause = FIRST_RETRY_DELAY;
    for _ in 0..MAX_STORE_ATTEMPTS {
        match replace_secret(app, row.clone(), text.clone()).await {
            Ok(()) => return,
            Err(detail) => tracing::error!(secret = row.name, detail, "failed to store a renewed login; will retry"),
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
    tracing::error!(secret = row.name, "failed to store a renewed login: log in again and set the secret again");
}

async fn replace_secret(app: &Arc<App>, old: SecretRow, text: SecretString) -> Result<(), String> {
    let ring = app.secrets.sealing_ring().map_err(|error| error.to_string())?;
    let written = app.write(async move |work| {
        secrets::lock_secrets(work.tx, old.project_id).await?;
        let known = secrets::find_secret_in_scope(work.tx, old.project_id, &old.name).await?;
        // Sealing with another key keeps `updated_at`; setting the secret changes it.
        let same = known.filter(|now| now.id == old.id && now.updated_at == old.updated_at);
        if let (Some(mut row), Some(key)) = (same, ring.current()) {
            row.updated_at = work.now;
            seal_secret(&mut row, &text, key)?;
            secrets::update_secret(work.tx, &row).await?;
        }
        Ok(())
    });
    written.await.map_err(|problem| problem.detail.to_string())
}

fn renewal_request(renewal: &LoginRenewal, refresh: &SecretString) -> Option<Request<Full<Bytes>>> {
    let fields = [
        ("grant_type", "refresh_token"),
        ("refresh_token", refresh.expose_secret()),
        ("client_id", &renewal.client_id),
    ];
    let (kind, body) = match renewal.body {
        BodyEncoding::Json => ("application/json", json!(fields.into_iter().collect::<HashMap<_, _>>()).to_string()),
        BodyEncoding::Form => {
            let pairs = fields.map(|(name, value)| format!("{name}={}", form_encode(value)));
            ("application/x-www-form-urlencoded", pairs.join("&"))
        }
    };
    let mut request = Request::new(Full::from(body));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = renewal.token_url.parse::<Uri>().ok()?;
    let headers = request.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    Some(request)
}

fn form_encode(value: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    value.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

async fn request_grant(
    app: &App,
    upstream: &Upstream,
    renewal: &LoginRenewal,
    refresh: &SecretString,
) -> Result<TokenGrant, GatewayRefusal> {
    let unreachable = |detail: String| GatewayRefusal::Unreachable {
        upstream: upstream.name.clone(),
        detail: format!("failed to renew its login at {}: {detail}", renewal.token_url),
    };
    let request = renewal_request(renewal, refresh).ok_or_else(|| unreachable("invalid URL".to_owned()))?;
    let answered = tokio::time::timeout(RESPONSE_TIMEOUT, async {
        let response =
            app.gateway.client.request(request).await.map_err(|error| super::upstream_client::root_cause(&error))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES)
            .collect()
            .await
            .map_err(|error| error.to_string())?;
        Ok::<_, String>((status, body.to_bytes()))
    });
    let (status, body) =
        answered.await.map_err(|_| unreachable("the response timed out".to_owned()))?.map_err(unreachable)?;
    match status {
        StatusCode::OK => {
            serde_json::from_slice(&body).map_err(|_| unreachable("the response has no token".to_owned()))
        }
        // The response body may repeat the refresh token, so it is not forwarded.
        StatusCode::BAD_REQUEST | StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(unusable_key(
            upstream,
            format!(
                "its login can no longer be renewed ({} responded {}); log in again and store it with `atoll secret set`",
                renewal.token_url,
                status.as_u16()
            ),
        )),
        status => Err(unreachable(format!("it responded {}", status.as_u16()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn encodes_the_renewal_request_as_configured() {
        let sent = async |body: BodyEncoding| {
            let renewal = LoginRenewal { token_url: "https://x.example/token".into(), client_id: "a b".into(), body };
            let request = renewal_request(&renewal, &"r&=1".into()).unwrap();
            let kind = request.headers()[CONTENT_TYPE].to_str().unwrap().to_owned();
            let bytes = request.into_body().collect().await.unwrap().to_bytes();
            (kind, String::from_utf8(bytes.to_vec()).unwrap())
        };
        let (kind, text) = sent(BodyEncoding::Form).await;
        assert_eq!(kind, "application/x-www-form-urlencoded");
        assert_eq!(text, "grant_type=refresh_token&refresh_token=r%26%3D1&client_id=a%20b");
        let (kind, text) = sent(BodyEncoding::Json).await;
        let json_body: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(kind, "application/json");
        assert_eq!(json_body, json!({ "grant_type": "refresh_token", "refresh_token": "r&=1", "client_id": "a b" }));
    }
}
