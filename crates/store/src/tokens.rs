//! Tokens: only a hash of the secret is stored.

use crate::error::{Error, Result};
use crate::sql::{Row, Tx, first_row, opt_text_param, opt_time_param, text_param, time_param};
use atoll_core::id::{ProjectId, SandboxId, TokenId, UserId};
use atoll_core::principal::{Role, TokenKind};
use atoll_core::time::Timestamp;

/// Owner of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenHolder {
    User { id: UserId, role: Role },
    Service { role: Role, project: Option<ProjectId> },
    Worker { sandbox: SandboxId },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRow {
    pub id: TokenId,
    pub name: String,
    pub hash: String,
    pub holder: TokenHolder,
    pub created_at: Timestamp,
    pub expires_at: Option<Timestamp>,
}

impl TokenRow {
    /// The user that it belongs to.
    pub const fn user(&self) -> Option<UserId> {
        match &self.holder {
            TokenHolder::User { id, .. } => Some(*id),
            TokenHolder::Service { .. } | TokenHolder::Worker { .. } => None,
        }
    }
}

const WORKER_KIND: &str = "worker";

fn token_from_row(row: Row) -> Result<TokenRow> {
    let id = row.parse("id")?;
    let kind = row.text("kind")?;
    let name = row.text("name")?;
    let hash = row.text("hash")?;
    let user: Option<UserId> = row.opt_parse("user_id")?;
    let role: Option<Role> = row.opt_parse("role")?;
    let project = row.opt_parse("project_id")?;
    let sandbox = row.opt_parse("sandbox_id")?;
    let created_at = row.time("created_at")?;
    let expires_at = row.opt_time("expires_at")?;
    let user_role: Option<Role> = row.opt_parse("user_role")?;
    let missing = || Error::internal("a token without its holder");
    let holder = match kind.as_str() {
        WORKER_KIND => TokenHolder::Worker { sandbox: sandbox.ok_or_else(missing)? },
        other => match other.parse().map_err(Error::internal)? {
            TokenKind::User => {
                TokenHolder::User { id: user.ok_or_else(missing)?, role: user_role.ok_or_else(missing)? }
            }
            TokenKind::Service => TokenHolder::Service { role: role.ok_or_else(missing)?, project },
        },
    };
    Ok(TokenRow { id, name, hash, holder, created_at, expires_at })
}

pub async fn insert_token(tx: &mut dyn Tx, t: &TokenRow) -> Result<()> {
    let (kind, user, role, project, sandbox) = match &t.holder {
        TokenHolder::User { id, .. } => (TokenKind::User.as_str(), Some(*id), None, None, None),
        TokenHolder::Service { role, project } => (TokenKind::Service.as_str(), None, Some(*role), *project, None),
        TokenHolder::Worker { sandbox } => (WORKER_KIND, None, None, None, Some(*sandbox)),
    };
    let sql = "INSERT INTO tokens
               (id, kind, name, hash, user_id, role, project_id, sandbox_id, created_at, expires_at)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
    let params = [
        text_param(t.id),
        kind.into(),
        (&t.name).into(),
        (&t.hash).into(),
        opt_text_param(user),
        opt_text_param(role),
        opt_text_param(project),
        opt_text_param(sandbox),
        time_param(t.created_at),
        opt_time_param(t.expires_at),
    ];
    tx.execute(sql, &params).await.map(drop)
}

pub async fn find_token(tx: &mut dyn Tx, id: TokenId) -> Result<Option<TokenRow>> {
    let sql = "SELECT t.id, t.kind, t.name, t.hash, t.user_id, t.role, t.project_id, t.sandbox_id,
                      t.created_at, t.expires_at, u.role AS user_role
               FROM tokens t LEFT JOIN users u ON u.id = t.user_id WHERE t.id = ?1";
    first_row(tx.query(sql, &[text_param(id)]).await?).map(token_from_row).transpose()
}

/// Lists tokens of users and programs; of one user if given.
pub async fn list_tokens(
    tx: &mut dyn Tx,
    user: Option<UserId>,
    after: Option<&str>,
    limit: i64,
) -> Result<Vec<TokenRow>> {
    let sql = "SELECT t.id, t.kind, t.name, t.hash, t.user_id, t.role, t.project_id, t.sandbox_id,
                      t.created_at, t.expires_at, u.role AS user_role
               FROM tokens t LEFT JOIN users u ON u.id = t.user_id
               WHERE t.kind <> 'worker' AND t.id > ?1 AND (?2 = '' OR t.user_id = ?2) ORDER BY t.id LIMIT ?3";
    let user = user.map(|id| id.to_string()).unwrap_or_default();
    let rows = tx.query(sql, &[after.unwrap_or("").into(), user.into(), limit.into()]).await?;
    rows.into_iter().map(token_from_row).collect()
}

pub async fn delete_token(tx: &mut dyn Tx, id: TokenId) -> Result<bool> {
    Ok(tx.execute("DELETE FROM tokens WHERE id = ?1", &[text_param(id)]).await? > 0)
}

/// Deletes the worker token of a sandbox, which has at most one.
pub async fn delete_worker_token(tx: &mut dyn Tx, sandbox: SandboxId) -> Result<()> {
    tx.execute("DELETE FROM tokens WHERE sandbox_id = ?1", &[text_param(sandbox)]).await?;
    Ok(())
}
