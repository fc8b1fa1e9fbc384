//! Logins that wait for their user to confirm a code. They are in memory: a restart ends them, and the user starts again.

use super::ForgeLogins;
use super::grant::StoredGrant;
use crate::forge_access::forge_problem;
use crate::problem::{Code, Problem, Result};
use atoll_api::{ForgeLoginProgress, ForgeLoginState, StartedForgeLogin};
use atoll_core::forge::ForgeKind;
use atoll_core::id::UserId;
use atoll_core::time::Timestamp;
use atoll_forges::github::Credentials;
use atoll_forges::github::device_login::{DeviceCode, PollOutcome, SLOW_DOWN};
use atoll_store::forge_logins::ForgeLoginRow;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What an OAuth app may do for the user. An App's own permissions apply instead.
const SCOPE: &str = "repo";
/// GitHub's codes last 15 minutes.
const MAX_CODE_LIFETIME: Duration = Duration::from_secs(3600);
const MAX_INTERVAL: Duration = Duration::from_secs(60);

/// A login that its user has not confirmed yet.
#[derive(Clone)]
struct PendingLogin {
    code: DeviceCode,
    interval: Duration,
    next_poll: Timestamp,
    expires_at: Timestamp,
}

/// At most one per user: a second login replaces the first.
#[derive(Default)]
pub(super) struct PendingLogins(Mutex<HashMap<UserId, PendingLogin>>);

impl PendingLogins {
    fn lock(&self) -> MutexGuard<'_, HashMap<UserId, PendingLogin>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn remove(&self, user: UserId) {
        self.lock().remove(&user);
    }

    fn find(&self, user: UserId) -> Option<PendingLogin> {
        self.lock().get(&user).cloned()
    }

    fn put(&self, user: UserId, login: PendingLogin, now: Timestamp) {
        let mut all = self.lock();
        all.retain(|_, known| known.expires_at > now);
        all.insert(user, login);
    }
}

impl ForgeLogins {
    /// Requests a code for the user to confirm.
    pub async fn start_login(&self, user: UserId) -> Result<StartedForgeLogin> {
        let code = self.endpoints()?.request_code(SCOPE).await.map_err(|error| forge_problem(&error, None))?;
        let now = self.clock.steady_now();
        let interval = Duration::from_secs(code.interval).min(MAX_INTERVAL);
        let expires_at = now + Duration::from_secs(code.expires_in).min(MAX_CODE_LIFETIME);
        let started = StartedForgeLogin {
            user_code: code.user_code.clone(),
            verification_uri: code.verification_uri.clone(),
            expires_in_s: code.expires_in,
            interval_s: interval.as_secs(),
        };
        self.pending.put(user, PendingLogin { code, interval, next_poll: now + interval, expires_at }, now);
        Ok(started)
    }

    /// Asks the forge whether the user confirmed, as often as the forge allows.
    pub async fn poll_login(&self, user: UserId) -> Result<ForgeLoginProgress> {
        let _alone = self.locks.lock(user).await;
        let now = self.clock.steady_now();
        let Some(mut login) = self.pending.find(user) else {
            let detail = "no login waits for you; run `atoll forge login github`";
            return Err(Problem::new(Code::ForgeAccess, detail).with("cause", "forge_login_missing"));
        };
        if login.expires_at <= now {
            return Ok(self.end_login(user, ForgeLoginState::Expired));
        }
        if now < login.next_poll {
            return Ok(pending(login.next_poll.elapsed_since(now)));
        }
        let polled = self.endpoints()?.poll(&login.code.device_code).await;
        match polled.map_err(|error| forge_problem(&error, None))? {
            outcome @ (PollOutcome::Pending | PollOutcome::SlowDown) => {
                if matches!(outcome, PollOutcome::SlowDown) {
                    login.interval = (login.interval + SLOW_DOWN).min(MAX_INTERVAL);
                }
                let interval = login.interval;
                login.next_poll = now + interval;
                self.pending.put(user, login, now);
                Ok(pending(interval))
            }
            PollOutcome::Expired => Ok(self.end_login(user, ForgeLoginState::Expired)),
            PollOutcome::Denied => Ok(self.end_login(user, ForgeLoginState::Denied)),
            PollOutcome::Granted(grant) => {
                let row = self.store_grant(user, StoredGrant::from(grant)).await?;
                tracing::info!(%user, account = row.account, "a user logged in at the forge");
                let login = Some(super::view_login(row));
                Ok(ForgeLoginProgress { login, ..self.end_login(user, ForgeLoginState::Granted) })
            }
        }
    }

    async fn store_grant(&self, user: UserId, grant: StoredGrant) -> Result<ForgeLoginRow> {
        let github = self.clients.github(Credentials::Token(grant.access_token.clone()))?;
        // The code is used up, so a failure here must not lose the token.
        let account = github.read_account().await;
        let account = account.inspect_err(|error| tracing::warn!(%error, "failed to read the name of an account")).ok();
        let row = ForgeLoginRow {
            user_id: user,
            forge: ForgeKind::GitHub,
            host: self.config.host(),
            account,
            sealed: String::new(),
            key_id: String::new(),
            expires_at: None,
            created_at: self.clock.now(),
            updated_at: self.clock.now(),
        };
        let (row, _) = self.with_grant(row, grant)?;
        self.store_login(row.clone()).await?;
        Ok(row)
    }

    fn end_login(&self, user: UserId, state: ForgeLoginState) -> ForgeLoginProgress {
        self.pending.remove(user);
        ForgeLoginProgress { state, interval_s: None, login: None }
    }
}

fn pending(wait: Duration) -> ForgeLoginProgress {
    let interval_s = Some(wait.as_secs_f64().ceil() as u64);
    ForgeLoginProgress { state: ForgeLoginState::Pending, interval_s, login: None }
}
