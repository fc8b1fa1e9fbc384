//! Users' own logins at forges: granted by device flow, stored sealed, and renewed before they expire.
//!
//! Only the server renews a login, one renewal at a time: a refresh token works once, and its response has the next one.

mod device_logins;
mod grant;

use crate::forge_access::{ForgeClients, forge_problem};
use crate::keyed_locks::{KeyedLocks, run_to_completion};
use crate::problem::{Code, Problem, Result};
use crate::secrets::Secrets;
use crate::secrets::seal::{open_secret, seal_secret};
use crate::secrets::seal_keys::KeyRing;
use atoll_api::ForgeLogin;
use atoll_config::Github;
use atoll_core::forge::ForgeKind;
use atoll_core::id::UserId;
use atoll_core::time::Clock;
use atoll_forges::Error;
use atoll_forges::github::device_login::DeviceLogin;
use atoll_store::forge_logins::{self, ForgeLoginRow};
use atoll_store::{Store, Tx};
use device_logins::PendingLogins;
use grant::StoredGrant;
use secrecy::SecretString;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A token with less time left is renewed. No request to a forge lasts longer.
const RENEWAL_MARGIN: Duration = Duration::from_secs(300);
/// Page size when all logins are read.
const PAGE_SIZE: i64 = 100;
/// Attempts to store a renewed login. Without it the login is lost.
const MAX_STORE_ATTEMPTS: u32 = 8;
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(100);

/// The logins of all users at GitHub, the only forge so far.
pub struct ForgeLogins {
    store: Store,
    clock: Arc<dyn Clock>,
    secrets: Arc<Secrets>,
    config: Github,
    clients: Arc<ForgeClients>,
    endpoints: OnceLock<DeviceLogin>,
    pending: PendingLogins,
    /// Held while a user's login changes.
    locks: KeyedLocks<UserId>,
}

impl ForgeLogins {
    pub fn new(
        store: Store,
        clock: Arc<dyn Clock>,
        secrets: Arc<Secrets>,
        config: Github,
        clients: Arc<ForgeClients>,
    ) -> Self {
        let (endpoints, pending, locks) = (OnceLock::new(), PendingLogins::default(), KeyedLocks::default());
        Self { store, clock, secrets, config, clients, endpoints, pending, locks }
    }

    /// The endpoints of logins. Without a client id there are none.
    fn endpoints(&self) -> Result<&DeviceLogin> {
        if let Some(known) = self.endpoints.get() {
            return Ok(known);
        }
        let Some(client_id) = &self.config.client_id else {
            let detail = format!(
                "this server has no logins at {}: its administrator must set `github.client_id`",
                self.config.host()
            );
            return Err(Problem::new(Code::ForgeAccess, detail).with("cause", "forge_login_disabled"));
        };
        let created = DeviceLogin::new(&self.config.url, client_id).map_err(|error| forge_problem(&error, None))?;
        Ok(self.endpoints.get_or_init(|| created))
    }

    /// The stored login of a user, if it is for the configured host.
    pub async fn find_login(&self, user: UserId) -> Result<Option<ForgeLoginRow>> {
        let read = self
            .store
            .read(async move |tx| Ok::<_, Problem>(forge_logins::find_forge_login(tx, user, ForgeKind::GitHub).await?));
        Ok(read.await?.filter(|row| row.host == self.config.host()))
    }

    /// The valid token of a user, renewed if it is about to expire; `None` without a login.
    pub async fn find_token(self: &Arc<Self>, user: UserId) -> Result<Option<SecretString>> {
        let Some(row) = self.find_login(user).await? else { return Ok(None) };
        if !self.is_expiring(&row) {
            return self.open_grant(&row).map(|grant| Some(grant.access_token));
        }
        let renewing = Arc::clone(self);
        // A client's disconnect must not cancel it: losing the response loses the login.
        run_to_completion(async move { renewing.renew(user).await }).await
    }

    /// Removes the login of a user. The forge still lists the authorization, which only the user can revoke there.
    pub async fn remove_login(&self, user: UserId) -> Result<()> {
        let _alone = self.locks.lock(user).await;
        self.pending.remove(user);
        self.store
            .write(async move |tx| {
                forge_logins::delete_forge_login(tx, user, ForgeKind::GitHub).await?;
                Ok(())
            })
            .await
    }

    fn open_grant(&self, row: &ForgeLoginRow) -> Result<StoredGrant> {
        let text = open_secret(row, &self.secrets.key_ring()?)?;
        let grant = StoredGrant::parse(&text).ok_or_else(|| self.log_in_again("cannot be read"))?;
        self.secrets.learn(None, &grant.tokens());
        Ok(grant)
    }

    fn is_expiring(&self, row: &ForgeLoginRow) -> bool {
        row.expires_at.is_some_and(|end| end < self.clock.now() + RENEWAL_MARGIN)
    }

    fn log_in_again(&self, reason: &str) -> Problem {
        let detail = format!("your login at {} {reason}: run `atoll forge login github` again", self.config.host());
        Problem::new(Code::ForgeAccess, detail).with("cause", "forge_login_expired")
    }

    async fn renew(&self, user: UserId) -> Result<Option<SecretString>> {
        let _alone = self.locks.lock(user).await;
        // Another request may have renewed or removed it.
        let Some(row) = self.find_login(user).await? else { return Ok(None) };
        let old = self.open_grant(&row)?;
        if !self.is_expiring(&row) {
            return Ok(Some(old.access_token));
        }
        let is_valid = row.expires_at.is_none_or(|end| end > self.clock.now());
        let Some(refresh_token) = &old.refresh_token else {
            return if is_valid { Ok(Some(old.access_token)) } else { Err(self.log_in_again("has expired")) };
        };
        let new = match self.endpoints()?.refresh(refresh_token).await {
            Ok(grant) => grant,
            Err(error) => {
                tracing::warn!(%user, %error, "failed to renew a login at the forge");
                return match error {
                    _ if is_valid => Ok(Some(old.access_token)),
                    Error::Unauthorized { .. } => Err(self.log_in_again("has expired")),
                    other => Err(forge_problem(&other, None)),
                };
            }
        };
        let (row, token) = self.with_grant(row, StoredGrant::from(new))?;
        self.store_login(row).await?;
        Ok(Some(token))
    }

    /// The row with a new grant, and its token. The redactor learns the tokens before they are used.
    fn with_grant(&self, row: ForgeLoginRow, grant: StoredGrant) -> Result<(ForgeLoginRow, SecretString)> {
        self.secrets.learn(None, &grant.tokens());
        let ring = self.secrets.sealing_ring()?;
        let key = ring.current().ok_or_else(|| Problem::internal("a ring without a key to seal with"))?;
        let now = self.clock.now();
        let expires_at = grant.expires_in.map(|seconds| now + Duration::from_secs(seconds));
        let mut row = ForgeLoginRow { expires_at, updated_at: now, ..row };
        seal_secret(&mut row, &grant.to_text(), key)?;
        Ok((row, grant.access_token))
    }

    async fn store_login(&self, row: ForgeLoginRow) -> Result<()> {
        let mut pause = FIRST_RETRY_DELAY;
        let mut attempt = 1;
        loop {
            let stored = row.clone();
            let writing = self.store.write(async move |tx| {
                forge_logins::put_forge_login(tx, &stored).await?;
                Ok::<_, Problem>(())
            });
            match writing.await {
                Ok(()) => return Ok(()),
                Err(problem) if attempt >= MAX_STORE_ATTEMPTS || !problem.is_server_error() => return Err(problem),
                Err(problem) => tracing::warn!(detail = problem.detail, "failed to store a login; will retry"),
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
            attempt += 1;
        }
    }
}

/// A login as its user sees it.
pub fn view_login(row: ForgeLoginRow) -> ForgeLogin {
    ForgeLogin { account: row.account, expires_at: row.expires_at, created_at: row.created_at }
}

/// Teaches the redactor the tokens of all logins. Returns the number of logins that cannot be opened.
pub async fn teach_redactor(store: &Store, known: &Secrets) -> Result<u64> {
    let (mut after, mut unopened) = (None, 0);
    loop {
        let page = store.read(async move |tx| {
            Ok::<_, Problem>(forge_logins::read_forge_login_page(tx, ForgeKind::GitHub, after, PAGE_SIZE).await?)
        });
        let page = page.await?;
        let Some(last) = page.last() else { return Ok(unopened) };
        after = Some(last.user_id);
        for row in &page {
            let opened = known.key_ring().and_then(|ring| open_secret(row, &ring)).ok();
            match opened.as_ref().and_then(StoredGrant::parse) {
                Some(grant) => known.learn(None, &grant.tokens()),
                None => unopened += 1,
            }
        }
    }
}

/// Seals all logins with the ring's current key. Returns the number of logins that it seals.
pub async fn reseal_all(tx: &mut dyn Tx, ring: &KeyRing) -> Result<u64> {
    let key = ring.current().ok_or_else(|| Problem::internal("a ring without a key to seal with"))?;
    let (mut after, mut count) = (None, 0);
    loop {
        let page = forge_logins::read_forge_login_page_for_update(tx, ForgeKind::GitHub, after, PAGE_SIZE).await?;
        let Some(last) = page.last() else { return Ok(count) };
        after = Some(last.user_id);
        for mut row in page {
            let Ok(value) = open_secret(&row, ring) else {
                tracing::warn!(user = %row.user_id, host = row.host, "cannot open a login at a forge to seal it again");
                continue;
            };
            seal_secret(&mut row, &value, key)?;
            forge_logins::put_forge_login(tx, &row).await?;
            count += 1;
        }
    }
}
