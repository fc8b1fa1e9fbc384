//! Makes Linux sandboxes: namespaces, a root by allow-list, cgroups, a filter of system calls.
//!
//! A server can't make them itself: it has threads, sockets and secrets. So [`Launcher::start`] runs a process of its
//! own, in which [`launcher_main`] takes requests over a pair of sockets and does the work. That process is
//! small, has one thread and no network, and can be restarted: sandboxes live on and are found again.
//!
//! [`inside`] is for the program that runs as a sandbox's first process.

mod btrfs;
mod catalog;
mod census;
mod cgroup;
mod client;
mod error;
mod ids;
pub mod inside;
mod join;
mod keeper;
mod kernel;
mod layers;
mod loops;
mod maps;
mod measure;
mod owner;
mod place;
mod pool;
mod processors;
mod prompt;
mod record;
mod remove;
mod report;
mod seccomp;
mod service;
mod setup;
mod start;
mod template;
mod unlinked;
mod unpack;
mod view;
mod volumes;
mod wire;
mod writers;

pub use catalog::{Image, Snapshot};
pub use client::{Ended, Launcher, LauncherOptions, Running, Stopper};
pub use error::{Errno, Error, Kept, Step};
pub use keeper::{Keeper, keeper_main};
pub use owner::Owner;
pub use place::{AGENT, Bound, Clock, DiskUse, Enforced, Exit, Ids, Limits, Place, Program, Range, Spec, Usage};
pub use prompt::{Heirs, prompt, prompt_child};
pub use report::{Ability, DiskBound, GroupVersion, Missing, Report, Tier};
pub use service::launcher_main;
pub use setup::programs::Shown;
