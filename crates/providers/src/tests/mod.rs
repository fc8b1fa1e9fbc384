mod agent;
mod ends;
mod faults;
mod liar;
mod recorder;

use crate::conformance;
use crate::{External, Fake, FakeOptions};
use atoll_core::id::{ProjectId, SandboxId, SessionId};
use atoll_core::provider::{CreateSpec, Identity, Provider, ProviderId};
use atoll_core::sandbox::Settings;
use recorder::Recorder;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

async fn keeps_every_promise(provider: &dyn Provider) {
    let verdicts = conformance::check(provider, &Settings::default()).await;
    let broken: Vec<_> = verdicts.iter().filter(|(_, verdict)| verdict.is_err()).collect();
    assert!(broken.is_empty(), "{broken:#?}");
    assert!(verdicts.len() > 15);
}

#[tokio::test(start_paused = true)]
async fn external_keeps_every_promise() {
    keeps_every_promise(&External::new()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn fake_keeps_every_promise() {
    let link = Recorder::new();
    keeps_every_promise(&Fake::new(FakeOptions::default(), link.clone())).await;
    link.assert_orderly();
}

fn spec() -> CreateSpec {
    let identity = Identity {
        deployment: "test".into(),
        sandbox: SandboxId::new(),
        session: SessionId::new(),
        project: ProjectId::new(),
    };
    CreateSpec { identity, labels: BTreeMap::new(), settings: Settings::default(), source: None, programs: Vec::new() }
}

/// One fake sandbox and the server that its worker talks to.
struct Scene {
    fake: Fake,
    link: Arc<Recorder>,
    sandbox: SandboxId,
    id: ProviderId,
}

impl Scene {
    async fn new(prompt: &str) -> Self {
        Self::with(prompt, FakeOptions::default()).await
    }

    async fn with(prompt: &str, options: FakeOptions) -> Self {
        let link = Recorder::new();
        let (fake, spec) = (Fake::new(options, link.clone()), spec());
        let sandbox = spec.identity.sandbox;
        link.prompt(sandbox, prompt);
        let id = fake.create(&spec, "key").await.unwrap().id;
        Self { fake, link, sandbox, id }
    }

    /// Runs until an event of this type is stored, at most ten simulated minutes.
    async fn until(&self, event_type: &str) {
        self.until_count(event_type, 1).await;
    }

    async fn until_count(&self, event_type: &str, count: usize) {
        let enough = || self.link.types(self.sandbox).iter().filter(|seen| *seen == event_type).count() >= count;
        let stored = async {
            while !enough() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(600), stored).await;
        assert!(waited.is_ok(), "no {event_type} in {:#?}", self.link.events(self.sandbox));
    }

    fn types(&self) -> Vec<String> {
        self.link.types(self.sandbox)
    }

    /// The data of all events of a type.
    fn data(&self, event_type: &str) -> Vec<serde_json::Value> {
        let events = self.link.events(self.sandbox).into_iter();
        events.filter(|event| event["type"] == event_type).map(|event| event["data"].clone()).collect()
    }
}
