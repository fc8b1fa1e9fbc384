//! One-time tickets: a browser opens a WebSocket without a lasting token in the URL.

use super::Caller;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

pub const TICKET_LIFETIME: Duration = Duration::from_secs(30);
const MAX_OPEN_TICKETS: usize = 10_000;

#[derive(Debug, Default)]
pub struct Tickets(Mutex<HashMap<String, (Instant, Caller)>>);

impl Tickets {
    /// Returns `None` when too many tickets are open.
    pub fn issue(&self, caller: Caller) -> Option<String> {
        let mut tickets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tickets.retain(|_, (since, _)| since.elapsed() < TICKET_LIFETIME);
        if tickets.len() >= MAX_OPEN_TICKETS {
            return None;
        }
        let ticket = URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>());
        tickets.insert(ticket.clone(), (Instant::now(), caller));
        Some(ticket)
    }

    /// Redeems a ticket, which is valid once.
    pub fn redeem(&self, ticket: &str) -> Option<Caller> {
        let mut tickets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tickets.remove(ticket).filter(|(since, _)| since.elapsed() < TICKET_LIFETIME).map(|(_, caller)| caller)
    }
}
