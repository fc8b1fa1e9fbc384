//! Routes of tasks.

use crate::error::Result;
use crate::http::{Client, EMPTY_BODY, NO_QUERY};
use atoll_api::{
    BulkTaskResults, BulkTasks, ChangeTask, NewTask, Page, Task, TaskListQuery, TaskReport, ValidationVerdict,
};
use atoll_core::id::{SandboxId, TaskId};

impl Client {
    /// Creates a task: `POST /tasks`.
    pub async fn create_task(&self, request: &NewTask) -> Result<Task> {
        self.post("/tasks", request).await
    }

    /// Lists tasks, newest first: `GET /tasks`.
    pub async fn list_tasks(&self, query: &TaskListQuery) -> Result<Page<Task>> {
        self.get("/tasks", query).await
    }

    /// Returns one task with its attempts: `GET /tasks/{task}`.
    pub async fn get_task(&self, task: TaskId) -> Result<Task> {
        self.get(&format!("/tasks/{task}"), NO_QUERY).await
    }

    /// Changes a task: `PATCH /tasks/{task}`.
    pub async fn change_task(&self, task: TaskId, request: &ChangeTask) -> Result<Task> {
        self.patch(&format!("/tasks/{task}"), request).await
    }

    /// Cancels a task: `POST /tasks/{task}/cancel`.
    pub async fn cancel_task(&self, task: TaskId) -> Result<Task> {
        self.post(&format!("/tasks/{task}/cancel"), &EMPTY_BODY).await
    }

    /// Starts a failed or cancelled task again: `POST /tasks/{task}/retry`.
    pub async fn retry_task(&self, task: TaskId) -> Result<Task> {
        self.post(&format!("/tasks/{task}/retry"), &EMPTY_BODY).await
    }

    /// Applies one action to many tasks: `POST /tasks/bulk`.
    pub async fn change_tasks(&self, request: &BulkTasks) -> Result<BulkTaskResults> {
        self.post("/tasks/bulk", request).await
    }

    /// Returns the task that a sandbox works on: `GET /sandboxes/{sandbox}/task`.
    pub async fn get_sandbox_task(&self, sandbox: SandboxId) -> Result<Task> {
        self.get(&format!("/sandboxes/{sandbox}/task"), NO_QUERY).await
    }

    /// Reports that the work on a sandbox's task is over: `POST /sandboxes/{sandbox}/task-complete`.
    pub async fn complete_task(&self, sandbox: SandboxId, report: &TaskReport) -> Result<Task> {
        self.post(&format!("/sandboxes/{sandbox}/task-complete"), report).await
    }

    /// Submits the verdict on a task's work: `POST /sandboxes/{sandbox}/validation-result`.
    pub async fn validate_task(&self, sandbox: SandboxId, verdict: &ValidationVerdict) -> Result<Task> {
        self.post(&format!("/sandboxes/{sandbox}/validation-result"), verdict).await
    }
}
