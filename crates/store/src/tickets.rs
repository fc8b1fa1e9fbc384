//! Tickets and their dependencies.

use crate::error::{Error, Result};
use crate::projects::ProjectFilter;
use crate::sql::{Row, Tx, first_row, opt_text_param, text_param, time_param};
use atoll_core::id::{ProjectId, SessionId, TicketId};
use atoll_core::pull_request::PullRequestLink;
use atoll_core::ticket::dependencies::DependencyMap;
use atoll_core::ticket::{TicketKey, TicketPriority, TicketStatus, TicketType};
use atoll_core::time::Timestamp;
use std::collections::BTreeSet;

#[derive(Debug, Clone, PartialEq)]
pub struct TicketRow {
    pub id: TicketId,
    pub project_id: ProjectId,
    pub key: TicketKey,
    pub title: String,
    pub description: Option<String>,
    pub ticket_type: TicketType,
    pub priority: TicketPriority,
    pub status: TicketStatus,
    pub is_blocked: bool,
    /// The branch that the ticket owns.
    pub branch: Option<String>,
    pub pull_request: Option<PullRequestLink>,
    /// The session that worked on the ticket last.
    pub session_id: Option<SessionId>,
    pub created_by: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT id, project_id, key, title, description, type, priority, status, blocked, branch, pull_request,
             session_id, created_by, created_at, updated_at FROM tickets ",
            $rest
        )
    };
}

fn ticket_from_row(row: Row) -> Result<TicketRow> {
    Ok(TicketRow {
        id: row.parse("id")?,
        project_id: row.parse("project_id")?,
        key: row.parse("key")?,
        title: row.text("title")?,
        description: row.opt_text("description")?,
        ticket_type: row.parse("type")?,
        priority: row.parse("priority")?,
        status: row.parse("status")?,
        is_blocked: row.bool("blocked")?,
        branch: row.opt_text("branch")?,
        pull_request: row.opt_json("pull_request")?,
        session_id: row.opt_parse("session_id")?,
        created_by: row.opt_text("created_by")?,
        created_at: row.time("created_at")?,
        updated_at: row.time("updated_at")?,
    })
}

fn pull_request_json(ticket: &TicketRow) -> Result<Option<String>> {
    ticket.pull_request.as_ref().map(serde_json::to_string).transpose().map_err(Error::internal)
}

/// Locks the tickets of a project: their keys and their dependencies.
pub async fn lock_tickets(tx: &mut dyn Tx, project: ProjectId) -> Result<()> {
    tx.query_for_update("SELECT id FROM projects WHERE id = ?1", &[text_param(project)]).await.map(drop)
}

/// Locks the prefixes of all projects.
pub async fn lock_prefixes(tx: &mut dyn Tx) -> Result<()> {
    tx.query_for_update("SELECT key FROM meta WHERE key = 'deployment'", &[]).await.map(drop)
}

pub async fn list_prefixes(tx: &mut dyn Tx) -> Result<BTreeSet<String>> {
    let sql = "SELECT ticket_prefix FROM projects WHERE ticket_prefix IS NOT NULL";
    tx.query(sql, &[]).await?.into_iter().map(|row| row.text("ticket_prefix")).collect()
}

/// Returns the prefix of a project's ticket keys; a project without tickets may have none.
pub async fn find_prefix(tx: &mut dyn Tx, project: ProjectId) -> Result<Option<String>> {
    let rows = tx.query("SELECT ticket_prefix FROM projects WHERE id = ?1", &[text_param(project)]).await?;
    first_row(rows).map(|row| row.opt_text("ticket_prefix")).transpose().map(Option::flatten)
}

pub async fn set_prefix(tx: &mut dyn Tx, project: ProjectId, prefix: &str) -> Result<()> {
    let sql = "UPDATE projects SET ticket_prefix = ?2 WHERE id = ?1";
    tx.execute(sql, &[text_param(project), prefix.into()]).await.map(drop)
}

/// Takes the number of the project's next ticket. A number is never used again. The caller holds the lock of the tickets.
pub async fn take_number(tx: &mut dyn Tx, project: ProjectId) -> Result<i64> {
    let rows = tx.query("SELECT next_ticket FROM projects WHERE id = ?1", &[text_param(project)]).await?;
    let number = first_row(rows).ok_or_else(|| Error::internal("no such project"))?.int("next_ticket")?;
    tx.execute("UPDATE projects SET next_ticket = next_ticket + 1 WHERE id = ?1", &[text_param(project)]).await?;
    Ok(number)
}

pub async fn insert_ticket(tx: &mut dyn Tx, t: &TicketRow) -> Result<()> {
    let sql = "INSERT INTO tickets (id, project_id, key, title, description, type, priority, status, blocked, branch,
               pull_request, session_id, created_by, created_at, updated_at)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)";
    let pull_request = pull_request_json(t)?;
    let params = [
        text_param(t.id),
        text_param(t.project_id),
        text_param(&t.key),
        (&t.title).into(),
        t.description.as_deref().into(),
        text_param(t.ticket_type),
        text_param(t.priority),
        text_param(t.status),
        t.is_blocked.into(),
        t.branch.as_deref().into(),
        pull_request.as_deref().into(),
        opt_text_param(t.session_id),
        t.created_by.as_deref().into(),
        time_param(t.created_at),
        time_param(t.updated_at),
    ];
    tx.execute(sql, &params).await.map(drop)
}

/// Updates everything except project, key and creator.
pub async fn update_ticket(tx: &mut dyn Tx, t: &TicketRow) -> Result<()> {
    let sql = "UPDATE tickets SET title = ?2, description = ?3, type = ?4, priority = ?5, status = ?6, blocked = ?7,
               branch = ?8, pull_request = ?9, session_id = ?10, updated_at = ?11 WHERE id = ?1";
    let pull_request = pull_request_json(t)?;
    let params = [
        text_param(t.id),
        (&t.title).into(),
        t.description.as_deref().into(),
        text_param(t.ticket_type),
        text_param(t.priority),
        text_param(t.status),
        t.is_blocked.into(),
        t.branch.as_deref().into(),
        pull_request.as_deref().into(),
        opt_text_param(t.session_id),
        time_param(t.updated_at),
    ];
    match tx.execute(sql, &params).await? {
        1 => Ok(()),
        _ => Err(Error::Conflict { what: "ticket" }),
    }
}

pub async fn delete_ticket(tx: &mut dyn Tx, id: TicketId) -> Result<bool> {
    Ok(tx.execute("DELETE FROM tickets WHERE id = ?1", &[text_param(id)]).await? > 0)
}

pub async fn find_ticket(tx: &mut dyn Tx, id: TicketId) -> Result<Option<TicketRow>> {
    first_row(tx.query(select!("WHERE id = ?1"), &[text_param(id)]).await?).map(ticket_from_row).transpose()
}

/// Returns the ticket and locks it until the transaction ends.
pub async fn lock_ticket(tx: &mut dyn Tx, id: TicketId) -> Result<Option<TicketRow>> {
    first_row(tx.query_for_update(select!("WHERE id = ?1"), &[text_param(id)]).await?).map(ticket_from_row).transpose()
}

pub async fn find_ticket_by_key(tx: &mut dyn Tx, project: ProjectId, key: &TicketKey) -> Result<Option<TicketRow>> {
    let rows = tx.query(select!("WHERE project_id = ?1 AND key = ?2"), &[text_param(project), text_param(key)]).await?;
    first_row(rows).map(ticket_from_row).transpose()
}

/// Returns the ticket that the session works on.
pub async fn find_session_ticket(tx: &mut dyn Tx, session: SessionId) -> Result<Option<TicketRow>> {
    let rows = tx.query(select!("WHERE session_id = ?1 ORDER BY id LIMIT 1"), &[text_param(session)]).await?;
    first_row(rows).map(ticket_from_row).transpose()
}

/// Filter of a list.
#[derive(Debug, Clone, Default)]
pub struct TicketFilter {
    pub visible_projects: ProjectFilter,
    pub project: Option<ProjectId>,
    pub status: Option<TicketStatus>,
    pub ticket_type: Option<TicketType>,
    pub priority: Option<TicketPriority>,
    pub is_blocked: Option<bool>,
    pub key: Option<TicketKey>,
    pub branch: Option<String>,
}

/// Lists tickets, newest first, from before `before`.
pub async fn list_tickets(
    tx: &mut dyn Tx,
    filter: &TicketFilter,
    before: Option<&str>,
    limit: i64,
) -> Result<Vec<TicketRow>> {
    let sql = select!(
        "WHERE id < ?1 AND (?2 = '' OR project_id = ?2) AND (?3 = '' OR ?3 LIKE '%' || project_id || '%')
         AND (?4 = '' OR status = ?4) AND (?5 = '' OR type = ?5) AND (?6 = '' OR priority = ?6)
         AND (?7 < 0 OR blocked = ?7) AND (?8 = '' OR key = ?8) AND (?9 = '' OR branch = ?9)
         ORDER BY id DESC LIMIT ?10"
    );
    let params = [
        before.unwrap_or("~").into(),
        text_param(filter.project.map(|id| id.to_string()).unwrap_or_default()),
        filter.visible_projects.as_param(),
        text_param(filter.status.map(TicketStatus::as_str).unwrap_or_default()),
        text_param(filter.ticket_type.map(TicketType::as_str).unwrap_or_default()),
        text_param(filter.priority.map(TicketPriority::as_str).unwrap_or_default()),
        filter.is_blocked.map_or(-1, i64::from).into(),
        text_param(filter.key.as_ref().map(ToString::to_string).unwrap_or_default()),
        filter.branch.as_deref().unwrap_or_default().into(),
        limit.into(),
    ];
    tx.query(sql, &params).await?.into_iter().map(ticket_from_row).collect()
}

/// Replaces the dependencies of a ticket.
pub async fn set_dependencies(tx: &mut dyn Tx, ticket: TicketId, depends_on: &BTreeSet<TicketId>) -> Result<()> {
    tx.execute("DELETE FROM ticket_dependencies WHERE ticket_id = ?1", &[text_param(ticket)]).await?;
    for need in depends_on {
        let sql = "INSERT INTO ticket_dependencies (ticket_id, depends_on) VALUES (?1, ?2)";
        tx.execute(sql, &[text_param(ticket), text_param(need)]).await?;
    }
    Ok(())
}

/// Returns the dependencies between all tickets of a project.
pub async fn load_dependencies(tx: &mut dyn Tx, project: ProjectId) -> Result<DependencyMap<TicketId>> {
    let sql = "SELECT d.ticket_id, d.depends_on FROM ticket_dependencies d JOIN tickets t ON t.id = d.ticket_id
               WHERE t.project_id = ?1";
    let mut map = DependencyMap::new();
    for row in tx.query(sql, &[text_param(project)]).await? {
        map.entry(row.parse("ticket_id")?).or_insert_with(BTreeSet::new).insert(row.parse("depends_on")?);
    }
    Ok(map)
}

/// Lists the keys of the tickets that a ticket depends on.
pub async fn list_dependency_keys(tx: &mut dyn Tx, ticket: TicketId) -> Result<Vec<TicketKey>> {
    let sql = "SELECT t.key FROM ticket_dependencies d JOIN tickets t ON t.id = d.depends_on
               WHERE d.ticket_id = ?1 ORDER BY t.id";
    tx.query(sql, &[text_param(ticket)]).await?.into_iter().map(|row| row.parse("key")).collect()
}

/// Lists the keys of the tickets that depend on a ticket.
pub async fn list_dependant_keys(tx: &mut dyn Tx, ticket: TicketId) -> Result<Vec<TicketKey>> {
    let sql = "SELECT t.key FROM ticket_dependencies d JOIN tickets t ON t.id = d.ticket_id
               WHERE d.depends_on = ?1 ORDER BY t.id";
    tx.query(sql, &[text_param(ticket)]).await?.into_iter().map(|row| row.parse("key")).collect()
}

/// Returns true if the project has tickets.
pub async fn has_tickets(tx: &mut dyn Tx, project: ProjectId) -> Result<bool> {
    Ok(!tx.query("SELECT 1 FROM tickets WHERE project_id = ?1 LIMIT 1", &[text_param(project)]).await?.is_empty())
}
