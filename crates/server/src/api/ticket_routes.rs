//! `/tickets`: create, list, read, change and remove them.

use crate::app::tickets;
use crate::auth::access::{CanList, CanSee, CanWork, ClientCaller};
use crate::extract::{Body, Params};
use crate::idempotency::{IdempotencyKey, JsonResponse};
use crate::problem::Result;
use crate::state::App;
use atoll_api::{ChangeTicket, NewTicket, Page, Ticket, TicketListQuery};
use atoll_core::id::TicketId;
use axum::Json;
use axum::extract::State;
use std::sync::Arc;

/// Create a ticket.
#[utoipa::path(post, path = "/tickets", tag = "tickets", params(("Idempotency-Key" = Option<String>, Header)),
    request_body = NewTicket, responses((status = 201, body = Ticket)))]
pub async fn create_ticket(
    State(app): State<Arc<App>>,
    client: ClientCaller,
    key: IdempotencyKey,
    Body { value, hash }: Body<NewTicket>,
) -> Result<JsonResponse> {
    tickets::create_ticket(&app, client, key.with_body(hash), value).await
}

/// List tickets, newest first.
#[utoipa::path(get, path = "/tickets", tag = "tickets", params(TicketListQuery),
    responses((status = 200, body = Page<Ticket>)))]
pub async fn list_tickets(
    State(app): State<Arc<App>>,
    access: CanList,
    Params(query): Params<TicketListQuery>,
) -> Result<Json<Page<Ticket>>> {
    tickets::list_tickets(&app, access, query).await.map(Json)
}

/// Show a ticket.
#[utoipa::path(get, path = "/tickets/{id}", tag = "tickets", params(("id" = TicketId, Path)),
    responses((status = 200, body = Ticket)))]
pub async fn read_ticket(State(app): State<Arc<App>>, access: CanSee<TicketId>) -> Result<Json<Ticket>> {
    tickets::read_ticket(&app, access).await.map(Json)
}

/// Change a ticket.
#[utoipa::path(patch, path = "/tickets/{id}", tag = "tickets",
    params(("id" = TicketId, Path), ("Idempotency-Key" = Option<String>, Header)),
    request_body = ChangeTicket, responses((status = 200, body = Ticket)))]
pub async fn change_ticket(
    State(app): State<Arc<App>>,
    access: CanWork<TicketId>,
    key: IdempotencyKey,
    Body { value, hash }: Body<ChangeTicket>,
) -> Result<JsonResponse> {
    tickets::change_ticket(&app, access, key.with_body(hash), value).await
}

/// Remove a ticket that no other ticket depends on.
///
/// Its branch and its pull request stay.
#[utoipa::path(delete, path = "/tickets/{id}", tag = "tickets", params(("id" = TicketId, Path)),
    responses((status = 200, body = Ticket)))]
pub async fn remove_ticket(State(app): State<Arc<App>>, access: CanWork<TicketId>) -> Result<Json<Ticket>> {
    tickets::remove_ticket(&app, access).await.map(Json)
}
