//! The worker: takes events from a program, keeps them on disk until the server has stored them,
//! and brings messages the other way.
//!
//! `dispatcher` is the map: one loop that every outside event goes through. Everything else is a
//! part that it drives: threads for stdin (`input`), stdout (`output`) and the disk (`disk`), and
//! tasks for the server (`uplink`, `downlink`, `heartbeat`, `answers`), each with a connection of its own.
//!
//! What is deliberately absent: nothing here waits for the server before it answers the program.
//! A key is printed when the event is on disk, whether there is a network or not.

pub mod answers;
pub mod backoff;
pub mod disk;
pub mod dispatcher;
pub mod downlink;
pub mod exit;
pub mod heartbeat;
pub mod input;
pub mod journal;
pub mod link;
pub mod output;
pub mod resources;
pub mod setup;
pub mod spool;
pub mod uplink;

pub use exit::Exit;
