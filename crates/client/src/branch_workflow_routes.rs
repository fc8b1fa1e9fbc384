//! Routes of branch workflows and pull requests.

use crate::error::Result;
use crate::http::{Client, NO_QUERY};
use atoll_api::{
    BranchWorkflow, BranchWorkflowQuery, FinishBranchWorkflow, MergeBranchWorkflow, Page, PullRequestListQuery,
    PullRequestView, StartBranchWorkflow,
};
use atoll_core::id::SessionId;

impl Client {
    /// Creates the branch of a ticket: `POST /branch-workflow/start`.
    pub async fn start_branch_workflow(&self, request: &StartBranchWorkflow) -> Result<BranchWorkflow> {
        self.post("/branch-workflow/start", request).await
    }

    /// Pushes a branch and opens a pull request: `POST /branch-workflow/finish`.
    pub async fn finish_branch_workflow(&self, request: &FinishBranchWorkflow) -> Result<BranchWorkflow> {
        self.post("/branch-workflow/finish", request).await
    }

    /// Merges a pull request when its checks and reviews allow it: `POST /branch-workflow/merge`.
    pub async fn merge_branch_workflow(&self, request: &MergeBranchWorkflow) -> Result<BranchWorkflow> {
        self.post("/branch-workflow/merge", request).await
    }

    /// Returns the branch workflow of a ticket or a session: `GET /branch-workflow/status`.
    pub async fn get_branch_workflow(&self, query: &BranchWorkflowQuery) -> Result<BranchWorkflow> {
        self.get("/branch-workflow/status", query).await
    }

    /// Lists pull requests, newest session first: `GET /pull-requests`.
    pub async fn list_pull_requests(&self, query: &PullRequestListQuery) -> Result<Page<PullRequestView>> {
        self.get("/pull-requests", query).await
    }

    /// Returns the pull request of a session: `GET /pull-requests/{session}`.
    pub async fn get_pull_request(&self, session: SessionId) -> Result<PullRequestView> {
        self.get(&format!("/pull-requests/{session}"), NO_QUERY).await
    }
}
