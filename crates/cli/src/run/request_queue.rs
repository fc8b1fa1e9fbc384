//! Sends requests of the run view to the server, in order, in a separate task.

use crate::connect::ConnectedClient;
use crate::failure::{Failure, Result};
use atoll_api::{AnswerApproval, ExportedResults, NewMessage, StopSandbox};
use atoll_core::id::SandboxId;
use atoll_core::message::{Delivery, MessageType};
use atoll_core::sandbox::ResultsAction;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

#[derive(Debug, Clone)]
pub enum QueuedRequest {
    SendMessage(String),
    /// A decision on a pending approval, and the text that the user typed.
    Decide {
        approval_id: String,
        answer: AnswerApproval,
        typed: String,
    },
    Interrupt,
    /// Stop the sandbox and export its results.
    Stop,
    /// Export the results of a failed sandbox.
    ExportResults,
}

/// A request and its result; an export returns the results.
pub type RequestResult = (QueuedRequest, Result<Option<ExportedResults>>);

pub struct RequestQueue {
    sender: mpsc::UnboundedSender<QueuedRequest>,
    results: mpsc::UnboundedReceiver<RequestResult>,
    task: JoinHandle<()>,
}

impl RequestQueue {
    pub fn start(client: ConnectedClient, sandbox: SandboxId) -> Self {
        let (sender, mut requests) = mpsc::unbounded_channel();
        let (result_sender, results) = mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            while let Some(request) = requests.recv().await {
                let done = send_request(&client, sandbox, &request).await;
                if result_sender.send((request, done)).is_err() {
                    return;
                }
            }
        });
        Self { sender, results, task }
    }

    pub fn enqueue(&self, request: QueuedRequest) {
        // The task outlives every request.
        drop(self.sender.send(request));
    }

    /// Waits for the next result; pending forever if there is none.
    pub async fn next_result(&mut self) -> RequestResult {
        match self.results.recv().await {
            Some(result) => result,
            None => std::future::pending().await,
        }
    }
}

impl Drop for RequestQueue {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn send_request(
    client: &ConnectedClient,
    sandbox: SandboxId,
    request: &QueuedRequest,
) -> Result<Option<ExportedResults>> {
    match request {
        QueuedRequest::SendMessage(text) => {
            client.send_message(sandbox, &NewMessage::new(text)).await?;
        }
        QueuedRequest::Decide { approval_id, answer, .. } => {
            client.answer_approval(sandbox, approval_id, answer).await?;
        }
        QueuedRequest::Interrupt => {
            let message_type = MessageType::Interrupt;
            let interrupt = NewMessage { content: "stop".to_owned(), message_type, delivery: Delivery::Steer };
            client.send_message(sandbox, &interrupt).await?;
        }
        QueuedRequest::Stop => {
            client.stop_sandbox(sandbox, &StopSandbox { results: ResultsAction::Take }).await?;
        }
        QueuedRequest::ExportResults => return Ok(Some(client.export_results(sandbox).await?)),
    }
    Ok(None)
}

/// Describes a request that failed.
pub fn describe_failure(request: &QueuedRequest, failure: &Failure) -> String {
    let what = match request {
        QueuedRequest::SendMessage(_) => "the message was not sent",
        QueuedRequest::Decide { .. } => "the answer was not sent",
        QueuedRequest::Interrupt => "the interrupt was not sent",
        QueuedRequest::Stop => "the sandbox was not stopped",
        QueuedRequest::ExportResults => "the export of the results failed",
    };
    match failure {
        Failure::Reported(report) => format!("{what}: {}", report.detail),
        Failure::PipeClosed | Failure::Silent(_) => what.to_owned(),
    }
}
