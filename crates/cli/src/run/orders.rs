//! What is asked of the server while one watches, in order and beside the watching.

use crate::client::Client;
use crate::failure::{Failure, Result};
use atoll_core::id::SandboxId;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    Say(String),
    /// A word about what the agent waits for, as it was typed.
    Answer {
        approval_id: String,
        word: Value,
        typed: String,
    },
    Interrupt,
    /// End it, with its results or without.
    Stop {
        take: bool,
    },
    /// Take what a failed one has left.
    Results,
}

/// An order and what became of it.
pub type Answer = (Order, Result<Value>);

pub struct Orders {
    sender: mpsc::UnboundedSender<Order>,
    answers: mpsc::UnboundedReceiver<Answer>,
    task: JoinHandle<()>,
}

impl Orders {
    pub fn start(client: Arc<Client>, sandbox: SandboxId) -> Self {
        let (sender, mut orders) = mpsc::unbounded_channel();
        let (answer, answers) = mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            while let Some(order) = orders.recv().await {
                let done = carry_out(&client, sandbox, &order).await;
                if answer.send((order, done)).is_err() {
                    return;
                }
            }
        });
        Self { sender, answers, task }
    }

    pub fn give(&self, order: Order) {
        // The task lives as long as this does.
        drop(self.sender.send(order));
    }

    /// The next answer; never one where nothing was ordered.
    pub async fn answer(&mut self) -> Answer {
        match self.answers.recv().await {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Orders {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn carry_out(client: &Client, sandbox: SandboxId, order: &Order) -> Result<Value> {
    let path = |end: &str| format!("/sandboxes/{sandbox}/{end}");
    match order {
        Order::Say(text) => {
            let body = json!({ "content": text, "type": "user_message", "delivery": "steer" });
            client.post(&path("messages"), &body).await
        }
        Order::Answer { approval_id, word, .. } => client.post(&path(&format!("approvals/{approval_id}")), word).await,
        Order::Interrupt => {
            let body = json!({ "content": "stop", "type": "interrupt" });
            client.post(&path("messages"), &body).await
        }
        Order::Stop { take } => {
            let results = if *take { "take" } else { "discard" };
            client.post(&path("stop"), &json!({ "results": results })).await
        }
        Order::Results => client.post_long(&path("results"), &json!({})).await,
    }
}

/// What is said of an order that the server refused.
pub fn refused(order: &Order, failure: &Failure) -> String {
    let what = match order {
        Order::Say(_) => "not sent",
        Order::Answer { .. } => "not answered",
        Order::Interrupt => "not interrupted",
        Order::Stop { .. } => "not stopped",
        Order::Results => "the work until then could not be taken out",
    };
    match failure {
        Failure::Told(told) => format!("{what}: {}", told.detail),
        Failure::PipeClosed | Failure::Silent(_) => what.to_owned(),
    }
}
