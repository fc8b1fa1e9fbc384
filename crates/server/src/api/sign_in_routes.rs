//! `/sign-in-sessions`, one-time links for them, and `/me`.

use crate::app::sign_ins;
use crate::auth::access::ClientCaller;
use crate::auth::sign_in::{COOKIE, SECURE_COOKIE};
use crate::extract::Body;
use crate::idempotency::JsonResponse;
use crate::limiter::SignInAttempt;
use crate::problem::Result;
use crate::state::App;
use atoll_api::{Me, NewSignIn, SignIn, SignInLink, SignInList, StartedSignIn};
use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use std::sync::Arc;

/// Sign in to the page with a one-time code or a token; the response sets the cookie.
///
/// The cookie has the rights of the token that the code or the key stands for, and ends with it. Requests with the
/// cookie that change something need the header `X-Atoll-Page: 1`, and WebSockets the page's own `Origin`.
#[utoipa::path(post, path = "/sign-in-sessions", tag = "sign-in", request_body = NewSignIn, security(()),
    responses((status = 201, body = StartedSignIn)))]
pub async fn start_sign_in(
    State(app): State<Arc<App>>,
    _: SignInAttempt,
    headers: HeaderMap,
    Body { value, .. }: Body<NewSignIn>,
) -> Result<Response> {
    let user_agent = headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok());
    let new = sign_ins::start_sign_in(&app, value, user_agent).await?;
    let cookie = set_cookie(&app, &headers, &new.value, app.config.sign_in.lifetime.as_secs());
    Ok(([(header::SET_COOKIE, cookie)], JsonResponse::created(new.sign_in)?).into_response())
}

/// The attributes keep the cookie from other hosts, from scripts and from requests that other sites cause.
fn set_cookie(app: &App, headers: &HeaderMap, value: &str, seconds: u64) -> String {
    let forwarded = headers.get("x-forwarded-proto").and_then(|value| value.to_str().ok());
    let is_secure = app.config.server.tls().is_some() || forwarded == Some("https");
    let (name, secure) = if is_secure { (SECURE_COOKIE, "; Secure") } else { (COOKIE, "") };
    format!("{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}")
}

/// List your sign-ins to the page.
#[utoipa::path(get, path = "/sign-in-sessions", tag = "sign-in", responses((status = 200, body = SignInList)))]
pub async fn list_sign_ins(State(app): State<Arc<App>>, client: ClientCaller) -> Result<Json<SignInList>> {
    sign_ins::list_sign_ins(&app, client).await.map(Json)
}

/// End one of your sign-ins, with its connections and previews; `current` signs out.
#[utoipa::path(delete, path = "/sign-in-sessions/{id}", tag = "sign-in",
    params(("id" = String, Path, description = "Its id, or `current`")), responses((status = 200, body = SignIn)))]
pub async fn end_sign_in(
    State(app): State<Arc<App>>,
    client: ClientCaller,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Response> {
    let id = sign_ins::parse_named(&client, &name)?;
    let ended = sign_ins::end_sign_in(&app, client, id).await?;
    let removed = ended.is_current.then(|| set_cookie(&app, &headers, "", 0));
    let mut response = Json(ended).into_response();
    if let Some(cookie) = removed.and_then(|cookie| cookie.parse().ok()) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    Ok(response)
}

/// Issue a link that signs a browser in once, with your rights.
#[utoipa::path(post, path = "/sign-in-links", tag = "sign-in", responses((status = 201, body = SignInLink)))]
pub async fn issue_link(State(app): State<Arc<App>>, client: ClientCaller) -> Result<JsonResponse> {
    JsonResponse::created(sign_ins::issue_link(&app, client.0)?)
}

/// Read who the caller is.
#[utoipa::path(get, path = "/me", tag = "sign-in", responses((status = 200, body = Me)))]
pub async fn read_me(State(app): State<Arc<App>>, client: ClientCaller) -> Result<Json<Me>> {
    sign_ins::describe_caller(&app, client).await.map(Json)
}
