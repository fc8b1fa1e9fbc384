//! Rate limits per principal. Workers are delayed; users and services get 429.

use crate::auth::{Caller, PrincipalKey};
use crate::problem::{Code, Problem, Result};
use atoll_config::Limits;
use atoll_core::principal::Principal;
use axum::http::Method;
use axum::http::request::Parts;
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use std::num::NonZeroU32;
use std::time::Duration;

/// Longest delay of a worker's request before it is rejected.
const MAX_WORKER_DELAY: Duration = Duration::from_secs(20);

type KeyedLimiter = DefaultKeyedRateLimiter<PrincipalKey>;

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
    }
}

fn rate_limited(what: &str, seconds: u64) -> Problem {
    Problem::new(Code::RateLimited, format!("too many {what} a minute; wait and try again")).retry_after(seconds)
}

fn check_rate(limiter: Option<&KeyedLimiter>, who: PrincipalKey, what: &str) -> Result<()> {
    let Some(limiter) = limiter else { return Ok(()) };
    limiter.check_key(&who).map_err(|not_until| {
        let wait = not_until.wait_time_from(DefaultClock::default().now());
        rate_limited(what, wait.as_secs_f64().ceil() as u64)
    })
}
