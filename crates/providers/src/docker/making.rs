//! From a request to a container whose worker listens.

use super::engine::{Engine, Phase};
use super::facts::Root;
use super::place::{Place, Record};
use super::shape::{self, Common};
use super::{Docker, Work};
use crate::all_labels;
use crate::inside::git::arguments_in;
use crate::local::limits;
use atoll_core::provider::{CreateSpec, Error, Exit, Found, Provider, ProviderId, Source};
use atoll_core::sandbox::ProviderKind;
use bollard::query_parameters::{CreateContainerOptions, StartContainerOptions};
use std::fs::File;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// For a started container's worker to listen.
const LISTENING: Duration = Duration::from_secs(60);
const GLANCE: Duration = Duration::from_millis(5);
/// Glances at the socket between two looks at the container.
const GLANCES: usize = 40;

/// Waits until the worker in a container listens; an error when it has ended instead.
pub(super) async fn listens(engine: &Engine, place: &Place) -> Result<(), Error> {
    let deadline = Instant::now() + LISTENING;
    loop {
        for _ in 0..GLANCES {
            if place.socket().exists() {
                return Ok(());
            }
            sleep(GLANCE).await;
        }
        match engine.phase(&place.name()).await? {
            Some(Phase::Made | Phase::Running | Phase::Paused) if Instant::now() < deadline => {}
            Some(Phase::Made | Phase::Running | Phase::Paused) => {
                let said = engine.said(&place.name()).await;
                let detail = format!("its worker did not listen within {LISTENING:?}: {said}");
                return Err(Error::Refused { detail });
            }
            Some(Phase::Ending | Phase::Ended(_)) | None => {
                let said = engine.said(&place.name()).await;
                return Err(Error::Refused { detail: format!("its worker did not start: {said}") });
            }
        }
    }
}

impl Docker {
    pub(super) async fn make(&self, spec: &CreateSpec) -> Result<Found, Error> {
        self.making.take(spec.identity.sandbox, self.make_once(spec)).await
    }

    async fn make_once(&self, spec: &CreateSpec) -> Result<Found, Error> {
        if spec.settings.snapshot.is_some() {
            return Err(Error::Unsupported { provider: ProviderKind::Docker, ability: "begin with a snapshot" });
        }
        let id = ProviderId(spec.identity.sandbox.to_string());
        let place = Place::of(&self.home, &id)?;
        if place.exists() {
            let phase = self.phase(&place).await?;
            let is_alive = matches!(phase, Some(Phase::Running | Phase::Paused));
            // It was made before, and perhaps has ended since: what it left is for the server to take.
            if is_alive || place.has_spooled() {
                self.connect(&place, phase);
                return self.found(&place, phase).await;
            }
            // Half made: begun again from nothing.
            self.destroy(&id).await?;
        }
        let record = self.record(spec).await?;
        let made = self.make_anew(&place, &record, spec).await;
        if made.is_err() {
            // The reason for the failure is the one to tell; what can't be removed now is swept later.
            drop(self.destroy(&id).await);
        }
        made?;
        self.connect(&place, Some(Phase::Running));
        self.found(&place, Some(Phase::Running)).await
    }

    /// What it is made of, all of which is looked at before anything is made.
    async fn record(&self, spec: &CreateSpec) -> Result<Record, Error> {
        self.worker()?;
        let image =
            spec.settings.image.clone().or_else(|| self.options.image.clone()).ok_or_else(|| Error::Refused {
                detail: "no image is named for it; name one with `image`, or for all with docker.image".into(),
            })?;
        shape::check_image(&image)?;
        self.engine.facts().await?.reach(spec.settings.isolation)?;
        if self.engine.facts().await?.root == Root::Same && !is_root() {
            let detail = "its container's root could not reach what this server keeps for it: \
                          run the server as root, or use an engine that runs as this user (rootless)";
            return Err(Error::Refused { detail: detail.into() });
        }
        match self.engine.client().await?.inspect_image(&image).await.map_err(|error| self.engine.told(&error)) {
            Ok(_) => {}
            Err(Error::Gone) => {
                let detail = format!("the Docker engine has no image `{image}`; get it with `docker pull {image}`");
                return Err(Error::Refused { detail });
            }
            Err(error) => return Err(error),
        }
        let memory_bytes = limits(spec.settings.resources).memory_bytes;
        Ok(Record { labels: all_labels(spec), image, memory_bytes })
    }

    async fn make_anew(&self, place: &Place, record: &Record, spec: &CreateSpec) -> Result<(), Error> {
        let worker = self.worker()?;
        let common = Common { server: &self.server, worker: &worker, programs: &spec.programs };
        let told = |error: bollard::errors::Error| match self.engine.told(&error) {
            // Nothing of it is there yet: what is missing is what it is made of.
            Error::Gone => Error::Refused { detail: format!("the Docker engine says: {error}") },
            error => error,
        };
        let client = self.engine.client().await?;
        place.make(record, self.engine.facts().await?.root)?;
        client.create_volume(shape::volume(&common, place)).await.map_err(told)?;
        if let Some(source) = &spec.source {
            self.take_in(place, record, source).await?;
        }
        let body = shape::sandbox(&common, place, record, &limits(spec.settings.resources));
        let options = CreateContainerOptions { name: Some(place.name()), ..CreateContainerOptions::default() };
        client.create_container(Some(options), body).await.map_err(told)?;
        client.start_container(&place.name(), None::<StartContainerOptions>).await.map_err(told)?;
        listens(&self.engine, place).await
    }

    /// Puts a repository into the fresh workspace.
    async fn take_in(&self, place: &Place, record: &Record, source: &Source) -> Result<(), Error> {
        let bundle = File::open(&source.bundle).map_err(|error| Error::Unreachable {
            detail: format!("the repository's bundle can't be read: {error}"),
        })?;
        let work = Work { arguments: arguments_in(source), input: Some(bundle), output: None };
        let done = self.job(place.clone(), record.clone(), work).await?;
        match done.exit {
            Exit::Exited { code: 0 } => Ok(()),
            Exit::TimedOut => Err(Error::Refused { detail: "the repository was not in place in time".into() }),
            exit => {
                let detail = format!("the repository can't be put in place ({exit:?}): {}", done.said);
                Err(Error::Refused { detail })
            }
        }
    }
}

/// Whether this process is root: without `unsafe` the kernel says it by whose its own files are.
fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|found| found.uid() == 0)
}
