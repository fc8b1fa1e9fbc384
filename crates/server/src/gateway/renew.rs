//! Renewing a login: asks where its maker says, and puts the answer in its place in the store. The server is the only one
//! who does it: two who renew the same login log each other out.

use super::credential::{Found, learn, unusable};
use super::login::{self, Grant, Login, Read};
use super::refusal::Refusal;
use crate::options::ModelUpstream;
use crate::secrets::seal::{open, seal};
use crate::state::App;
use atoll_core::id::SecretId;
use atoll_core::model::{Encoding, Renewal};
use atoll_store::secrets::{self, Secret};
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderValue, Method, Request, StatusCode, Uri};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// For the whole of an answer.
const ASKING: Duration = Duration::from_secs(30);
const LONGEST: usize = 64 << 10;
/// What was granted is lost if it can't be written down.
const WRITES: u32 = 8;
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// One at a time for each stored login.
#[derive(Default)]
pub struct Renewing(Mutex<HashMap<SecretId, Arc<tokio::sync::Mutex<()>>>>);

impl Renewing {
    /// The login as it is after that, renewed by this or by somebody else.
    pub async fn renew(&self, app: &Arc<App>, upstream: &ModelUpstream, seen: Found) -> Result<Login, Refusal> {
        let Some(row) = seen.row.clone() else {
            return still_good(app, upstream, &seen.text).ok_or_else(|| {
                unusable(
                    upstream,
                    "it is a login whose time is over, and one that is not stored can't be renewed: store it with \
                     `atoll secret set`",
                )
            });
        };
        let alone = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            all.retain(|_, held| Arc::strong_count(held) > 1);
            Arc::clone(all.entry(row.id).or_default())
        };
        let (app, upstream) = (Arc::clone(app), upstream.clone());
        // To its end, also if whoever wanted it goes away: an answer that nobody takes in is the end of the login.
        let renewing = tokio::spawn(async move {
            let _alone = alone.lock().await;
            renew_alone(&app, &upstream, &seen, &row).await
        });
        renewing.await.unwrap_or(Err(Refusal::Busy))
    }
}

fn still_good(app: &App, upstream: &ModelUpstream, text: &SecretString) -> Option<Login> {
    match login::read(upstream.api, text) {
        Read::Login(login) if !login.is_over(app.clock.now()) => Some(login),
        Read::Login(_) | Read::Key | Read::Neither => None,
    }
}

async fn renew_alone(app: &Arc<App>, upstream: &ModelUpstream, seen: &Found, row: &Secret) -> Result<Login, Refusal> {
    if let Some(other) = changed_since(app, upstream, seen, row).await? {
        return Ok(other);
    }
    let Read::Login(old) = login::read(upstream.api, &seen.text) else { return Err(Refusal::Busy) };
    let asked = match (&upstream.login, &old.refresh) {
        (Some(renewal), Some(refresh)) => ask(app, upstream, renewal, refresh).await,
        (None, _) => Err(unusable(
            upstream,
            format!("nobody said where its logins are renewed: set `login` of {} in `upstreams`", upstream.name),
        )),
        (_, None) => Err(unusable(upstream, "its login can't be renewed: log in again and store it anew")),
    };
    let grant = match asked {
        Ok(grant) => grant,
        Err(refusal) => {
            tracing::warn!(
                upstream = upstream.name,
                secret = row.name,
                detail = refusal.sentence(),
                "a login was not renewed"
            );
            // Another server may have been faster; and what is not over yet can still be shown.
            let other = changed_since(app, upstream, seen, row).await?;
            return other.or_else(|| still_good(app, upstream, &seen.text)).ok_or(refusal);
        }
    };
    let text = login::renewed(upstream.api, &seen.text, &grant, app.clock.now());
    let text = text.ok_or_else(|| unusable(upstream, "its login can't be written anew"))?;
    let Read::Login(new) = login::read(upstream.api, &text) else { return Err(Refusal::Busy) };
    learn(app, seen, &new);
    app.secrets.learn(row.project_id, std::slice::from_ref(&text));
    keep(app, row, text).await;
    Ok(new)
}

/// What stands there now if it is no longer what was seen.
async fn changed_since(
    app: &App,
    upstream: &ModelUpstream,
    seen: &Found,
    row: &Secret,
) -> Result<Option<Login>, Refusal> {
    let (project, name) = (row.project_id, row.name.clone());
    let read = app.read(move |tx| Box::pin(async move { Ok(secrets::get(tx, project, &name).await?) })).await;
    let now = read.map_err(|_| Refusal::Busy)?.ok_or_else(|| unusable(upstream, "it was removed a moment ago"))?;
    let text = app.secrets.keys().and_then(|keys| open(&now, &keys));
    let text = text.map_err(|error| unusable(upstream, error.to_string()))?;
    if text.expose_secret() == seen.text.expose_secret() {
        return Ok(None);
    }
    let login = still_good(app, upstream, &text);
    if let Some(login) = &login {
        learn(app, seen, login);
    }
    Ok(login)
}

/// Puts it in the place of the old one, unless somebody has put another there meanwhile.
async fn keep(app: &Arc<App>, row: &Secret, text: SecretString) {
    let mut pause = FIRST_PAUSE;
    for _ in 0..WRITES {
        match write(app, row.clone(), text.clone()).await {
            Ok(()) => return,
            Err(detail) => tracing::error!(secret = row.name, detail, "a renewed login is not stored yet"),
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
    tracing::error!(secret = row.name, "a renewed login could not be stored: log in again and set it anew");
}

async fn write(app: &Arc<App>, old: Secret, text: SecretString) -> Result<(), String> {
    let ring = app.secrets.for_sealing().map_err(|error| error.to_string())?;
    let written = app.write(move |work| {
        Box::pin(async move {
            secrets::lock(work.tx, old.project_id).await?;
            let known = secrets::get(work.tx, old.project_id, &old.name).await?;
            // Sealed anew is not changed; set anew is.
            let same = known.filter(|now| now.id == old.id && now.updated_at == old.updated_at);
            if let (Some(mut row), Some(key)) = (same, ring.current()) {
                row.updated_at = work.now;
                seal(&mut row, &text, key)?;
                secrets::update(work.tx, &row).await?;
            }
            Ok(())
        })
    });
    written.await.map_err(|problem| problem.detail.to_string())
}

fn request(renewal: &Renewal, refresh: &SecretString) -> Option<Request<Full<Bytes>>> {
    let fields = [
        ("grant_type", "refresh_token"),
        ("refresh_token", refresh.expose_secret()),
        ("client_id", &renewal.client_id),
    ];
    let (kind, body) = match renewal.body {
        Encoding::Json => ("application/json", json!(fields.into_iter().collect::<HashMap<_, _>>()).to_string()),
        Encoding::Form => {
            let pairs = fields.map(|(name, value)| format!("{name}={}", encoded(value)));
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

fn encoded(value: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    value.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

async fn ask(app: &App, upstream: &ModelUpstream, renewal: &Renewal, refresh: &SecretString) -> Result<Grant, Refusal> {
    let unreachable = |detail: String| Refusal::Unreachable {
        upstream: upstream.name.clone(),
        detail: format!("its login could not be renewed at {}: {detail}", renewal.token_url),
    };
    let request = request(renewal, refresh).ok_or_else(|| unreachable("this URL can't be used".to_owned()))?;
    let answered = tokio::time::timeout(ASKING, async {
        let response = app.gateway.upstreams.request(request).await.map_err(|error| super::client::why(&error))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), LONGEST).collect().await.map_err(|error| error.to_string())?;
        Ok::<_, String>((status, body.to_bytes()))
    });
    let (status, body) =
        answered.await.map_err(|_| unreachable("no answer in time".to_owned()))?.map_err(unreachable)?;
    match status {
        StatusCode::OK => {
            serde_json::from_slice(&body).map_err(|_| unreachable("its answer holds no token".to_owned()))
        }
        // What it says may repeat what it was sent, and so is not passed on.
        StatusCode::BAD_REQUEST | StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(unusable(
            upstream,
            format!(
                "its login is no longer taken for renewal ({} said {}); log in again, and store it anew with `atoll secret set`",
                renewal.token_url,
                status.as_u16()
            ),
        )),
        status => Err(unreachable(format!("it answered {}", status.as_u16()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_of_logins_is_asked_in_the_form_that_it_wants() {
        let sent = async |body: Encoding| {
            let renewal = Renewal { token_url: "https://x.example/token".into(), client_id: "a b".into(), body };
            let request = request(&renewal, &"r&=1".into()).unwrap();
            let kind = request.headers()[CONTENT_TYPE].to_str().unwrap().to_owned();
            let bytes = request.into_body().collect().await.unwrap().to_bytes();
            (kind, String::from_utf8(bytes.to_vec()).unwrap())
        };
        let (kind, text) = sent(Encoding::Form).await;
        assert_eq!(kind, "application/x-www-form-urlencoded");
        assert_eq!(text, "grant_type=refresh_token&refresh_token=r%26%3D1&client_id=a%20b");
        let (kind, text) = sent(Encoding::Json).await;
        let told: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(kind, "application/json");
        assert_eq!(told, json!({ "grant_type": "refresh_token", "refresh_token": "r&=1", "client_id": "a b" }));
    }
}
