//! HTTP handlers, one file per resource. A handler parses the request, calls one function of `app` and responds.
//!
//! Handlers contain no rules and do not use the store. Their arguments include the access that they require.

pub mod agent_routes;
pub mod approval_routes;
pub mod blob_routes;
pub mod branch_workflow_routes;
pub mod cache_routes;
pub mod command_routes;
pub mod diff_routes;
pub mod event_routes;
pub mod file_routes;
pub mod forge_routes;
pub mod gc_routes;
pub mod guardian_routes;
pub mod health_routes;
pub mod image_routes;
pub mod limit_routes;
pub mod message_routes;
pub mod monitoring_routes;
pub mod network_routes;
pub mod preview_routes;
pub mod project_routes;
pub mod provider_routes;
pub mod sandbox_routes;
pub mod secret_routes;
pub mod session_routes;
pub mod sign_in_routes;
pub mod snapshot_routes;
pub mod task_routes;
pub mod ticket_routes;
pub mod token_routes;
pub mod user_routes;
pub mod webhook_routes;
pub mod worker_routes;
pub mod worktree_routes;
