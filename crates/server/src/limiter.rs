//! Rate limits per principal. Workers are delayed; users and services get 429.

use crate::auth::Caller;
use crate::problem::{Code, Problem, Result};
use atoll_config::Limits;
use atoll_core::id::{TokenId, UserId};
use atoll_core::principal::Principal;
use axum::http::Method;
use axum::http::request::Parts;
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use std::num::NonZeroU32;
use std::time::Duration;

/// Longest delay of a worker's request before it is rejected.
const MAX_WORKER_DELAY: Duration = Duration::from_secs(20);

/// The unit of counting: all tokens of a user together, or one service or worker token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum RateLimitKey {
    User(UserId),
    Token(TokenId),
}

impl From<&Principal> for RateLimitKey {
    fn from(principal: &Principal) -> Self {
        match principal {
            Principal::User { user, .. } => Self::User(*user),
            Principal::Service { token, .. } | Principal::Worker { token, .. } => Self::Token(*token),
        }
    }
}

type KeyedLimiter = DefaultKeyedRateLimiter<RateLimitKey>;

#[derive(Debug)]
pub struct Limiter {
    worker: Option<KeyedLimiter>,
    messages: Option<KeyedLimiter>,
    writes: Option<KeyedLimiter>,
}

fn per_minute(count: Option<NonZeroU32>) -> Option<KeyedLimiter> {
    count.map(|count| RateLimiter::keyed(Quota::per_minute(count)))
}

impl Limiter {
    pub fn new(limits: &Limits) -> Self {
        Self {
            worker: per_minute(limits.worker_requests_per_minute),
            messages: per_minute(limits.messages_per_minute),
            writes: per_minute(limits.writes_per_minute),
        }
    }

    pub async fn check(&self, caller: &Caller, parts: &Parts) -> Result<()> {
        let who = RateLimitKey::from(&caller.principal);
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
    async fn delay_worker(&self, who: RateLimitKey) -> Result<()> {
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
    }
}

fn rate_limited(what: &str, seconds: u64) -> Problem {
    Problem::new(Code::RateLimited, format!("too many {what} a minute; wait and try again")).retry_after(seconds)
}

fn check_rate(limiter: Option<&KeyedLimiter>, who: RateLimitKey, what: &str) -> Result<()> {
    let Some(limiter) = limiter else { return Ok(()) };
    limiter.check_key(&who).map_err(|not_until| {
        let wait = not_until.wait_time_from(DefaultClock::default().now());
        rate_limited(what, wait.as_secs_f64().ceil() as u64)
    })
}
