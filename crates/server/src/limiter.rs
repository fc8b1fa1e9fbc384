//! Rate limits per principal. Workers are delayed; users and services get 429.

use crate::auth::{Caller, PrincipalKey};
use crate::connections::PeerKey;
use crate::listener::PeerAddress;
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_config::Limits;
use atoll_core::principal::Principal;
use axum::extract::{ConnectInfo, FromRequestParts};
use axum::http::Method;
use axum::http::request::Parts;
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use std::hash::Hash;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

/// Longest delay of a worker's request before it is rejected.
const MAX_WORKER_DELAY: Duration = Duration::from_secs(20);

type KeyedLimiter = DefaultKeyedRateLimiter<PrincipalKey>;

#[derive(Debug)]
pub struct Limiter {
    worker: Option<KeyedLimiter>,
    messages: Option<KeyedLimiter>,
    writes: Option<KeyedLimiter>,
    sign_ins: Option<DefaultKeyedRateLimiter<PeerKey>>,
}

fn per_minute<K: Hash + Eq + Clone>(count: Option<NonZeroU32>) -> Option<DefaultKeyedRateLimiter<K>> {
    count.map(|count| RateLimiter::keyed(Quota::per_minute(count)))
}

impl Limiter {
    pub fn new(limits: &Limits) -> Self {
        Self {
            worker: per_minute(limits.worker_requests_per_minute),
            messages: per_minute(limits.messages_per_minute),
            writes: per_minute(limits.writes_per_minute),
            sign_ins: per_minute(limits.sign_ins_per_minute),
        }
    }

    pub async fn check(&self, caller: &Caller, parts: &Parts) -> Result<()> {
        let who = caller.key();
        match &caller.principal {
            Principal::Worker { .. } => self.delay_worker(who).await,
            Principal::User { .. } | Principal::Service { .. } => {
                let safe = parts.method == Method::GET || parts.method == Method::HEAD;
                let message = parts.method == Method::POST && parts.uri.path().ends_with("/messages");
                match (safe, message) {
                    (true, _) => Ok(()),
                    (false, true) => check_rate(self.messages.as_ref(), who, "messages"),
                    (false, false) => check_rate(self.writes.as_ref(), who, "writes"),
                }
            }
        }
    }

    /// Delays a worker that sends its backlog; rejects only a flood.
    async fn delay_worker(&self, who: PrincipalKey) -> Result<()> {
        let Some(limiter) = &self.worker else { return Ok(()) };
        match tokio::time::timeout(MAX_WORKER_DELAY, limiter.until_key_ready(&who)).await {
            Ok(()) => Ok(()),
            Err(_) => Err(rate_limited("requests", 1)),
        }
    }

    /// Removes principals without recent requests.
    pub fn prune(&self) {
        for limiter in [&self.worker, &self.messages, &self.writes].into_iter().flatten() {
            limiter.retain_recent();
        }
        if let Some(limiter) = &self.sign_ins {
            limiter.retain_recent();
        }
    }
}

fn rate_limited(what: &str, seconds: u64) -> Problem {
    Problem::new(Code::RateLimited, format!("too many {what} a minute; wait and try again")).retry_after(seconds)
}

/// The right to one attempt to sign in, which needs no token. Local workers have none.
#[derive(Debug)]
pub struct SignInAttempt;

impl FromRequestParts<Arc<App>> for SignInAttempt {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self> {
        let peer = parts.extensions.get::<ConnectInfo<PeerAddress>>().map(|info| PeerKey::from(info.0.0.ip()));
        let peer = peer.ok_or_else(|| Problem::forbidden("a worker does not sign in"))?;
        check_rate(app.limiter.sign_ins.as_ref(), peer, "attempts to sign in").map(|()| Self)
    }
}

fn check_rate<K: Hash + Eq + Clone>(limiter: Option<&DefaultKeyedRateLimiter<K>>, who: K, what: &str) -> Result<()> {
    let Some(limiter) = limiter else { return Ok(()) };
    limiter.check_key(&who).map_err(|not_until| {
        let wait = not_until.wait_time_from(DefaultClock::default().now());
        rate_limited(what, wait.as_secs_f64().ceil() as u64)
    })
}
