//! Tokens: only a hash of the secret is stored.

use crate::error::{Error, Result};
use crate::sql::{Row, Tx, first, micros, opt_micros, opt_text, text};
use atoll_core::id::{ProjectId, SandboxId, TokenId, UserId};
use atoll_core::principal::{Role, TokenKind};
use atoll_core::time::Timestamp;

/// Whose token it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    User { id: UserId, role: Role },
    Service { role: Role, project: Option<ProjectId> },
    Worker { sandbox: SandboxId },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    pub id: TokenId,
    pub name: String,
    pub hash: String,
    pub holder: Holder,
    pub created_at: Timestamp,
    pub expires_at: Option<Timestamp>,
}

const WORKER: &str = "worker";

fn token(mut row: Row) -> Result<Token> {
    let id = row.parse()?;
    let kind = row.text()?;
    let name = row.text()?;
    let hash = row.text()?;
    let user: Option<UserId> = row.opt_parse()?;
    let role: Option<Role> = row.opt_parse()?;
    let project = row.opt_parse()?;
    let sandbox = row.opt_parse()?;
    let created_at = row.time()?;
    let expires_at = row.opt_time()?;
    let user_role: Option<Role> = row.opt_parse()?;
    let missing = || Error::internal("a token without its holder");
    let holder = match kind.as_str() {
        WORKER => Holder::Worker { sandbox: sandbox.ok_or_else(missing)? },
        other => match other.parse().map_err(Error::internal)? {
            TokenKind::User => Holder::User { id: user.ok_or_else(missing)?, role: user_role.ok_or_else(missing)? },
            TokenKind::Service => Holder::Service { role: role.ok_or_else(missing)?, project },
        },
    };
    Ok(Token { id, name, hash, holder, created_at, expires_at })
}

pub async fn insert(tx: &mut dyn Tx, t: &Token) -> Result<()> {
    let (kind, user, role, project, sandbox) = match &t.holder {
        Holder::User { id, .. } => (TokenKind::User.as_str(), Some(*id), None, None, None),
        Holder::Service { role, project } => (TokenKind::Service.as_str(), None, Some(*role), *project, None),
        Holder::Worker { sandbox } => (WORKER, None, None, None, Some(*sandbox)),
    };
    let sql = "INSERT INTO tokens
               (id, kind, name, hash, user_id, role, project_id, sandbox_id, created_at, expires_at)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
    let params = [
        text(t.id),
        kind.into(),
        (&t.name).into(),
        (&t.hash).into(),
        opt_text(user),
        opt_text(role),
        opt_text(project),
        opt_text(sandbox),
        micros(t.created_at),
        opt_micros(t.expires_at),
    ];
    tx.execute(sql, &params).await.map(drop)
}

pub async fn get(tx: &mut dyn Tx, id: TokenId) -> Result<Option<Token>> {
    let sql = "SELECT t.id, t.kind, t.name, t.hash, t.user_id, t.role, t.project_id, t.sandbox_id,
                      t.created_at, t.expires_at, u.role
               FROM tokens t LEFT JOIN users u ON u.id = t.user_id WHERE t.id = ?1";
    first(tx.query(sql, &[text(id)]).await?).map(token).transpose()
}

/// Tokens of people and programs; of one user where named.
pub async fn list(tx: &mut dyn Tx, user: Option<UserId>, after: Option<&str>, limit: i64) -> Result<Vec<Token>> {
    let sql = "SELECT t.id, t.kind, t.name, t.hash, t.user_id, t.role, t.project_id, t.sandbox_id,
                      t.created_at, t.expires_at, u.role
               FROM tokens t LEFT JOIN users u ON u.id = t.user_id
               WHERE t.kind <> 'worker' AND t.id > ?1 AND (?2 = '' OR t.user_id = ?2) ORDER BY t.id LIMIT ?3";
    let user = user.map(|id| id.to_string()).unwrap_or_default();
    let rows = tx.query(sql, &[after.unwrap_or("").into(), user.into(), limit.into()]).await?;
    rows.into_iter().map(token).collect()
}

pub async fn delete(tx: &mut dyn Tx, id: TokenId) -> Result<bool> {
    Ok(tx.execute("DELETE FROM tokens WHERE id = ?1", &[text(id)]).await? > 0)
}

/// A sandbox has one worker token: a new one ends the old.
pub async fn delete_of_worker(tx: &mut dyn Tx, sandbox: SandboxId) -> Result<()> {
    tx.execute("DELETE FROM tokens WHERE sandbox_id = ?1", &[text(sandbox)]).await?;
    Ok(())
}
