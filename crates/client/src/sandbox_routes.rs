//! Routes of sandboxes, their messages, approvals and results.
use crate::error::Result;
use crate::http::{Client, EMPTY_BODY, NO_QUERY};
use atoll_api::{
    AnswerApproval, Approval, ApprovalListQuery, ChangeLimits, ChangeMessage, Diff, DiffQuery, EventsQuery,
    ExportedResults, ForkSandbox, LogQuery, Message, MessageListQuery, NetworkStatus, NewMessage, NewSandbox,
    NewSnapshot, Page, PageQuery, RemoveSandboxQuery, ResourceQuery, ResourceSeries, Sandbox, SandboxLimits,
    SandboxListQuery, SandboxPreview, Snapshot, StopSandbox, Trajectory, TrajectoryQuery, TranscriptForm,
    TranscriptQuery, WorkerStart,
};
use atoll_core::event::Event;
use atoll_core::id::{MessageId, SandboxId};
use atoll_core::sandbox::Network;
use bytes::Bytes;
use reqwest::{Method, Response};
use serde_json::Value;

impl Client {
    /// Creates a sandbox: `POST /sandboxes`. The response can take long: the server may have to fetch the repository first.
    pub async fn create_sandbox(&self, request: &NewSandbox) -> Result<Sandbox> {
        self.post_long("/sandboxes", request).await
    }

    /// Resolves the agent and the settings of a sandbox, without creating it: `POST /sandboxes/preview`.
    pub async fn preview_sandbox(&self, request: &NewSandbox) -> Result<SandboxPreview> {
        self.post_long("/sandboxes/preview", request).await
    }

    /// Lists sandboxes, newest first: `GET /sandboxes`.
    pub async fn list_sandboxes(&self, query: &SandboxListQuery) -> Result<Page<Sandbox>> {
        self.get("/sandboxes", query).await
    }

    /// Returns one sandbox: `GET /sandboxes/{sandbox}`.
    pub async fn get_sandbox(&self, sandbox: SandboxId) -> Result<Sandbox> {
        self.get(&format!("/sandboxes/{sandbox}"), NO_QUERY).await
    }

    /// Ends a sandbox: `POST /sandboxes/{sandbox}/stop`.
    pub async fn stop_sandbox(&self, sandbox: SandboxId, request: &StopSandbox) -> Result<Sandbox> {
        self.post(&format!("/sandboxes/{sandbox}/stop"), request).await
    }

    /// Removes a sandbox at its provider: `DELETE /sandboxes/{sandbox}`.
    pub async fn remove_sandbox(&self, sandbox: SandboxId, query: &RemoveSandboxQuery) -> Result<Sandbox> {
        self.delete(&format!("/sandboxes/{sandbox}"), query).await
    }

    /// Pauses a sandbox: `POST /sandboxes/{sandbox}/pause`.
    pub async fn pause_sandbox(&self, sandbox: SandboxId) -> Result<Sandbox> {
        self.post(&format!("/sandboxes/{sandbox}/pause"), &EMPTY_BODY).await
    }

    /// Resumes a paused sandbox: `POST /sandboxes/{sandbox}/resume`.
    pub async fn resume_sandbox(&self, sandbox: SandboxId) -> Result<Sandbox> {
        self.post(&format!("/sandboxes/{sandbox}/resume"), &EMPTY_BODY).await
    }

    /// Creates a sandbox from the current files of another one: `POST /sandboxes/{sandbox}/fork`.
    pub async fn fork_sandbox(&self, sandbox: SandboxId, request: &ForkSandbox) -> Result<Sandbox> {
        self.post(&format!("/sandboxes/{sandbox}/fork"), request).await
    }

    /// Saves a sandbox's files as a snapshot: `POST /sandboxes/{sandbox}/snapshot`.
    pub async fn create_snapshot(&self, sandbox: SandboxId, request: &NewSnapshot) -> Result<Snapshot> {
        self.post(&format!("/sandboxes/{sandbox}/snapshot"), request).await
    }

    /// Replaces the token of a sandbox's worker: `POST /sandboxes/{sandbox}/worker-token`.
    pub async fn create_worker_token(&self, sandbox: SandboxId) -> Result<WorkerStart> {
        self.post(&format!("/sandboxes/{sandbox}/worker-token"), &EMPTY_BODY).await
    }

    /// Exports a sandbox's results and returns them: `POST /sandboxes/{sandbox}/results`.
    pub async fn export_results(&self, sandbox: SandboxId) -> Result<ExportedResults> {
        self.post_long(&format!("/sandboxes/{sandbox}/results"), &EMPTY_BODY).await
    }

    /// Lists the files that the work changed: `GET /sandboxes/{sandbox}/diff`.
    pub async fn get_diff(&self, sandbox: SandboxId, query: &DiffQuery) -> Result<Diff> {
        self.get(&format!("/sandboxes/{sandbox}/diff"), query).await
    }

    /// Returns the resource usage of a sandbox: `GET /sandboxes/{sandbox}/resources`.
    pub async fn get_resources(&self, sandbox: SandboxId, query: &ResourceQuery) -> Result<ResourceSeries> {
        self.get(&format!("/sandboxes/{sandbox}/resources"), query).await
    }

    /// Returns the limits of a sandbox's agent: `GET /sandboxes/{sandbox}/limits`.
    pub async fn get_limits(&self, sandbox: SandboxId) -> Result<SandboxLimits> {
        self.get(&format!("/sandboxes/{sandbox}/limits"), NO_QUERY).await
    }

    /// Changes the limits of a sandbox's agent: `PATCH /sandboxes/{sandbox}/limits`.
    pub async fn change_limits(&self, sandbox: SandboxId, request: &ChangeLimits) -> Result<SandboxLimits> {
        self.patch(&format!("/sandboxes/{sandbox}/limits"), request).await
    }

    /// Returns the network policy and the traffic of a sandbox: `GET /sandboxes/{sandbox}/network`.
    pub async fn get_network(&self, sandbox: SandboxId) -> Result<NetworkStatus> {
        self.get(&format!("/sandboxes/{sandbox}/network"), NO_QUERY).await
    }

    /// Changes the network policy of a sandbox: `PUT /sandboxes/{sandbox}/network`.
    pub async fn change_network(&self, sandbox: SandboxId, request: &Network) -> Result<NetworkStatus> {
        self.put(&format!("/sandboxes/{sandbox}/network"), request).await
    }

    /// Lists events of a sandbox: `GET /sandboxes/{sandbox}/events`.
    pub async fn list_events(&self, sandbox: SandboxId, query: &EventsQuery) -> Result<Page<Event>> {
        self.get(&format!("/sandboxes/{sandbox}/events"), query).await
    }

    /// Returns a page of a sandbox's trajectory: `GET /sandboxes/{sandbox}/trajectory`.
    pub async fn get_trajectory(&self, sandbox: SandboxId, query: &TrajectoryQuery) -> Result<Trajectory> {
        self.get(&format!("/sandboxes/{sandbox}/trajectory"), query).await
    }

    /// Returns the transcript in Atoll's own form: `GET /sandboxes/{sandbox}/transcript`.
    pub async fn get_transcript(&self, sandbox: SandboxId) -> Result<Value> {
        self.get(&format!("/sandboxes/{sandbox}/transcript"), NO_QUERY).await
    }

    /// Lists the approvals of a sandbox: `GET /sandboxes/{sandbox}/approvals`.
    pub async fn list_approvals(&self, sandbox: SandboxId, query: &PageQuery) -> Result<Page<Approval>> {
        self.get(&format!("/sandboxes/{sandbox}/approvals"), query).await
    }

    /// Lists pending approvals of all sandboxes, oldest first, or those with one id: `GET /approvals`.
    pub async fn list_open_approvals(&self, query: &ApprovalListQuery) -> Result<Page<Approval>> {
        self.get("/approvals", query).await
    }

    /// Decides an approval: `POST /sandboxes/{sandbox}/approvals/{approval}`.
    pub async fn answer_approval(
        &self,
        sandbox: SandboxId,
        approval: &str,
        request: &AnswerApproval,
    ) -> Result<Approval> {
        self.post(&format!("/sandboxes/{sandbox}/approvals/{approval}"), request).await
    }

    /// Sends a message to a sandbox's agent: `POST /sandboxes/{sandbox}/messages`.
    pub async fn send_message(&self, sandbox: SandboxId, request: &NewMessage) -> Result<Message> {
        self.post(&format!("/sandboxes/{sandbox}/messages"), request).await
    }

    /// Lists the messages of a sandbox's session: `GET /sandboxes/{sandbox}/messages`.
    pub async fn list_messages(&self, sandbox: SandboxId, query: &MessageListQuery) -> Result<Page<Message>> {
        self.get(&format!("/sandboxes/{sandbox}/messages"), query).await
    }

    /// Changes a queued message: `PATCH /sandboxes/{sandbox}/messages/{message}`.
    pub async fn change_message(
        &self,
        sandbox: SandboxId,
        message: MessageId,
        request: &ChangeMessage,
    ) -> Result<Message> {
        self.patch(&format!("/sandboxes/{sandbox}/messages/{message}"), request).await
    }

    /// Cancels a queued message: `DELETE /sandboxes/{sandbox}/messages/{message}`.
    pub async fn cancel_message(&self, sandbox: SandboxId, message: MessageId) -> Result<Message> {
        self.delete(&format!("/sandboxes/{sandbox}/messages/{message}"), NO_QUERY).await
    }

    /// Returns the work as a patch: `GET /sandboxes/{sandbox}/diff`.
    pub async fn get_patch(&self, sandbox: SandboxId, query: &DiffQuery) -> Result<Bytes> {
        self.get_as("text/x-diff", &format!("/sandboxes/{sandbox}/diff"), query).await
    }

    /// Returns the event log as text for people, as a stream: `GET /sandboxes/{sandbox}/logs`.
    pub async fn download_log(&self, sandbox: SandboxId, query: &LogQuery) -> Result<Response> {
        self.send(self.request(Method::GET, &format!("/sandboxes/{sandbox}/logs"), query)).await
    }

    /// Returns the agent's own transcript as a stream: `GET /sandboxes/{sandbox}/transcript?form=native`.
    pub async fn download_native_transcript(&self, sandbox: SandboxId) -> Result<Response> {
        let query = TranscriptQuery { form: TranscriptForm::Native };
        self.send(self.request(Method::GET, &format!("/sandboxes/{sandbox}/transcript"), &query)).await
    }
}
