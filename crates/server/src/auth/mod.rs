//! Authentication. A handler that takes a `Caller` requires a valid token, or the cookie of a sign-in.

pub mod access;
pub mod sign_in;
pub mod tickets;
pub mod token_format;

use crate::app::sign_ins::{has_ended, idle_since};
use crate::connections::ConnectionSlot;
use crate::listener::PeerAddress;
use crate::problem::{Code, Problem, Result};
use crate::shares::ShareUsedUp;
use crate::state::App;
use atoll_core::id::{SandboxId, SignInId, TokenId, UserId};
use atoll_core::principal::{Principal, Role};
use atoll_core::time::Timestamp;
use atoll_store::tokens::{self, TokenHolder, TokenRow};
use atoll_store::{Tx, sign_ins};
use axum::extract::{ConnectInfo, FromRequestParts};
use axum::http::header;
use axum::http::request::Parts;
use secrecy::SecretString;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How long a cached token stays valid. The server that removes a token clears its cache at once.
const CACHE_LIFETIME: Duration = Duration::from_secs(2);
const MAX_CACHED_TOKENS: usize = 10_000;

/// Caches recently used tokens, and announces changes of rights.
#[derive(Debug, Default)]
pub struct TokenCache {
    known: Mutex<HashMap<TokenId, (Instant, TokenRow)>>,
    changes: watch::Sender<()>,
}

impl TokenCache {
    fn get(&self, id: TokenId) -> Option<TokenRow> {
        let cache = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        cache.get(&id).filter(|(since, _)| since.elapsed() < CACHE_LIFETIME).map(|(_, token)| token.clone())
    }

    fn put(&self, token: TokenRow) {
        let mut cache = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.len() >= MAX_CACHED_TOKENS {
            cache.clear();
        }
        cache.insert(token.id, (Instant::now(), token));
    }

    /// Clears the cache after a change of rights. Open connections check their access again.
    pub fn forget(&self) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.changes.send_replace(());
    }

    /// Changes whenever rights may have been lost.
    pub fn subscribe(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }
}

/// Request extension that marks a local worker's own connection. Clients cannot set it.
#[derive(Debug, Clone, Copy)]
pub struct LinkedWorker(pub SandboxId);

/// The unit in which limits count: all tokens of a user together, or one service or worker token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PrincipalKey {
    User(UserId),
    Token(TokenId),
}

/// The authenticated principal of a request.
#[derive(Debug, Clone)]
pub struct Caller {
    pub principal: Principal,
    /// The request came over the loopback interface.
    pub is_local: bool,
    /// The sign-in that authenticated the request, in place of a token.
    pub sign_in: Option<SignInId>,
}

impl Caller {
    pub fn actor(&self) -> String {
        self.principal.actor()
    }

    pub const fn key(&self) -> PrincipalKey {
        match &self.principal {
            Principal::User { user, .. } => PrincipalKey::User(*user),
            Principal::Service { token, .. } | Principal::Worker { token, .. } => PrincipalKey::Token(*token),
        }
    }

    /// The deployment role. Workers have none.
    pub fn role(&self) -> Option<Role> {
        match &self.principal {
            Principal::User { role, .. } => Some(*role),
            Principal::Service { role, project: None, .. } => Some(*role),
            // A token of one project has no role outside of it.
            Principal::Service { project: Some(_), .. } | Principal::Worker { .. } => None,
        }
    }

    /// The user that the caller is, if it is not a service or worker.
    pub fn user(&self) -> Option<UserId> {
        match &self.principal {
            Principal::User { user, .. } => Some(*user),
            Principal::Service { .. } | Principal::Worker { .. } => None,
        }
    }

    pub fn is_admin(&self) -> bool {
        self.role() == Some(Role::Admin)
    }

    pub const fn is_worker(&self) -> bool {
        matches!(self.principal, Principal::Worker { .. })
    }

    pub fn require_admin(&self) -> Result<()> {
        match self.role() {
            Some(Role::Admin) => Ok(()),
            Some(Role::Member | Role::Viewer) | None => Err(Problem::forbidden("only an admin may do this")),
        }
    }

    /// Rejects workers: they may only use their sandbox's own routes.
    pub fn require_not_worker(&self) -> Result<()> {
        match &self.principal {
            Principal::Worker { .. } => Err(Problem::forbidden("a worker's token is for its sandbox's own routes")),
            Principal::User { .. } | Principal::Service { .. } => Ok(()),
        }
    }

    pub fn require_worker_of(&self, sandbox: SandboxId) -> Result<()> {
        match &self.principal {
            Principal::Worker { sandbox: own, .. } if *own == sandbox => Ok(()),
            Principal::Worker { .. } => Err(Problem::forbidden("this token belongs to another sandbox's worker")),
            Principal::User { .. } | Principal::Service { .. } => {
                Err(Problem::forbidden("only the sandbox's own worker may do this"))
            }
        }
    }
}

fn to_principal(token: &TokenRow) -> Principal {
    match &token.holder {
        TokenHolder::User { id, role } => Principal::User { token: token.id, user: *id, role: *role },
        TokenHolder::Service { role, project } => {
            Principal::Service { token: token.id, role: *role, project: *project }
        }
        TokenHolder::Worker { sandbox } => Principal::Worker { token: token.id, sandbox: *sandbox },
    }
}

/// Authenticates a token.
pub async fn authenticate(app: &App, presented: &SecretString) -> Result<Principal> {
    let (id, hash) = token_format::parse_token(presented).ok_or_else(Problem::unauthorized)?;
    let token = match app.tokens.get(id) {
        Some(token) => token,
        None => {
            let found = app.read(async move |tx| Ok(tokens::find_token(tx, id).await?)).await?;
            let token = found.ok_or_else(Problem::unauthorized)?;
            app.tokens.put(token.clone());
            token
        }
    };
    let expired = token.expires_at.is_some_and(|end| end <= app.clock.now());
    if expired || !token_format::equal_hashes(&token.hash, &hash) {
        return Err(Problem::unauthorized());
    }
    Ok(to_principal(&token))
}

/// Authenticates a caller again: a long connection can outlive its token or role.
pub async fn reauthenticate(app: &App, caller: &Caller) -> Result<Caller> {
    let (token, sign_in) = (caller.principal.token(), caller.sign_in);
    let (now, idle_since) = (app.clock.now(), idle_since(app));
    let current = app.read(async move |tx| current_principal(tx, token, sign_in, now, idle_since).await);
    Ok(Caller { principal: current.await?, ..caller.clone() })
}

/// The principal of a token, and of a sign-in with it, if both are still valid.
pub async fn current_principal(
    tx: &mut dyn Tx,
    token: TokenId,
    sign_in: Option<SignInId>,
    now: Timestamp,
    idle_since: Timestamp,
) -> Result<Principal> {
    if let Some(id) = sign_in {
        let row = sign_ins::find_sign_in(tx, id).await?;
        row.filter(|row| !has_ended(row, now, idle_since)).ok_or_else(Problem::unauthorized)?;
    }
    let found = tokens::find_token(tx, token).await?;
    let token = found.filter(|token| token.expires_at.is_none_or(|end| end > now));
    Ok(to_principal(&token.ok_or_else(Problem::unauthorized)?))
}

fn bearer_token(parts: &Parts) -> Option<SecretString> {
    let value = parts.headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| SecretString::from(token.trim()))
}

pub fn is_local(parts: &Parts) -> bool {
    parts.extensions.get::<ConnectInfo<PeerAddress>>().is_some_and(|info| info.0.0.ip().to_canonical().is_loopback())
}

/// Authenticates by a one-time ticket if there is one, for clients that cannot send headers.
pub async fn authenticate_ticket(parts: &mut Parts, app: &Arc<App>, ticket: Option<&str>) -> Result<Caller> {
    let Some(ticket) = ticket else { return Caller::from_request_parts(parts, app).await };
    let mut caller = app.tickets.redeem(&ticket.into()).ok_or_else(Problem::unauthorized)?;
    caller.is_local = is_local(parts);
    identify_connection(parts, &caller)?;
    Ok(caller)
}

/// Counts the request's connection for its caller. Connections of local workers are not counted here.
pub fn identify_connection(parts: &Parts, caller: &Caller) -> Result<()> {
    let Some(slot) = parts.extensions.get::<ConnectionSlot>() else { return Ok(()) };
    slot.identify(caller.key(), caller.is_worker()).map_err(|ShareUsedUp| {
        let detail = "this principal has too many open connections; close some, or raise limits.max_connections";
        Problem::new(Code::TooManyConnections, detail).retry_after(5)
    })
}

impl FromRequestParts<Arc<App>> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self> {
        if let Some(LinkedWorker(sandbox)) = parts.extensions.get() {
            // A linked worker has no token; its sandbox's id serves as one.
            let token = TokenId::from_uuid(sandbox.uuid());
            let principal = Principal::Worker { token, sandbox: *sandbox };
            let caller = Self { principal, is_local: false, sign_in: None };
            app.limiter.check(&caller, parts).await?;
            return Ok(caller);
        }
        let (principal, sign_in) = if parts.headers.contains_key(header::AUTHORIZATION) {
            let bearer = bearer_token(parts).ok_or_else(Problem::unauthorized)?;
            (authenticate(app, &bearer).await?, None)
        } else {
            let (principal, id) = sign_in::authenticate_cookie(parts, app).await?;
            (principal, Some(id))
        };
        let caller = Self { principal, is_local: is_local(parts), sign_in };
        identify_connection(parts, &caller)?;
        app.limiter.check(&caller, parts).await?;
        if !caller.is_worker() {
            crate::telemetry::mark_client();
        }
        Ok(caller)
    }
}
