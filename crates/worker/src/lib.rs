//! The worker: takes events from a program, keeps them on disk until the server has stored them,
//! and brings messages the other way.
//!
//! `dispatcher` is the map: one loop that every outside event goes through. Everything else is a
//! part that it drives: threads for stdin (`input`), stdout (`output`) and the disk (`disk`), and
//! tasks for the server (`uplink`, `downlink`, `heartbeat`, `answers`), each with a connection of its own.
//!
//! Started by hand it works for the program at its standard input and output. As the first process of a sandbox (`init`;
//! `container` where an engine made it) it is dialled by the server (`acceptor`), runs the agent itself (`executor`, one `driver` per agent, `demo`
//! being an agent too, `opencode` a bridge to one), commands for others (`exec`) and what they do with files (`transfer`), all of it through a helper
//! that has the agent's rights (`hands`). What a dead one left, the server sends itself (`drain`). The one way out of the
//! sandbox is the server's too (`outward`).
//!
//! What is deliberately absent: nothing here waits for the server before it answers the program.
//! A key is printed when the event is on disk, whether there is a network or not.

pub mod acceptor;
pub mod answers;
pub mod backoff;
pub mod container;
pub mod demo;
pub mod disk;
pub mod dispatcher;
pub mod downlink;
pub mod drain;
pub mod driver;
pub mod environment;
pub mod exchange;
pub mod exec;
pub mod executor;
pub mod exit;
pub mod files;
pub mod git;
pub mod hands;
pub mod heartbeat;
pub mod init;
pub mod input;
pub mod journal;
pub mod link;
mod log;
pub mod logins;
pub mod memory;
pub mod opencode;
pub mod output;
pub mod outward;
pub mod program;
mod quiet;
mod readiness;
pub mod resources;
pub mod setup;
pub mod signals;
pub mod spool;
pub mod transcript;
pub mod transfer;
pub mod uplink;

pub use exit::Exit;
