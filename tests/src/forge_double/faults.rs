//! Faults that a test injects.

use super::ForgeReply;
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Debug, Clone)]
pub enum Fault {
    /// Every request gets 503, until the test ends it.
    Down,
    /// The next requests get 403 with `retry-after`, in seconds.
    SecondaryRateLimit { requests: u32, retry_after: u64 },
    /// The next requests get 403 with an exhausted limit, which ends after this many seconds.
    PrimaryRateLimit { requests: u32, reset_after: u64 },
    /// The next requests get 502.
    BadGateway { requests: u32 },
    /// The next request with this method and end of the path has its effect, but its response is a 502.
    LostResponse { method: &'static str, path_end: &'static str },
    /// Requests with this method and end of the path have their effect, but get no response until the test ends the fault.
    HeldResponse { method: &'static str, path_end: &'static str },
}

#[derive(Debug, Default)]
pub(crate) struct Faults(Vec<Fault>);

impl Faults {
    pub fn inject(&mut self, fault: Fault) {
        self.0.push(fault);
    }

    /// The response in place of the operation.
    pub fn reply_before(&mut self) -> Option<ForgeReply> {
        for fault in &mut self.0 {
            match fault {
                Fault::Down => return Some(ForgeReply::message(503, "Service Unavailable")),
                Fault::SecondaryRateLimit { requests, retry_after } if *requests > 0 => {
                    *requests -= 1;
                    let mut reply = ForgeReply::message(403, "You have exceeded a secondary rate limit.");
                    reply.headers.push(("retry-after", retry_after.to_string()));
                    return Some(reply);
                }
                Fault::PrimaryRateLimit { requests, reset_after } if *requests > 0 => {
                    *requests -= 1;
                    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
                    let mut reply = ForgeReply::message(403, "API rate limit exceeded for user ID 1.");
                    reply.headers.push(("x-ratelimit-remaining", "0".to_owned()));
                    reply.headers.push(("x-ratelimit-reset", (now + *reset_after).to_string()));
                    return Some(reply);
                }
                Fault::BadGateway { requests } if *requests > 0 => {
                    *requests -= 1;
                    return Some(ForgeReply::message(502, "Bad Gateway"));
                }
                Fault::SecondaryRateLimit { .. }
                | Fault::PrimaryRateLimit { .. }
                | Fault::BadGateway { .. }
                | Fault::LostResponse { .. }
                | Fault::HeldResponse { .. } => {}
            }
        }
        None
    }

    /// True if this operation gets no response.
    pub fn holds_response(&self, method: &str, path: &str) -> bool {
        self.0.iter().any(|fault| match fault {
            Fault::HeldResponse { method: named, path_end } => *named == method && path.ends_with(path_end),
            Fault::Down
            | Fault::SecondaryRateLimit { .. }
            | Fault::PrimaryRateLimit { .. }
            | Fault::BadGateway { .. }
            | Fault::LostResponse { .. } => false,
        })
    }

    /// True if the response of this operation gets lost.
    pub fn takes_response(&mut self, method: &str, path: &str) -> bool {
        let is_meant = |fault: &Fault| match fault {
            Fault::LostResponse { method: named, path_end } => *named == method && path.ends_with(path_end),
            Fault::Down
            | Fault::SecondaryRateLimit { .. }
            | Fault::PrimaryRateLimit { .. }
            | Fault::BadGateway { .. }
            | Fault::HeldResponse { .. } => false,
        };
        match self.0.iter().position(is_meant) {
            Some(place) => {
                self.0.remove(place);
                true
            }
            None => false,
        }
    }
}
