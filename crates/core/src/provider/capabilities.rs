//! What a provider can do, in enums rather than booleans: there is more than yes and no.

use crate::words;
use serde::Serialize;

words! { "pause ability" PauseAbility { Memory = "memory", Disk = "disk", None = "none" } }
words! { "fork ability" ForkAbility { Live = "live", Idle = "idle", None = "none" } }
words! { "snapshot ability" SnapshotAbility { Live = "live", Stops = "stops", None = "none" } }
words! {
    "egress control"
    Egress {
        /// Nothing leaves.
        None = "none",
        AllOrNothing = "all_or_nothing",
        Domains = "domains",
        /// Not Atoll's to decide: the worker runs where somebody else started it.
        Unmanaged = "unmanaged",
    }
}
words! { "output ability" OutputAbility { Split = "split", Merged = "merged", None = "none" } }
words! { "re-attach ability" AttachAbility { FromCursor = "from_cursor", WholeLog = "whole_log", None = "none" } }
words! { "file ability" FileAbility { Root = "root", Workspace = "workspace", None = "none" } }
words! { "preview ability" PreviewAbility { AnyPort = "any_port", Declared = "declared", None = "none" } }
words! {
    /// What keeps an agent from changing protected paths.
    "protected paths"
    ProtectedPaths {
        /// They are read-only inside, and results that change them are refused.
        Mounts = "mounts",
        /// Results that change them are refused; inside they can be changed.
        Results = "results",
        None = "none",
    }
}
words! { "listing" Listing { Exact = "exact", Eventual = "eventual", Local = "local" } }
words! { "isolation" Isolation { Namespace = "namespace", MicroVm = "micro_vm", Remote = "remote", Unmanaged = "unmanaged", Simulated = "simulated" } }

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Capabilities {
    pub isolation: Isolation,
    pub listing: Listing,
    pub pause: PauseAbility,
    pub fork: ForkAbility,
    pub snapshot: SnapshotAbility,
    pub egress: Egress,
    pub output: OutputAbility,
    pub attach: AttachAbility,
    pub files: FileAbility,
    pub preview: PreviewAbility,
    pub protected: ProtectedPaths,
    /// `None` where the provider sets no bound of its own.
    pub max_memory_gb: Option<f64>,
    pub max_cpu: Option<f64>,
    pub max_disk_gb: Option<f64>,
}
