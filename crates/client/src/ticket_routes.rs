//! Routes of tickets.
use crate::error::Result;
use crate::http::{Client, NO_QUERY};
use atoll_api::{ChangeTicket, NewTicket, Page, Ticket, TicketListQuery};
use atoll_core::id::TicketId;

impl Client {
    /// Creates a ticket: `POST /tickets`.
    pub async fn create_ticket(&self, request: &NewTicket) -> Result<Ticket> {
        self.post("/tickets", request).await
    }

    /// Lists tickets, newest first: `GET /tickets`.
    pub async fn list_tickets(&self, query: &TicketListQuery) -> Result<Page<Ticket>> {
        self.get("/tickets", query).await
    }

    /// Returns one ticket: `GET /tickets/{ticket}`.
    pub async fn get_ticket(&self, ticket: TicketId) -> Result<Ticket> {
        self.get(&format!("/tickets/{ticket}"), NO_QUERY).await
    }

    /// Changes a ticket: `PATCH /tickets/{ticket}`.
    pub async fn change_ticket(&self, ticket: TicketId, request: &ChangeTicket) -> Result<Ticket> {
        self.patch(&format!("/tickets/{ticket}"), request).await
    }

    /// Removes a ticket: `DELETE /tickets/{ticket}`.
    pub async fn remove_ticket(&self, ticket: TicketId) -> Result<Ticket> {
        self.delete(&format!("/tickets/{ticket}"), NO_QUERY).await
    }
}
