//! A provider that violates the contract, to prove that the suite detects it.

use super::recording_server::RecordingServer;
use crate::conformance;
use crate::{Fake, FakeOptions};
use atoll_core::BoxFuture;
use atoll_core::provider::capabilities::{OutputAbility, PauseAbility, PreviewAbility};
use atoll_core::provider::{
    Capabilities, CreateSpec, Error, ExecRef, ExecSpec, ExecStream, Provider, ProviderFuture, ProviderId, ProviderPage,
    ProviderSandbox, SandboxLookup,
};
use atoll_core::sandbox::{ProviderKind, Settings};
use std::collections::BTreeMap;
use uuid::Uuid;

/// Ignores keys and labels, reports errors as gone, ignores cursors and overstates its capabilities.
struct BrokenProvider(Fake);

impl Provider for BrokenProvider {
    fn kind(&self) -> ProviderKind {
        self.0.kind()
    }

    fn capabilities(&self) -> Capabilities {
        let output = OutputAbility::Merged;
        let (pause, preview) = (PauseAbility::Disk, PreviewAbility::None);
        Capabilities { pause, output, preview, ..self.0.capabilities() }
    }

    fn create<'a>(&'a self, spec: &'a CreateSpec, _key: &'a str) -> ProviderFuture<'a, ProviderSandbox> {
        Box::pin(async move { self.0.create(spec, &Uuid::now_v7().to_string()).await })
    }

    fn get<'a>(&'a self, _id: &'a ProviderId) -> BoxFuture<'a, SandboxLookup> {
        Box::pin(async { SandboxLookup::Gone })
    }

    fn list<'a>(&'a self, _cursor: Option<&'a str>) -> ProviderFuture<'a, ProviderPage> {
        Box::pin(async { Ok(ProviderPage::default()) })
    }

    fn find_by_labels<'a>(&'a self, labels: &'a BTreeMap<String, String>) -> ProviderFuture<'a, Vec<ProviderSandbox>> {
        self.0.find_by_labels(labels)
    }

    fn destroy<'a>(&'a self, id: &'a ProviderId) -> ProviderFuture<'a, ()> {
        Box::pin(async move {
            match self.0.get(id).await {
                SandboxLookup::Found(_) => self.0.destroy(id).await,
                SandboxLookup::Gone | SandboxLookup::Unreachable { .. } => Err(Error::Gone),
            }
        })
    }

    fn exec<'a>(&'a self, id: &'a ProviderId, spec: &'a ExecSpec) -> ProviderFuture<'a, ExecRef> {
        self.0.exec(id, spec)
    }

    fn attach<'a>(&'a self, exec: &'a ExecRef, _cursor: u64) -> ProviderFuture<'a, ExecStream> {
        self.0.attach(exec, 0)
    }
}

#[tokio::test(start_paused = true)]
async fn the_suite_detects_broken_promises() {
    let broken = BrokenProvider(Fake::new(FakeOptions::default(), RecordingServer::new()));
    let verdicts = conformance::check_provider(&broken, &Settings::default()).await;
    let passed: Vec<_> = verdicts.iter().filter(|(_, verdict)| verdict.is_ok()).map(|(promise, _)| *promise).collect();
    // It runs commands and correctly reports no previews and no tree transfers.
    let expected = [
        "unsupported calls have no side effect",
        "exit codes come from the command",
        "a command over its time limit is timed out",
        "a downloaded tree equals the upload",
    ];
    assert_eq!(passed, expected, "{verdicts:#?}");
}
