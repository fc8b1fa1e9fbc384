//! The types of Atoll's HTTP API: requests, responses, queries, problem documents and the event catalogue.
//!
//! The server, the client, the command line and the tests share these types, so that a change of the API is a change
//! of one type. The crate contains no I/O and no rules: the server checks requests, and `atoll-client` sends them.
//!
//! Requests reject unknown fields; responses tolerate them, because a newer server may send more.

mod admin;
mod agents;
mod approvals;
mod branch_workflows;
mod caches;
mod event_queries;
pub mod events;
mod exec;
mod files;
mod forges;
mod guardian;
mod health;
mod limits;
mod live;
mod messages;
mod monitoring;
mod network;
mod page;
mod previews;
pub mod problem;
mod projects;
mod providers;
mod resources;
mod results;
mod sandboxes;
mod secrets;
mod sessions;
mod sign_ins;
mod snapshots;
mod tasks;
mod tickets;
mod tokens;
mod trajectory;
mod users;
mod webhooks;
mod worktrees;

pub use admin::{GcReport, GcRequest};
pub use agents::{Agent, AgentList};
pub use approvals::{AnswerApproval, Approval, ApprovalListQuery};
pub use branch_workflows::{
    BranchWorkflow, BranchWorkflowProgress, BranchWorkflowQuery, FinishBranchWorkflow, MergeBranchWorkflow,
    PullRequestFacts, PullRequestListQuery, PullRequestView, StartBranchWorkflow,
};
pub use caches::{Cache, CacheList, PruneCaches, PrunedCaches, RemoveCacheQuery, RemovedCache};
pub use event_queries::{EventOrder, EventsQuery, FollowQuery};
pub use exec::{
    AttachQuery, Exec, ExecInput, ExecInputQuery, ExecInputReceipt, ExecList, ExecOutput, ExecReceipt, NewExec,
    NewSignal, TerminalQuery, TerminalSize,
};
pub use files::{
    BlobReceipt, DeleteFileQuery, FileListQuery, FilePathQuery, MoveFile, NewDirectory, SandboxFile, WriteFileQuery,
};
pub use forges::{Forge, ForgeList, ForgeLogin, ForgeLoginProgress, ForgeLoginState, StartedForgeLogin};
pub use guardian::{
    DetectorStatus, GuardianReplay, GuardianStatus, Intervention, InterventionListQuery, JudgeStatus, ReplayGuardian,
    ReplayStep,
};
pub use health::{Health, StoreHealth};
pub use limits::{ChangeLimits, SandboxLimits};
pub use live::{
    EventsFrame, EventsRequest, FollowedSandboxes, TerminalFrame, TerminalRequest, TicketQuery, TruncatedEvent,
};
pub use messages::{ChangeMessage, Message, MessageListQuery, NewMessage, SentToSession};
pub use monitoring::{AgentAnomaly, MonitoredAgent, MonitoringFinding, MonitoringStatus};
pub use network::{HostTraffic, NetworkStatus, TrafficTotal};
pub use page::{Page, PageQuery};
pub use previews::{NewPreview, Port, PortList, Preview, PreviewList};
pub use problem::{ErrorCode, ProblemDocument};
pub use projects::{Budget, ChangeProject, Member, NewBudget, NewProject, Project, ProjectDefaults, SetMember};
pub use providers::{Circuit, Provider, ProviderList};
pub use resources::{ResourceQuery, ResourceSample, ResourceSeries};
pub use results::{Diff, DiffFile, DiffQuery, ExportedResult, ExportedResults};
pub use sandboxes::{
    ContinuousProgress, Cost, ForkSandbox, ModelUsage, NewSandbox, RemoveSandboxQuery, Sandbox, SandboxListQuery,
    SandboxPreview, StopSandbox, WorkerStart,
};
pub use secrets::{KeyRotation, NewSecret, RemoveSecretQuery, Secret, SecretListQuery};
pub use sessions::{ChangeSession, ForkSession, ResumeSession, Session, SessionListQuery};
pub use sign_ins::{Me, NewSignIn, SignIn, SignInLink, SignInList, StartedSignIn};
pub use snapshots::{
    ImageList, ImportImageQuery, NewSnapshot, RemoveSnapshotQuery, RemovedImage, RemovedSnapshot, Snapshot,
    SnapshotList,
};
pub use tasks::{
    BulkTaskResult, BulkTaskResults, BulkTasks, ChangeTask, NewTask, Task, TaskAttempt, TaskListQuery, TaskReport,
    ValidationVerdict,
};
pub use tickets::{ChangeTicket, NewTicket, Ticket, TicketListQuery};
pub use tokens::{NewToken, Token, WebSocketTicket};
pub use trajectory::{
    Direction, HeartbeatSummary, LogQuery, Trajectory, TrajectoryQuery, TranscriptForm, TranscriptQuery,
};
pub use users::{ChangeUser, NewUser, User};
pub use webhooks::{WebhookReceipt, WebhookResult};
pub use worktrees::{SyncedWorktree, WorktreeQuery};

/// Reads a field that distinguishes absent (`None`) from `null` (`Some(None)`).
fn deserialize_present<'de, D, T>(deserializer: D) -> Result<Option<Option<T>>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: serde::Deserialize<'de>,
{
    serde::Deserialize::deserialize(deserializer).map(Some)
}

/// Omits `false` from requests: it is the default.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_false(value: &bool) -> bool {
    !*value
}
