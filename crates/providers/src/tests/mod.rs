mod agent_tests;
mod broken_provider;
mod fault_tests;
mod lifecycle_tests;
mod recording_server;

use crate::conformance;
use crate::{External, Fake, FakeOptions};
use atoll_core::id::{ProjectId, SandboxId, SessionId};
use atoll_core::provider::{CreateSpec, Identity, Provider, ProviderId};
use atoll_core::sandbox::Settings;
use atoll_test_wait::{poll_until, try_poll_for};
use recording_server::RecordingServer;
use std::collections::BTreeMap;
use std::sync::Arc;

async fn assert_conformance(provider: &dyn Provider) {
    let verdicts = conformance::check_provider(provider, &Settings::default()).await;
    let broken: Vec<_> = verdicts.iter().filter(|(_, verdict)| verdict.is_err()).collect();
    assert!(broken.is_empty(), "{broken:#?}");
    assert!(verdicts.len() > 15);
}

#[tokio::test(start_paused = true)]
async fn external_passes_conformance() {
    assert_conformance(&External::new()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn fake_passes_conformance() {
    let link = RecordingServer::new();
    assert_conformance(&Fake::new(FakeOptions::default(), link.clone())).await;
    link.assert_no_violations();
}

fn create_spec() -> CreateSpec {
    let identity = Identity {
        deployment: "test".into(),
        sandbox: SandboxId::new(),
        session: SessionId::new(),
        project: ProjectId::new(),
    };
    CreateSpec {
        identity,
        labels: BTreeMap::new(),
        settings: Settings::default(),
        source: None,
        programs: Vec::new(),
        cache: None,
    }
}

/// One fake sandbox and its recording server.
struct Scenario {
    fake: Fake,
    link: Arc<RecordingServer>,
    sandbox: SandboxId,
    id: ProviderId,
}

impl Scenario {
    async fn new(prompt: &str) -> Self {
        Self::with_options(prompt, FakeOptions::default()).await
    }

    async fn with_options(prompt: &str, options: FakeOptions) -> Self {
        let link = RecordingServer::new();
        let (fake, spec) = (Fake::new(options, link.clone()), create_spec());
        let sandbox = spec.identity.sandbox;
        link.set_prompt(sandbox, prompt);
        let id = fake.create(&spec, "key").await.unwrap().id;
        Self { fake, link, sandbox, id }
    }

    /// Waits for an event of this type.
    async fn wait_for_event(&self, event_type: &str) {
        self.wait_for_events(event_type, 1).await;
    }

    async fn wait_for_events(&self, event_type: &str, count: usize) {
        let stored = try_poll_for(async || {
            let events = self.link.stored_events(self.sandbox);
            let matching = events.iter().filter(|event| event["type"] == event_type).count();
            if matching < count { Err(events) } else { Ok(()) }
        });
        stored.await.unwrap_or_else(|events| panic!("no {event_type} in {events:#?}"));
    }

    /// Waits for acknowledgements, which are sent apart from the events.
    async fn wait_for_acks(&self, count: usize) {
        let is_acknowledged = async || self.link.with_row(self.sandbox, |row| row.acks.len() == count);
        poll_until("the acknowledgements", is_acknowledged).await;
    }

    fn event_types(&self) -> Vec<String> {
        self.link.event_types(self.sandbox)
    }

    /// The data of all events of a type.
    fn event_data(&self, event_type: &str) -> Vec<serde_json::Value> {
        let events = self.link.stored_events(self.sandbox).into_iter();
        events.filter(|event| event["type"] == event_type).map(|event| event["data"].clone()).collect()
    }
}
