//! One-time tickets: a browser opens a WebSocket or signs in without a lasting token in the URL.

use super::Caller;
use crate::problem::{Code, Problem};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use secrecy::{ExposeSecret, SecretString};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Lifetime of a ticket for a WebSocket.
pub const TICKET_LIFETIME: Duration = Duration::from_secs(30);
/// Lifetime of a link that signs in: a person has to open it.
pub const LINK_LIFETIME: Duration = Duration::from_secs(600);
const MAX_OPEN_TICKETS: usize = 10_000;

#[derive(Debug)]
pub struct Tickets {
    lifetime: Duration,
    open: Mutex<HashMap<String, (Instant, Caller)>>,
}

impl Tickets {
    pub fn new(lifetime: Duration) -> Self {
        Self { lifetime, open: Mutex::default() }
    }

    /// Returns `None` when too many tickets are open.
    pub fn issue(&self, caller: Caller) -> Option<String> {
        let mut tickets = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        tickets.retain(|_, (since, _)| since.elapsed() < self.lifetime);
        if tickets.len() >= MAX_OPEN_TICKETS {
            return None;
        }
        let ticket = URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>());
        tickets.insert(ticket.clone(), (Instant::now(), caller));
        Some(ticket)
    }

    /// The problem when there are too many.
    pub fn too_many() -> Problem {
        Problem::new(Code::RateLimited, "too many open tickets; wait until some expire").retry_after(30)
    }

    /// Redeems a ticket, which is valid once.
    pub fn redeem(&self, ticket: &SecretString) -> Option<Caller> {
        let mut tickets = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let found = tickets.remove(ticket.expose_secret());
        found.filter(|(since, _)| since.elapsed() < self.lifetime).map(|(_, caller)| caller)
    }
}
