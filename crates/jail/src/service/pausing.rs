//! Pausing: all of a sandbox but its worker stands still. By its cgroup's freezer; where there is none, each process is
//! stopped by a signal, until a look finds none that still moves.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::Service;
use super::processes::{Kind, Tracked};
use crate::census::{self, Inhabitant};
use crate::cgroup::{Freezer, Leaf};
use crate::error::{Errno, Error};
use crate::place::Place;
use crate::record::Home;
use crate::wire::Answer;

/// A process that waits for a device can't be stopped before that answers.
const PATIENCE: Duration = Duration::from_secs(10);

/// A sandbox on its way to standing still, and who waits for that.
pub(super) struct Pausing {
    request: u64,
    sandbox: String,
    since: Instant,
    /// Its processes were told to.
    told: bool,
}

impl Service {
    pub(super) fn pause(&mut self, request: u64, name: &str) -> Result<(), Error> {
        let (sandbox, _) = self.sandbox(name)?;
        if sandbox.ending.is_some() {
            return Err(Error::Ending { name: name.to_owned() });
        }
        if self.worker(name).is_none_or(|worker| worker.starting.is_some()) {
            return Err(Error::NotAlive { name: name.to_owned() });
        }
        self.pausing.push(Pausing { request, sandbox: name.to_owned(), since: Instant::now(), told: false });
        self.go_on_pausing()
    }

    fn begin(&self, name: &str) -> Result<(), Error> {
        let (sandbox, _) = self.sandbox(name)?;
        let failed = |error: std::io::Error| Error::file("pause the sandbox of", &sandbox.home.directory, error);
        match self.freezer(name) {
            Some(freezer) => freezer.freeze().map_err(failed),
            None => fs::write(sandbox.home.paused(), "").map_err(failed),
        }
    }

    /// Somebody who ends writers has made it stand still for that, and will let it go on.
    fn is_held_otherwise(&self, name: &str) -> bool {
        self.tracked.iter().any(|tracked| tracked.sandbox == name && tracked.kind == Kind::Stopper)
    }

    /// Looks who stands still by now, and tells who waits for it.
    pub(super) fn go_on_pausing(&mut self) -> Result<(), Error> {
        for mut pausing in std::mem::take(&mut self.pausing) {
            if !pausing.told && !self.is_held_otherwise(&pausing.sandbox) {
                if let Err(error) = self.begin(&pausing.sandbox) {
                    self.answer(pausing.request, Err(error))?;
                    continue;
                }
                pausing.told = true;
            }
            let Pausing { request, sandbox: name, since, told } = &pausing;
            if *told && !self.is_paused(name) {
                // It ended, or somebody resumed it.
                self.answer(*request, Err(Error::NotAlive { name: name.clone() }))?;
            } else if *told && self.stands_still(name) {
                let place = self.known(name).map(|place| Answer::Place(Box::new(place)));
                self.answer(*request, place)?;
            } else if since.elapsed() > PATIENCE {
                self.let_go_on(name)?;
                let error = Error::NotPaused { name: name.clone(), seconds: PATIENCE.as_secs() };
                self.answer(*request, Err(error))?;
            } else {
                self.pausing.push(pausing);
            }
        }
        Ok(())
    }

    pub(super) fn resume(&mut self, name: &str) -> Result<Place, Error> {
        self.sandbox(name)?;
        self.let_go_on(name)?;
        self.known(name)
    }

    /// Whether it is meant to stand still: what the kernel says of it, or else its directory.
    pub(super) fn is_paused(&self, name: &str) -> bool {
        let Some(sandbox) = self.sandboxes.get(name).filter(|_| self.worker(name).is_some()) else { return false };
        match self.freezer(name) {
            Some(freezer) => freezer.is_freezing() && !self.is_held_otherwise(name),
            None => sandbox.home.paused().exists(),
        }
    }

    /// Those whose pause is a signal to each process: whoever is started meanwhile has not had it.
    pub(super) fn held_by_signals(&self) -> impl Iterator<Item = &String> {
        let held = |name: &&String| self.freezer(name).is_none() && self.is_paused(name);
        self.sandboxes.keys().filter(|_| !self.groups.freezes()).filter(held)
    }

    pub(super) fn hold_newcomers(&self) {
        for name in self.held_by_signals() {
            self.stands_still(name);
        }
    }

    fn stands_still(&self, name: &str) -> bool {
        match self.freezer(name) {
            Some(freezer) => freezer.is_frozen(),
            None => {
                // All are told, and all looked at again next time: one may have started another in between.
                let moving: Vec<_> = self.inhabitants(name).into_iter().filter(|one| !one.stands_still()).collect();
                moving.iter().filter(|one| one.signal(Signal::STOP)).count() == 0
            }
        }
    }

    fn let_go_on(&self, name: &str) -> Result<(), Error> {
        let (sandbox, _) = self.sandbox(name)?;
        match self.freezer(name) {
            Some(freezer) => {
                freezer.thaw().map_err(|error| Error::file("resume the sandbox of", &sandbox.home.directory, error))
            }
            None => match fs::remove_file(sandbox.home.paused()) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
                Err(error) => Err(Error::file("resume the sandbox of", &sandbox.home.directory, Errno::from(error))),
                Ok(()) => {
                    for one in self.inhabitants(name) {
                        one.signal(Signal::CONT);
                    }
                    Ok(())
                }
            },
        }
    }

    /// Undoes a pause that outlived the processes it was about: the next worker starts in the same place.
    pub(super) fn forget_pause(home: &Home, agent: &Leaf) {
        let _ = fs::remove_file(home.paused());
        if let Some(freezer) = agent.freezer.as_ref().filter(|freezer| freezer.is_freezing()) {
            let _ = freezer.thaw();
        }
    }

    pub(super) fn worker(&self, name: &str) -> Option<&Tracked> {
        self.tracked.iter().find(|tracked| tracked.sandbox == name && tracked.kind == Kind::Worker)
    }

    /// Of the agent's cgroup, which comes after the worker's own.
    fn freezer(&self, name: &str) -> Option<&Freezer> {
        self.worker(name)?.leaves.get(1)?.freezer.as_ref()
    }

    /// All processes of a living sandbox but its worker.
    fn inhabitants(&self, name: &str) -> Vec<Inhabitant> {
        let life = self.sandboxes.get(name).and_then(|sandbox| sandbox.home.read_life());
        life.map(|life| census::of_namespace(life.process.namespace, life.process.pid)).unwrap_or_default()
    }
}
