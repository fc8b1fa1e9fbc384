//! Capabilities of a provider, as enums: most have more than two values.

use crate::string_enum;
use serde::{Deserialize, Serialize};

string_enum! { "pause ability" PauseAbility { Memory = "memory", Disk = "disk", None = "none" } }
string_enum! { "fork ability" ForkAbility { Live = "live", Idle = "idle", None = "none" } }
string_enum! { "snapshot ability" SnapshotAbility { Live = "live", Stops = "stops", None = "none" } }
string_enum! {
    "egress control"
    EgressAbility {
        /// No network access.
        None = "none",
        AllOrNothing = "all_or_nothing",
        Domains = "domains",
        /// Not managed by Atoll: the worker runs on a machine outside of its control.
        Unmanaged = "unmanaged",
    }
}
string_enum! { "output ability" OutputAbility { Split = "split", Merged = "merged", None = "none" } }
string_enum! { "re-attach ability" AttachAbility { FromCursor = "from_cursor", WholeLog = "whole_log", None = "none" } }
string_enum! { "file ability" FileAbility { Root = "root", Workspace = "workspace", None = "none" } }
string_enum! {
    /// Enforcement of protected paths.
    "protected paths"
    ProtectionAbility {
        /// The paths are read-only in the sandbox, and results that change them are rejected.
        Mounts = "mounts",
        /// Results that change the paths are rejected; in the sandbox they are writable.
        Results = "results",
        None = "none",
    }
}
string_enum! {
    /// The party that runs the worker of a sandbox.
    "worker host"
    WorkerHost {
        /// The server connects to a worker on its own machine, and so runs agents, git and the gateway there.
        Server = "server",
        /// A person starts the worker with a token.
        Person = "person",
        /// The provider runs the worker itself.
        Provider = "provider",
    }
}
string_enum! { "port ability" PortAbility { Connect = "connect", None = "none" } }
string_enum! { "image ability" ImageAbility { Import = "import", None = "none" } }
string_enum! {
    /// Storage of set-up layers.
    "cache ability"
    CacheAbility {
        /// A sealed layer, from which a sandbox starts in constant time.
        Layers = "layers",
        None = "none",
    }
}
string_enum! { "listing" Listing { Exact = "exact", Eventual = "eventual", Local = "local" } }
string_enum! { "isolation" Isolation { Namespace = "namespace", MicroVm = "micro_vm", Remote = "remote", Unmanaged = "unmanaged", Simulated = "simulated" } }

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Capabilities {
    pub isolation: Isolation,
    pub listing: Listing,
    pub pause: PauseAbility,
    pub fork: ForkAbility,
    pub snapshot: SnapshotAbility,
    pub egress: EgressAbility,
    pub output: OutputAbility,
    pub attach: AttachAbility,
    pub files: FileAbility,
    pub protected: ProtectionAbility,
    pub worker: WorkerHost,
    pub ports: PortAbility,
    pub images: ImageAbility,
    pub caches: CacheAbility,
    /// `None` if the provider sets no maximum.
    pub max_memory_gb: Option<f64>,
    pub max_cpu: Option<f64>,
    pub max_disk_gb: Option<f64>,
}

impl Capabilities {
    /// Supports no optional operation and sets no maximum. Every provider states its isolation and worker host itself.
    pub const NONE: Self = Self {
        isolation: Isolation::Unmanaged,
        listing: Listing::Local,
        pause: PauseAbility::None,
        fork: ForkAbility::None,
        snapshot: SnapshotAbility::None,
        egress: EgressAbility::None,
        output: OutputAbility::None,
        attach: AttachAbility::None,
        files: FileAbility::None,
        protected: ProtectionAbility::None,
        worker: WorkerHost::Person,
        ports: PortAbility::None,
        images: ImageAbility::None,
        caches: CacheAbility::None,
        max_memory_gb: None,
        max_cpu: None,
        max_disk_gb: None,
    };

    /// True if the server runs the agent: it dials the worker, delivers the repository and serves the model gateway.
    pub const fn runs_agents(&self) -> bool {
        matches!(self.worker, WorkerHost::Server)
    }
}
