//! Git on the host.
