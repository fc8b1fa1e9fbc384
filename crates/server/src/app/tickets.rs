//! Tickets: create, list, change and remove them. `core::ticket` has the rules.

use super::Work;
use super::views::cut_page;
use crate::auth::access::{CanList, CanSee, CanWork, ClientCaller};
use crate::cursor::decode_id;
use crate::extract::page_size;
use crate::idempotency::{IdempotencyKey, JsonResponse};
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_api::{ChangeTicket, NewTicket, Page, Ticket, TicketListQuery};
use atoll_core::bounds;
use atoll_core::id::{ProjectId, TicketId};
use atoll_core::ticket::dependencies::find_cycle;
use atoll_core::ticket::{
    MAX_DEPENDENCIES, MAX_DESCRIPTION_BYTES, TicketKey, TicketPriority, TicketStatus, TicketType, choose_prefix,
};
use atoll_store::tickets::{self, TicketFilter, TicketRow};
use atoll_store::{Tx, projects};
use std::collections::BTreeSet;

/// Keys that an error names; the rest is counted.
const MAX_NAMED_KEYS: usize = 10;

pub async fn create_ticket(
    app: &App,
    client: ClientCaller,
    key: IdempotencyKey,
    new: NewTicket,
) -> Result<JsonResponse> {
    let project = new.project_id.unwrap_or(app.default_project);
    let access = CanWork::<ProjectId>::authorize(app, client.0, project).await?;
    check_texts(Some(&new.title), new.description.as_deref())?;
    let actor = access.actor();
    app.write_once(&access.caller, key, async move |work| {
        tickets::lock_tickets(work.tx, project).await?;
        let ticket = TicketRow {
            id: TicketId::new(),
            project_id: project,
            key: next_key(work, project).await?,
            title: work.redact_text(project, new.title),
            description: new.description.map(|text| work.redact_text(project, text)),
            ticket_type: new.ticket_type.unwrap_or(TicketType::Feature),
            priority: new.priority.unwrap_or(TicketPriority::Medium),
            status: new.status.unwrap_or(TicketStatus::Backlog),
            is_blocked: new.blocked,
            branch: None,
            pull_request: None,
            session_id: None,
            created_by: Some(actor),
            created_at: work.now,
            updated_at: work.now,
        };
        tickets::insert_ticket(work.tx, &ticket).await?;
        store_dependencies(work, &ticket, &new.depends_on).await?;
        JsonResponse::created(load_ticket_view(work.tx, ticket).await?)
    })
    .await
}

pub async fn list_tickets(app: &App, access: CanList, query: TicketListQuery) -> Result<Page<Ticket>> {
    let limit = page_size(query.limit, 50, 200)?;
    let before = decode_id::<TicketId>("tickets", query.cursor.as_deref())?;
    let filter = TicketFilter {
        visible_projects: access.projects.as_filter(),
        project: query.project,
        status: query.status,
        ticket_type: query.ticket_type,
        priority: query.priority,
        is_blocked: query.blocked,
        key: query.key,
        branch: query.branch,
    };
    app.read(async move |tx| {
        let rows = tickets::list_tickets(tx, &filter, before.as_deref(), limit + 1).await?;
        let page = cut_page("tickets", rows, limit, |row| row.id.to_string());
        let mut items = Vec::with_capacity(page.items.len());
        for row in page.items {
            items.push(load_ticket_view(tx, row).await?);
        }
        Ok(Page { items, next_cursor: page.next_cursor })
    })
    .await
}

pub async fn read_ticket(app: &App, access: CanSee<TicketId>) -> Result<Ticket> {
    app.read(async move |tx| {
        let row = tickets::find_ticket(tx, access.id).await?.ok_or_else(|| Problem::not_found("ticket"))?;
        load_ticket_view(tx, row).await
    })
    .await
}

pub async fn change_ticket(
    app: &App,
    access: CanWork<TicketId>,
    key: IdempotencyKey,
    change: ChangeTicket,
) -> Result<JsonResponse> {
    check_texts(change.title.as_deref(), change.description.as_ref().and_then(Option::as_deref))?;
    let (id, project) = (access.id, access.project);
    app.write_once(&access.caller, key, async move |work| {
        // Dependencies of a project change one at a time: two changes could form a cycle together.
        tickets::lock_tickets(work.tx, project).await?;
        let mut ticket = lock_ticket(work, id).await?;
        if let Some(title) = change.title {
            ticket.title = work.redact_text(project, title);
        }
        if let Some(description) = change.description {
            ticket.description = description.map(|text| work.redact_text(project, text));
        }
        ticket.ticket_type = change.ticket_type.unwrap_or(ticket.ticket_type);
        ticket.priority = change.priority.unwrap_or(ticket.priority);
        ticket.status = change.status.unwrap_or(ticket.status);
        ticket.is_blocked = change.blocked.unwrap_or(ticket.is_blocked);
        ticket.updated_at = work.now;
        tickets::update_ticket(work.tx, &ticket).await?;
        if let Some(depends_on) = change.depends_on {
            store_dependencies(work, &ticket, &depends_on).await?;
        }
        JsonResponse::ok(load_ticket_view(work.tx, ticket).await?)
    })
    .await
}

/// Removes a ticket that no other ticket depends on. Its branch and its pull request stay.
pub async fn remove_ticket(app: &App, access: CanWork<TicketId>) -> Result<Ticket> {
    let (id, project) = (access.id, access.project);
    app.write(async move |work| {
        tickets::lock_tickets(work.tx, project).await?;
        let ticket = lock_ticket(work, id).await?;
        let dependants = tickets::list_dependant_keys(work.tx, id).await?;
        if !dependants.is_empty() {
            let detail = format!("other tickets depend on {}: {}", ticket.key, join_keys(&dependants));
            return Err(Problem::new(Code::InUse, detail));
        }
        let view = load_ticket_view(work.tx, ticket).await?;
        tickets::delete_ticket(work.tx, id).await?;
        Ok(view)
    })
    .await
}

pub async fn lock_ticket(work: &mut Work<'_>, id: TicketId) -> Result<TicketRow> {
    tickets::lock_ticket(work.tx, id).await?.ok_or_else(|| Problem::not_found("ticket"))
}

/// The view of a ticket with its dependencies.
pub async fn load_ticket_view(tx: &mut dyn Tx, row: TicketRow) -> Result<Ticket> {
    Ok(Ticket {
        depends_on: tickets::list_dependency_keys(tx, row.id).await?,
        id: row.id,
        key: row.key,
        project_id: row.project_id,
        title: row.title,
        description: row.description,
        ticket_type: row.ticket_type,
        priority: row.priority,
        status: row.status,
        blocked: row.is_blocked,
        branch: row.branch,
        pr: row.pull_request,
        session_id: row.session_id,
        created_by: row.created_by,
        created_at: row.created_at,
        updated_at: row.updated_at,
    })
}

/// Checks the texts of a ticket or a task.
pub fn check_texts(title: Option<&str>, description: Option<&str>) -> Result<()> {
    if let Some(title) = title {
        bounds::check_line("title", title, bounds::MAX_TITLE_CHARS)?;
    }
    if let Some(description) = description {
        bounds::check_content("description", description, MAX_DESCRIPTION_BYTES)?;
    }
    Ok(())
}

/// Takes the next key of the project. Its first ticket also chooses the prefix.
async fn next_key(work: &mut Work<'_>, project: ProjectId) -> Result<TicketKey> {
    let prefix = match tickets::find_prefix(work.tx, project).await? {
        Some(prefix) => prefix,
        None => {
            tickets::lock_prefixes(work.tx).await?;
            let row = projects::find_project(work.tx, project).await?.ok_or_else(|| Problem::not_found("project"))?;
            let taken = tickets::list_prefixes(work.tx).await?;
            let prefix = choose_prefix(&row.name, row.is_default, &taken);
            tickets::set_prefix(work.tx, project, &prefix).await?;
            prefix
        }
    };
    Ok(TicketKey::new(&prefix, tickets::take_number(work.tx, project).await?))
}

/// Replaces the dependencies of a ticket. The caller holds the lock of the project's tickets.
async fn store_dependencies(work: &mut Work<'_>, ticket: &TicketRow, keys: &[TicketKey]) -> Result<()> {
    if keys.len() > MAX_DEPENDENCIES {
        let detail = format!("depends_on: there are {}; at most {MAX_DEPENDENCIES} are allowed", keys.len());
        return Err(Problem::invalid(detail));
    }
    let mut depends_on = BTreeSet::new();
    for key in keys {
        let found = tickets::find_ticket_by_key(work.tx, ticket.project_id, key).await?;
        let found = found.ok_or_else(|| Problem::invalid(format!("depends_on: the project has no ticket {key}")))?;
        depends_on.insert(found.id);
    }
    let existing = tickets::load_dependencies(work.tx, ticket.project_id).await?;
    if let Some(cycle) = find_cycle(&existing, &ticket.id, &depends_on) {
        let mut path = Vec::new();
        for id in cycle {
            path.extend(tickets::find_ticket(work.tx, id).await?.map(|ticket| ticket.key));
        }
        let detail = format!("depends_on: these tickets would wait for each other: {}", join_keys(&path));
        return Err(Problem::new(Code::DependencyCycle, detail));
    }
    tickets::set_dependencies(work.tx, ticket.id, &depends_on).await?;
    Ok(())
}

fn join_keys(keys: &[TicketKey]) -> String {
    let named: Vec<_> = keys.iter().take(MAX_NAMED_KEYS).map(ToString::to_string).collect();
    let more = keys.len().saturating_sub(MAX_NAMED_KEYS);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", named.join(", "))
}
