//! Starts programs in sandboxes that live, beside all that runs there.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use rustix::pipe::PipeFlags;

use super::Service;
use super::files::Taken;
use super::processes::{Kind, Tracked};
use super::starting::strings;
use crate::error::{AtStep, Error, Step};
use crate::place::Program;
use crate::setup::overlay::Wanted;
use crate::setup::{Descriptor, Role};
use crate::start::Started;
use crate::{join, kernel};

/// How many may run in one sandbox at once: each costs the server and the launcher something too.
const MOST: usize = 64;

impl Service {
    pub(super) fn enter(&mut self, run: u64, name: &str, program: &Program, given: Vec<OwnedFd>) -> Result<(), Error> {
        self.may_start(name)?;
        let Program { argv, environment, directory, as_root } = program;
        let arguments = strings(argv.iter().cloned())?;
        let directory = strings(directory.clone())?.pop().unwrap_or_else(|| c"/workspace".to_owned());
        if arguments.is_empty() || given.len() != 3 {
            return Err(Error::Spec { reason: "a program to run needs a name and three descriptors".to_owned() });
        }
        self.await_starting(name);
        let (sandbox, record) = self.sandbox(name)?;
        let imported = record.stack.image.is_some();
        if *as_root {
            let reason = match (imported, record.map.has_root()) {
                (false, _) => "only one with an imported root has; what the host shows is read-only",
                (true, false) => "this user has no id ranges (/etc/subuid), so there is only `agent` inside",
                (true, true) => "",
            };
            if !reason.is_empty() {
                return Err(Error::NoRoot { name: name.to_owned(), reason: reason.to_owned() });
            }
        }
        let is_worker = |tracked: &&Tracked| tracked.sandbox == name && tracked.kind == Kind::Worker;
        let Some(worker) = self.tracked.iter().find(is_worker) else {
            return Err(Error::NotAlive { name: name.to_owned() });
        };
        let runs = |tracked: &&Tracked| tracked.sandbox == name && matches!(tracked.kind, Kind::Entered { .. });
        if self.tracked.iter().filter(runs).count() >= MOST {
            let reason = format!("{MOST} commands run in it already");
            return Err(Error::Busy { name: name.to_owned(), reason });
        }
        // It would stand still on its way in.
        if self.is_paused(name) {
            return Err(Error::Busy { name: name.to_owned(), reason: "it is paused".to_owned() });
        }
        let failed = |failure| Error::step(name, failure);
        let held = worker.leaves.get(1).map(|agent| agent.hold()).transpose();
        let admissions = held.at(Step::Group).map_err(failed)?.map(|held| held.admissions).unwrap_or_default();
        let environment = strings(self.entered_environment(name, imported, *as_root, environment))?;
        let descriptors: Vec<Descriptor<'_>> =
            given.iter().map(|descriptor| Descriptor::Of(descriptor.as_fd())).collect();
        let role = if *as_root { Role::Root } else { Role::Agent };
        let taken = Taken {
            wanted: Wanted { files: false, system: imported },
            store: None,
            trees: None,
            scratch: None,
            programs: None,
        };
        let plan = self.plan(&sandbox.home, record, taken, role, &arguments, &environment, &descriptors)?;
        let (status, said) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).at(Step::Descriptors).map_err(failed)?;
        let (_, go) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).at(Step::Descriptors).map_err(failed)?;
        let process = kernel::spawn(0, None, || {
            self.close_copies();
            kernel::close_copy(status.as_fd());
            join::enter(&plan, &directory, worker.hold.as_fd(), &admissions, said.as_fd())
        });
        let kills = self.kills_of_agent(name);
        let started = process.at(Step::Clone).map_err(failed);
        let started = started.map(|process| Started { process, status: File::from(status), go });
        self.track(run, name, Kind::Entered { run, kills }, Vec::new(), started)
    }

    fn entered_environment(
        &self,
        name: &str,
        imported: bool,
        as_root: bool,
        more: &BTreeMap<String, String>,
    ) -> Vec<String> {
        let (home, user) = if as_root { ("/root", "root") } else { ("/home/agent", "agent") };
        let mut all = BTreeMap::from([
            ("ATOLL_SANDBOX", name),
            ("PATH", self.path(imported)),
            ("LANG", "C.UTF-8"),
            ("HOME", home),
            ("USER", user),
            ("LOGNAME", user),
            ("IS_SANDBOX", "1"),
        ]);
        all.extend(more.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        all.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
    }
}
