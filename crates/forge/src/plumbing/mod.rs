//! What running git takes wherever it is run: on the host by this crate, in a sandbox by the worker.
//!
//! Only mechanics are here. As whom git runs, on what, and with which settings is each side's own
//! policy: the host does not trust the repository, and in the sandbox the jail is the protection.

mod answer;
pub mod bundle;
pub mod changes;
pub mod filters;
pub mod program;
pub mod run;

pub use answer::{Answer, Rejected};
