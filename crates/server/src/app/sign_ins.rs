//! Sign-ins of the page.

use super::views::view_user;
use crate::auth::access::ClientCaller;
use crate::auth::sign_in::cookie_value;
use crate::auth::tickets::{LINK_LIFETIME, Tickets};
use crate::auth::token_format::generate_secret;
use crate::auth::{self, Caller};
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_api::{Me, NewSignIn, SignIn, SignInLink, SignInList, StartedSignIn};
use atoll_core::id::{SignInId, TokenId};
use atoll_core::principal::Principal;
use atoll_core::time::Timestamp;
use atoll_store::sign_ins::{self, SignInRow};
use atoll_store::{Tx, tokens, users};

/// Sign-ins per user; a new one replaces the oldest.
const MAX_SIGN_INS: usize = 50;
const MAX_USER_AGENT_CHARS: usize = 200;

/// Sign-ins that were last used before this time have ended.
pub fn idle_since(app: &App) -> Timestamp {
    app.clock.now() - app.config.sign_in.idle
}

pub fn has_ended(row: &SignInRow, now: Timestamp, idle_since: Timestamp) -> bool {
    row.expires_at <= now || row.last_used_at <= idle_since
}

/// A new sign-in with the value of its cookie.
pub struct NewCookie {
    pub sign_in: StartedSignIn,
    pub value: String,
}

/// Signs in with a one-time code or a token. The caller has limited the rate of attempts.
pub async fn start_sign_in(app: &App, new: NewSignIn, user_agent: Option<&str>) -> Result<NewCookie> {
    let token = match (new.code, new.api_key) {
        (Some(code), None) => app.sign_in_links.redeem(&code).map(|caller| caller.principal.token()),
        (None, Some(key)) => match auth::authenticate(app, &key).await? {
            Principal::User { token, .. } | Principal::Service { token, .. } => Some(token),
            Principal::Worker { .. } => None,
        },
        (Some(_), Some(_)) | (None, None) => return Err(Problem::invalid("send either `code` or `api_key`")),
    };
    let token = token.ok_or_else(|| {
        Problem::new(Code::Unauthorized, "the link is used or too old, or the key is not valid; run `atoll open`")
    })?;
    let user_agent = user_agent.map(|text| text.chars().take(MAX_USER_AGENT_CHARS).collect());
    let lifetime = app.config.sign_in.lifetime;
    let (id, secret) = (SignInId::new(), generate_secret());
    let hash = secret.hash;
    let started = app.write(async move |work| {
        let now = work.now;
        let holder = tokens::find_token(work.tx, token).await?.ok_or_else(Problem::unauthorized)?;
        let expires_at = [Some(now + lifetime), holder.expires_at].into_iter().flatten().min().unwrap_or(now);
        let row = SignInRow { id, hash, token, user_agent, created_at: now, last_used_at: now, expires_at };
        let user = holder.user();
        let known = sign_ins::list_sign_ins(work.tx, user, token).await?;
        for oldest in known.iter().take((known.len() + 1).saturating_sub(MAX_SIGN_INS)) {
            sign_ins::delete_sign_in(work.tx, oldest.id).await?;
        }
        sign_ins::insert_sign_in(work.tx, &row).await?;
        let user = find_user_view(work.tx, user).await?;
        Ok(StartedSignIn { id, user, created_at: now, expires_at })
    });
    Ok(NewCookie { sign_in: started.await?, value: cookie_value(id, &secret.secret) })
}

async fn find_user_view(tx: &mut dyn Tx, user: Option<atoll_core::id::UserId>) -> Result<Option<atoll_api::User>> {
    let Some(user) = user else { return Ok(None) };
    Ok(users::find_user(tx, user).await?.map(view_user))
}

/// Issues a one-time link with the caller's rights.
pub fn issue_link(app: &App, caller: Caller) -> Result<SignInLink> {
    let expires_at = app.clock.now() + LINK_LIFETIME;
    let code = app.sign_in_links.issue(caller).ok_or_else(Tickets::too_many)?;
    Ok(SignInLink { path: format!("/sign-in#code={code}"), expires_at })
}

fn view_sign_in(row: SignInRow, current: Option<SignInId>) -> SignIn {
    let is_current = Some(row.id) == current;
    let SignInRow { id, hash: _, token: token_id, user_agent, created_at, last_used_at, expires_at } = row;
    SignIn { id, token_id, created_at, last_used_at, expires_at, user_agent, is_current }
}

/// Lists the caller's own sign-ins.
pub async fn list_sign_ins(app: &App, client: ClientCaller) -> Result<SignInList> {
    let (now, idle_since, caller) = (app.clock.now(), idle_since(app), client.0);
    let (user, token, current) = (caller.user(), caller.principal.token(), caller.sign_in);
    let rows = app.read(async move |tx| Ok(sign_ins::list_sign_ins(tx, user, token).await?)).await?;
    let live = rows.into_iter().filter(|row| !has_ended(row, now, idle_since));
    let items = live.map(|row| view_sign_in(row, current));
    Ok(SignInList { items: items.collect() })
}

/// The sign-in that a request names: an id, or `current` for the one that it came with.
pub fn parse_named(client: &ClientCaller, name: &str) -> Result<SignInId> {
    let current = client.0.sign_in.filter(|_| name == "current");
    current.or_else(|| name.parse().ok()).ok_or_else(|| Problem::not_found("sign-in"))
}

/// Ends one of the caller's own sign-ins, with its connections and previews.
pub async fn end_sign_in(app: &App, client: ClientCaller, id: SignInId) -> Result<SignIn> {
    let (user, token) = (client.0.user(), client.0.principal.token());
    let ended = app
        .write(async move |work| {
            let own = sign_ins::list_sign_ins(work.tx, user, token).await?;
            let row = own.into_iter().find(|row| row.id == id).ok_or_else(|| Problem::not_found("sign-in"))?;
            sign_ins::delete_sign_in(work.tx, id).await?;
            Ok(row)
        })
        .await?;
    app.tokens.forget();
    Ok(view_sign_in(ended, client.0.sign_in))
}

pub async fn describe_caller(app: &App, client: ClientCaller) -> Result<Me> {
    let caller = client.0;
    let (role, sign_in_id, user) = (caller.role(), caller.sign_in, caller.user());
    let (token_id, project_id): (TokenId, _) = match caller.principal {
        Principal::Service { token, project, .. } => (token, project),
        Principal::User { token, .. } | Principal::Worker { token, .. } => (token, None),
    };
    let user = app.read(async move |tx| find_user_view(tx, user).await).await?;
    Ok(Me { user, role, project_id, token_id, sign_in_id })
}
