//! Creates Linux sandboxes with namespaces, an allow-list root, cgroups, seccomp and Landlock.
//!
//! A server cannot create them itself: it has threads, sockets and secrets. So [`Launcher::start`] runs a separate
//! process, in which [`launcher_main`] serves requests over a socket pair. The launcher is small, has one thread and no
//! network, and can be restarted: sandboxes keep running and the next launcher adopts them.
//!
//! [`init_process`] is for the program that runs as a sandbox's init process.

mod btrfs;
mod catalog;
mod cgroup;
mod client;
mod cpu_placement;
mod disk_pool;
mod disk_usage;
mod error;
mod etc_template;
mod file_writers;
mod host_report;
mod host_view;
mod id_maps;
mod id_ranges;
pub mod init_process;
mod kernel;
mod launcher_spawner;
mod layers;
mod live_sandbox;
mod loop_devices;
mod overlay_mounter;
mod overlay_xattrs;
mod own_program;
mod process_scan;
mod process_start;
mod record;
mod sandbox;
mod scheduling;
mod seccomp;
mod server_user;
mod service;
mod setup;
mod tree_removal;
mod unlinked_files;
mod unpack;
mod visible_programs;
mod volumes;
mod wire;

pub use catalog::{Image, Snapshot};
pub use client::{KillHandle, Launcher, LauncherOptions, RunningProgram, WorkerExit};
pub use error::{CatalogKind, Errno, Error, LaunchStep};
pub use host_report::{CgroupVersion, DiskQuota, HostReport, MissingFeature, Support, Tier};
pub use launcher_spawner::{LauncherSpawner, launcher_spawner_main};
pub use sandbox::{
    AGENT_UID, CacheStart, CpuTimes, DiskUsage, EnforcedLimits, Enforcement, Exit, IdMapKind, IdRange, ProgramSpec,
    ResourceLimits, SandboxInfo, SandboxSpec, SandboxUsage,
};
pub use scheduling::{SliceInheritance, request_short_slices, request_short_slices_for};
pub use server_user::ServerUser;
pub use service::launcher_main;
pub use setup::programs::HostProgram;
pub use visible_programs::{ProgramVisibility, VisiblePrograms};
