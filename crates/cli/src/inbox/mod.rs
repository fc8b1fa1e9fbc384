//! Messages: send, list and change them.

pub mod message;
pub mod messages;
pub mod send;
