//! Messages: sending, listing, and changing what is still queued.

pub mod list;
pub mod queued;
pub mod send;
