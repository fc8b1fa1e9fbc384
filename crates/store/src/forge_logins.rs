//! Logins of users at forges. This module cannot open their tokens.

use crate::error::Result;
use crate::sql::{Row, SqlParam, Tx, first_row, opt_time_param, text_param, time_param};
use atoll_core::forge::ForgeKind;
use atoll_core::id::UserId;
use atoll_core::time::Timestamp;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForgeLoginRow {
    pub user_id: UserId,
    pub forge: ForgeKind,
    /// The host that the tokens are for, such as `github.com`.
    pub host: String,
    /// The user's name at the forge.
    pub account: Option<String>,
    pub sealed: String,
    pub key_id: String,
    /// End of the access token; a token without an end is valid until it is revoked.
    pub expires_at: Option<Timestamp>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT user_id, forge, host, account, sealed, key_id, expires_at, created_at, updated_at FROM forge_logins ",
            $rest
        )
    };
}

fn login_from_row(row: Row) -> Result<ForgeLoginRow> {
    Ok(ForgeLoginRow {
        user_id: row.parse("user_id")?,
        forge: row.parse("forge")?,
        host: row.text("host")?,
        account: row.opt_text("account")?,
        sealed: row.text("sealed")?,
        key_id: row.text("key_id")?,
        expires_at: row.opt_time("expires_at")?,
        created_at: row.time("created_at")?,
        updated_at: row.time("updated_at")?,
    })
}

pub async fn find_forge_login(tx: &mut dyn Tx, user: UserId, forge: ForgeKind) -> Result<Option<ForgeLoginRow>> {
    let sql = select!("WHERE user_id = ?1 AND forge = ?2");
    first_row(tx.query(sql, &[text_param(user), text_param(forge)]).await?).map(login_from_row).transpose()
}

/// Creates or replaces the login of a user.
pub async fn put_forge_login(tx: &mut dyn Tx, login: &ForgeLoginRow) -> Result<()> {
    let sql =
        "INSERT INTO forge_logins (user_id, forge, host, account, sealed, key_id, expires_at, created_at, updated_at)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
               ON CONFLICT (user_id, forge) DO UPDATE SET host = excluded.host, account = excluded.account,
               sealed = excluded.sealed, key_id = excluded.key_id, expires_at = excluded.expires_at,
               updated_at = excluded.updated_at";
    let params = [
        text_param(login.user_id),
        text_param(login.forge),
        (&login.host).into(),
        login.account.as_deref().into(),
        (&login.sealed).into(),
        (&login.key_id).into(),
        opt_time_param(login.expires_at),
        time_param(login.created_at),
        time_param(login.updated_at),
    ];
    tx.execute(sql, &params).await.map(drop)
}

/// Removes the login of a user. Returns false if there is none.
pub async fn delete_forge_login(tx: &mut dyn Tx, user: UserId, forge: ForgeKind) -> Result<bool> {
    let sql = "DELETE FROM forge_logins WHERE user_id = ?1 AND forge = ?2";
    Ok(tx.execute(sql, &[text_param(user), text_param(forge)]).await? > 0)
}

const SELECT_PAGE: &str = select!("WHERE forge = ?1 AND user_id > ?2 ORDER BY user_id LIMIT ?3");

/// Lists the logins of all users at a forge, page by page.
pub async fn read_forge_login_page(
    tx: &mut dyn Tx,
    forge: ForgeKind,
    after: Option<UserId>,
    limit: i64,
) -> Result<Vec<ForgeLoginRow>> {
    let params = [text_param(forge), after_param(after), limit.into()];
    tx.query(SELECT_PAGE, &params).await?.into_iter().map(login_from_row).collect()
}

/// Like `read_forge_login_page`, and locks the rows.
pub async fn read_forge_login_page_for_update(
    tx: &mut dyn Tx,
    forge: ForgeKind,
    after: Option<UserId>,
    limit: i64,
) -> Result<Vec<ForgeLoginRow>> {
    let params = [text_param(forge), after_param(after), limit.into()];
    tx.query_for_update(SELECT_PAGE, &params).await?.into_iter().map(login_from_row).collect()
}

fn after_param<'a>(after: Option<UserId>) -> SqlParam<'a> {
    after.map(|id| id.to_string()).unwrap_or_default().into()
}
