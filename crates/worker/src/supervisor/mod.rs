//! The worker as the first process of a sandbox: sets up descriptors, signals and the spawner, accepts the server's
//! connections, and runs the dispatcher.

pub mod acceptor;
pub mod container;
pub mod egress_socket;
pub mod init;
mod log;
mod port_connection;
mod quiesce;
pub mod signals;
