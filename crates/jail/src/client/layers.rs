//! What a launcher does with files as a whole: forks, snapshots, imported roots; and processes in a living sandbox.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use super::running::End;
use super::{Launcher, Running, SHORT, answer, unexpected};
use crate::catalog::{Image, Snapshot};
use crate::error::Error;
use crate::place::{Place, Program, Spec};
use crate::wire::{Answer, Request};

/// An archive of many gigabytes takes its time.
const IMPORTING: Duration = Duration::from_secs(3600);

impl Launcher {
    /// Prepares a sandbox with the files of another as they are now; from then on each has its own. Nothing but the
    /// worker may run in the parent: what else does is ended. One that is there stays as it is.
    pub fn fork(&self, parent: &str, spec: &Spec) -> Result<Place, Error> {
        self.place(Request::Fork { parent: parent.to_owned(), spec: spec.clone() })
    }

    /// Keeps the files of a sandbox as they are now under a name, for others to begin with. What runs in it besides
    /// its worker is ended.
    pub fn snapshot(&self, name: &str, snapshot: &str) -> Result<Snapshot, Error> {
        match self.ask(Request::Snapshot { name: name.to_owned(), snapshot: snapshot.to_owned() }, SHORT)? {
            Answer::Snapshot(snapshot) => Ok(snapshot),
            other => Err(unexpected(&other)),
        }
    }

    pub fn snapshots(&self) -> Result<Vec<Snapshot>, Error> {
        self.all(Request::Snapshots, |answer| match answer {
            Answer::Snapshot(snapshot) => Ok(snapshot),
            other => Err(other),
        })
    }

    /// Forgets a snapshot. What sandboxes made of it stays; what nobody else needs is removed.
    pub fn forget_snapshot(&self, snapshot: &str) -> Result<(), Error> {
        self.done(Request::ForgetSnapshot { snapshot: snapshot.to_owned() }, SHORT)
    }

    /// Unpacks a root for sandboxes to have instead of what the host shows: a tar of a root directory, what
    /// `docker save` writes, or an OCI archive.
    pub fn import_image(&self, image: &str, archive: OwnedFd) -> Result<Image, Error> {
        let (id, answers) = self.shared.next()?;
        let request = Request::ImportImage { image: image.to_owned() };
        let outcome = self.shared.send(id, request, &[archive.as_fd()]).and_then(|()| {
            drop(archive);
            answer(&answers, "import image", IMPORTING)
        });
        self.shared.lock().waiting.remove(&id);
        match outcome? {
            Answer::Image(image) => Ok(image),
            other => Err(unexpected(&other)),
        }
    }

    pub fn images(&self) -> Result<Vec<Image>, Error> {
        self.all(Request::Images, |answer| match answer {
            Answer::Image(image) => Ok(image),
            other => Err(other),
        })
    }

    /// Forgets an imported root, which no sandbox and no snapshot may be using.
    pub fn forget_image(&self, image: &str) -> Result<(), Error> {
        self.done(Request::ForgetImage { image: image.to_owned() }, SHORT)
    }

    /// Runs a program in a living sandbox, beside all that runs there: as `agent`, or as its root where it has an
    /// imported one.
    pub fn enter(
        &self,
        name: &str,
        argv: &[String],
        as_root: bool,
        stdin: OwnedFd,
        stdout: OwnedFd,
        stderr: OwnedFd,
    ) -> Result<Running, Error> {
        let program = Program { argv: argv.to_vec(), as_root, ..Program::default() };
        self.enter_with(name, program, [stdin, stdout, stderr])
    }

    /// The same, with all that can be said about a program; `descriptors` are its standard input, output and error.
    pub fn enter_with(&self, name: &str, program: Program, descriptors: [OwnedFd; 3]) -> Result<Running, Error> {
        self.begin(Request::Enter { name: name.to_owned(), program }, descriptors)
    }

    /// Starts a program whose end is told later.
    pub(super) fn begin(&self, request: Request, descriptors: [OwnedFd; 3]) -> Result<Running, Error> {
        let (teller, end) = End::new();
        let id = {
            let mut state = self.shared.lock();
            state.last += 1;
            let id = state.last;
            state.runs.insert(id, teller);
            id
        };
        let running = Running::new(Arc::clone(&self.shared), id, end);
        let verb = request.verb();
        let started = self.shared.expect(id).and_then(|answers| {
            self.shared.send(id, request, &descriptors.each_ref().map(AsFd::as_fd))?;
            answer(&answers, verb, SHORT)
        });
        self.shared.lock().waiting.remove(&id);
        started?;
        Ok(running)
    }

    fn all<T>(&self, request: Request, item: impl Fn(Answer) -> Result<T, Answer>) -> Result<Vec<T>, Error> {
        let verb = request.verb();
        let (id, answers) = self.shared.next()?;
        let outcome = self.shared.send(id, request, &[]).and_then(|()| {
            let mut items = Vec::new();
            loop {
                match answer(&answers, verb, SHORT)? {
                    Answer::Done => return Ok(items),
                    other => items.push(item(other).map_err(|other| unexpected(&other))?),
                }
            }
        });
        self.shared.lock().waiting.remove(&id);
        outcome
    }
}
