//! Who is asking. A handler that takes a `Caller` is closed to everybody else.

pub mod access;
pub mod secret;
pub mod tickets;

use crate::listener::Peer;
use crate::problem::{Problem, Result};
use crate::state::App;
use atoll_core::id::{SandboxId, TokenId};
use atoll_core::principal::{Principal, Role};
use atoll_store::tokens::{self, Holder, Token};
use axum::extract::{ConnectInfo, FromRequestParts};
use axum::http::header;
use axum::http::request::Parts;
use secrecy::SecretString;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a looked-up token is believed; a removed one is forgotten at once by the server that removed it.
const BELIEVED: Duration = Duration::from_secs(2);
const REMEMBERED: usize = 10_000;

/// Tokens that were looked up a moment ago.
#[derive(Debug, Default)]
pub struct TokenCache(Mutex<HashMap<TokenId, (Instant, Token)>>);

impl TokenCache {
    fn get(&self, id: TokenId) -> Option<Token> {
        let cache = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        cache.get(&id).filter(|(since, _)| since.elapsed() < BELIEVED).map(|(_, token)| token.clone())
    }

    fn put(&self, token: Token) {
        let mut cache = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.len() >= REMEMBERED {
            cache.clear();
        }
        cache.insert(token.id, (Instant::now(), token));
    }

    /// Rights have changed: look everything up again.
    pub fn forget(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// Set on requests that come over a local worker's own connection. Nothing from outside can set it.
#[derive(Debug, Clone, Copy)]
pub struct LinkedWorker(pub SandboxId);

/// Somebody with a valid token.
#[derive(Debug, Clone)]
pub struct Caller {
    pub principal: Principal,
    /// The request came over the loopback interface.
    pub is_local: bool,
}

impl Caller {
    pub fn actor(&self) -> String {
        self.principal.actor()
    }

    /// The role in the deployment; a worker has none.
    pub fn role(&self) -> Option<Role> {
        match &self.principal {
            Principal::User { role, .. } => Some(*role),
            Principal::Service { role, project: None, .. } => Some(*role),
            // Bound to one project: outside of it, nothing.
            Principal::Service { project: Some(_), .. } | Principal::Worker { .. } => None,
        }
    }

    pub fn must_be_admin(&self) -> Result<()> {
        match self.role() {
            Some(Role::Admin) => Ok(()),
            Some(Role::Member | Role::Viewer) | None => Err(Problem::forbidden("only an admin may do this")),
        }
    }

    /// Workers are closed out of everything that is not theirs.
    pub fn must_not_be_worker(&self) -> Result<()> {
        match &self.principal {
            Principal::Worker { .. } => Err(Problem::forbidden("a worker's token is for its sandbox's own routes")),
            Principal::User { .. } | Principal::Service { .. } => Ok(()),
        }
    }

    pub fn must_be_worker_of(&self, sandbox: SandboxId) -> Result<()> {
        match &self.principal {
            Principal::Worker { sandbox: own, .. } if *own == sandbox => Ok(()),
            Principal::Worker { .. } => Err(Problem::forbidden("this token belongs to another sandbox's worker")),
            Principal::User { .. } | Principal::Service { .. } => {
                Err(Problem::forbidden("only the sandbox's own worker may do this"))
            }
        }
    }
}

fn principal(token: &Token) -> Principal {
    match &token.holder {
        Holder::User { id, role } => Principal::User { token: token.id, user: *id, role: *role },
        Holder::Service { role, project } => Principal::Service { token: token.id, role: *role, project: *project },
        Holder::Worker { sandbox } => Principal::Worker { token: token.id, sandbox: *sandbox },
    }
}

/// Looks up a token as it was shown.
pub async fn authenticate(app: &App, shown: &SecretString) -> Result<Principal> {
    let (id, hash) = secret::parse(shown).ok_or_else(Problem::unauthorized)?;
    let token = match app.tokens.get(id) {
        Some(token) => token,
        None => {
            let found = app.read(move |tx| Box::pin(async move { Ok(tokens::get(tx, id).await?) })).await?;
            let token = found.ok_or_else(Problem::unauthorized)?;
            app.tokens.put(token.clone());
            token
        }
    };
    let expired = token.expires_at.is_some_and(|end| end <= app.clock.now());
    if expired || !secret::same(&token.hash, &hash) {
        return Err(Problem::unauthorized());
    }
    Ok(principal(&token))
}

/// The same caller as they are by now: somebody who stays may have lost their token or their role meanwhile.
pub async fn again(app: &App, caller: &Caller) -> Result<Caller> {
    let id = caller.principal.token();
    let found = app.read(move |tx| Box::pin(async move { Ok(tokens::get(tx, id).await?) })).await?;
    let token = found.filter(|token| token.expires_at.is_none_or(|end| end > app.clock.now()));
    let token = token.ok_or_else(Problem::unauthorized)?;
    Ok(Caller { principal: principal(&token), is_local: caller.is_local })
}

fn bearer(parts: &Parts) -> Option<SecretString> {
    let value = parts.headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| SecretString::from(token.trim()))
}

pub fn is_local(parts: &Parts) -> bool {
    parts.extensions.get::<ConnectInfo<Peer>>().is_some_and(|info| info.0.0.ip().to_canonical().is_loopback())
}

/// A caller by a one-time ticket, for clients that can't send headers; else as everywhere.
pub async fn by_ticket(parts: &mut Parts, app: &Arc<App>, ticket: Option<&str>) -> Result<Caller> {
    let Some(ticket) = ticket else { return Caller::from_request_parts(parts, app).await };
    let mut caller = app.tickets.redeem(ticket).ok_or_else(Problem::unauthorized)?;
    caller.is_local = is_local(parts);
    Ok(caller)
}

impl FromRequestParts<Arc<App>> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self> {
        if let Some(LinkedWorker(sandbox)) = parts.extensions.get() {
            // There is no token to name it by; the sandbox's own id is as good.
            let token = TokenId::from_uuid(sandbox.uuid());
            let caller = Self { principal: Principal::Worker { token, sandbox: *sandbox }, is_local: false };
            app.limiter.check(&caller, parts).await?;
            return Ok(caller);
        }
        let shown = bearer(parts).ok_or_else(Problem::unauthorized)?;
        let principal = authenticate(app, &shown).await?;
        let caller = Self { principal, is_local: is_local(parts) };
        app.limiter.check(&caller, parts).await?;
        Ok(caller)
    }
}
