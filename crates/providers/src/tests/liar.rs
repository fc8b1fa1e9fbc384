//! A provider that breaks its word, which proves that the suite notices.

use super::recorder::Recorder;
use crate::conformance;
use crate::{Fake, FakeOptions};
use atoll_core::BoxFuture;
use atoll_core::provider::capabilities::{OutputAbility, PauseAbility, PreviewAbility};
use atoll_core::provider::{
    Answer, Capabilities, CreateSpec, Error, ExecRef, ExecSpec, ExecStream, Found, Lookup, Page, Provider, ProviderId,
};
use atoll_core::sandbox::{ProviderKind, Settings};
use std::collections::BTreeMap;
use uuid::Uuid;

/// Ignores keys and half of the labels, calls errors gone, forgets where a reader was, and claims
/// more than it can.
struct Liar(Fake);

impl Provider for Liar {
    fn kind(&self) -> ProviderKind {
        self.0.kind()
    }

    fn capabilities(&self) -> Capabilities {
        let output = OutputAbility::Merged;
        let (pause, preview) = (PauseAbility::Disk, PreviewAbility::None);
        Capabilities { pause, output, preview, ..self.0.capabilities() }
    }

    fn create<'a>(&'a self, spec: &'a CreateSpec, _key: &'a str) -> Answer<'a, Found> {
        Box::pin(async move { self.0.create(spec, &Uuid::now_v7().to_string()).await })
    }

    fn get<'a>(&'a self, _id: &'a ProviderId) -> BoxFuture<'a, Lookup> {
        Box::pin(async { Lookup::Gone })
    }

    fn list<'a>(&'a self, _cursor: Option<&'a str>) -> Answer<'a, Page> {
        Box::pin(async { Ok(Page::default()) })
    }

    fn find<'a>(&'a self, labels: &'a BTreeMap<String, String>) -> Answer<'a, Vec<Found>> {
        self.0.find(labels)
    }

    fn destroy<'a>(&'a self, id: &'a ProviderId) -> Answer<'a, ()> {
        Box::pin(async move {
            match self.0.get(id).await {
                Lookup::Found(_) => self.0.destroy(id).await,
                Lookup::Gone | Lookup::Unreachable { .. } => Err(Error::Gone),
            }
        })
    }

    fn exec<'a>(&'a self, id: &'a ProviderId, spec: &'a ExecSpec) -> Answer<'a, ExecRef> {
        self.0.exec(id, spec)
    }

    fn attach<'a>(&'a self, exec: &'a ExecRef, _cursor: u64) -> Answer<'a, ExecStream> {
        self.0.attach(exec, 0)
    }
}

#[tokio::test(start_paused = true)]
async fn the_suite_notices_broken_promises() {
    let liar = Liar(Fake::new(FakeOptions::default(), Recorder::new()));
    let verdicts = conformance::check(&liar, &Settings::default()).await;
    let kept: Vec<_> = verdicts.iter().filter(|(_, verdict)| verdict.is_ok()).map(|(promise, _)| *promise).collect();
    // It does run commands, and says rightly that it shows no previews and moves no trees.
    let expected = [
        "what it can't do is unsupported, before any side effect",
        "exit codes are the command's own",
        "a command that takes too long is timed out",
        "a tree comes out as it went in",
    ];
    assert_eq!(kept, expected, "{verdicts:#?}");
}
