//! The judge: asks a model about agents, a bounded number of them at once.

use crate::app::guardian::JudgeOutcome;
use crate::gateway::ModelQuestion;
use crate::state::App;
use atoll_core::guardian::judge::JUDGE_INSTRUCTIONS;
use atoll_core::id::{ProjectId, SandboxId};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

pub(super) struct Judge {
    pub interval: Duration,
    model: String,
    slots: Arc<Semaphore>,
    sender: mpsc::UnboundedSender<Judgement>,
    receiver: mpsc::UnboundedReceiver<Judgement>,
}

pub(super) struct JudgeRequest {
    pub sandbox: SandboxId,
    pub project: ProjectId,
    pub question: String,
    /// The events that the question shows.
    pub seqs: Vec<i64>,
}

pub(super) struct Judgement {
    pub sandbox: SandboxId,
    pub seqs: Vec<i64>,
    pub outcome: JudgeOutcome,
}

impl Judge {
    /// The configured judge, if there is one.
    pub fn from_config(app: &App) -> Option<Self> {
        let config = &app.config.guardian;
        let model = config.judge_model.clone()?;
        // Each request in flight holds a slot, so there are only as many results.
        let (sender, receiver) = mpsc::unbounded_channel();
        let slots = Arc::new(Semaphore::new(config.judge_concurrency));
        Some(Self { interval: config.judge_interval, model, slots, sender, receiver })
    }

    pub fn try_acquire(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.slots).try_acquire_owned().ok()
    }

    pub fn ask(&self, app: &Arc<App>, request: JudgeRequest, permit: OwnedSemaphorePermit) {
        let (app, model, sender) = (Arc::clone(app), self.model.clone(), self.sender.clone());
        tokio::spawn(async move {
            let JudgeRequest { sandbox, project, question, seqs } = request;
            let question = ModelQuestion { model: &model, instructions: JUDGE_INSTRUCTIONS, text: &question };
            let answer = app.gateway.ask_model(&app, project, question).await;
            drop(permit);
            let outcome = JudgeOutcome::from_answer(model, answer);
            drop(sender.send(Judgement { sandbox, seqs, outcome }));
        });
    }

    pub async fn next(&mut self) -> Judgement {
        match self.receiver.recv().await {
            Some(judgement) => judgement,
            // The judge holds a sender itself.
            None => std::future::pending().await,
        }
    }
}
