//! How often each principal may ask. Workers are slowed down, people and programs are told to wait.

use crate::auth::Caller;
use crate::options::Limits;
use crate::problem::{Code, Problem, Result};
use atoll_core::id::{TokenId, UserId};
use atoll_core::principal::Principal;
use axum::http::Method;
use axum::http::request::Parts;
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use std::num::NonZeroU32;
use std::time::Duration;

/// How long a worker's request may be held back before it is refused after all.
const PATIENCE: Duration = Duration::from_secs(20);

/// Who is counted: a person with all their tokens together, a program or a worker by its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Who {
    User(UserId),
    Token(TokenId),
}

impl From<&Principal> for Who {
    fn from(principal: &Principal) -> Self {
        match principal {
            Principal::User { user, .. } => Self::User(*user),
            Principal::Service { token, .. } | Principal::Worker { token, .. } => Self::Token(*token),
        }
    }
}

type Keyed = DefaultKeyedRateLimiter<Who>;

#[derive(Debug)]
pub struct Limiter {
    worker: Option<Keyed>,
    messages: Option<Keyed>,
    writes: Option<Keyed>,
}

fn per_minute(count: u32) -> Option<Keyed> {
    NonZeroU32::new(count).map(|count| RateLimiter::keyed(Quota::per_minute(count)))
}

impl Limiter {
    pub fn new(limits: Limits) -> Self {
        Self {
            worker: per_minute(limits.worker_requests),
            messages: per_minute(limits.messages),
            writes: per_minute(limits.writes),
        }
    }

    pub async fn check(&self, caller: &Caller, parts: &Parts) -> Result<()> {
        let who = Who::from(&caller.principal);
        match &caller.principal {
            Principal::Worker { .. } => self.slow_down(who).await,
            Principal::User { .. } | Principal::Service { .. } => {
                let safe = parts.method == Method::GET || parts.method == Method::HEAD;
                let message = parts.method == Method::POST && parts.uri.path().ends_with("/messages");
                match (safe, message) {
                    (true, _) => Ok(()),
                    (false, true) => refuse(self.messages.as_ref(), who, "messages"),
                    (false, false) => refuse(self.writes.as_ref(), who, "writes"),
                }
            }
        }
    }

    /// A catching-up spool waits its turn; only a flood is refused.
    async fn slow_down(&self, who: Who) -> Result<()> {
        let Some(limiter) = &self.worker else { return Ok(()) };
        match tokio::time::timeout(PATIENCE, limiter.until_key_ready(&who)).await {
            Ok(()) => Ok(()),
            Err(_) => Err(too_many("requests", 1)),
        }
    }

    /// Forgets principals that have been quiet for long.
    pub fn tidy(&self) {
        for limiter in [&self.worker, &self.messages, &self.writes].into_iter().flatten() {
            limiter.retain_recent();
        }
    }
}

fn too_many(what: &str, seconds: u64) -> Problem {
    Problem::new(Code::RateLimited, format!("too many {what} a minute; wait and try again")).retry_after(seconds)
}

fn refuse(limiter: Option<&Keyed>, who: Who, what: &str) -> Result<()> {
    let Some(limiter) = limiter else { return Ok(()) };
    limiter.check_key(&who).map_err(|not_until| {
        let wait = not_until.wait_time_from(DefaultClock::default().now());
        too_many(what, wait.as_secs_f64().ceil() as u64)
    })
}
