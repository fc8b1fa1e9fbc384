//! A provider that violates the contract, to prove that the suite detects it.

use super::recording_server::RecordingServer;
use crate::conformance;
use crate::{Fake, FakeOptions};
use atoll_core::provider::capabilities::{OutputAbility, PauseAbility};
use atoll_core::provider::{
    Capabilities, CreateSpec, Error, ExecRef, ExecSpec, ExecStream, ImplementProvider, ProviderId, ProviderPage,
    ProviderSandbox, SandboxLookup,
};
use atoll_core::sandbox::{ProviderKind, Settings};
use std::collections::BTreeMap;
use uuid::Uuid;

/// Ignores keys and labels, reports errors as gone, ignores cursors and overstates its capabilities.
struct BrokenProvider(Fake);

impl ImplementProvider for BrokenProvider {
    fn kind(&self) -> ProviderKind {
        self.0.kind()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { pause: PauseAbility::Disk, output: OutputAbility::Merged, ..self.0.capabilities() }
    }

    async fn create(&self, spec: &CreateSpec, _key: &str) -> Result<ProviderSandbox, Error> {
        self.0.create(spec, &Uuid::now_v7().to_string()).await
    }

    async fn get(&self, _id: &ProviderId) -> SandboxLookup {
        SandboxLookup::Gone
    }

    async fn list(&self, _cursor: Option<&str>) -> Result<ProviderPage, Error> {
        Ok(ProviderPage::default())
    }

    async fn find_by_labels(&self, labels: &BTreeMap<String, String>) -> Result<Vec<ProviderSandbox>, Error> {
        self.0.find_by_labels(labels).await
    }

    async fn destroy(&self, id: &ProviderId) -> Result<(), Error> {
        match self.0.get(id).await {
            SandboxLookup::Found(_) => self.0.destroy(id).await,
            SandboxLookup::Gone | SandboxLookup::Unreachable { .. } => Err(Error::Gone),
        }
    }

    async fn exec(&self, id: &ProviderId, spec: &ExecSpec) -> Result<ExecRef, Error> {
        self.0.exec(id, spec).await
    }

    async fn attach(&self, exec: &ExecRef, _cursor: u64) -> Result<ExecStream, Error> {
        self.0.attach(exec, 0).await
    }
}

#[tokio::test(start_paused = true)]
async fn the_suite_detects_broken_promises() {
    let broken = BrokenProvider(Fake::new(FakeOptions::default(), RecordingServer::new()));
    let verdicts = conformance::check_provider(&broken, &Settings::default()).await;
    let passed: Vec<_> = verdicts.iter().filter(|(_, verdict)| verdict.is_ok()).map(|(promise, _)| *promise).collect();
    // It runs commands and correctly reports no tree transfers and no set-up layers.
    let expected = [
        "unsupported calls have no side effect",
        "exit codes come from the command",
        "a command over its time limit is timed out",
        "a downloaded tree equals the upload",
        "a sandbox starts from a set-up layer, and changes it for no other",
    ];
    assert_eq!(passed, expected, "{verdicts:#?}");
}
