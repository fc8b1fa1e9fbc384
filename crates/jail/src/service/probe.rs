//! Finds out what this machine can do, by making a sandbox and looking how far that goes.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Signal, WaitIdStatus};

use super::requests::make;
use super::starting::{null, strings};
use super::{Service, abilities, housekeeping};
use crate::cgroup::{Bounds, Leaf, ONE_SHOT};
use crate::error::{AtStep, Errno, Error, Failure, Step, namespaces_refused};
use crate::ids::Map;
use crate::layers::{Beginning, Layers, Stack, mapped};
use crate::maps::Source;
use crate::place::{Bound, Enforced, Ids, Limits, Spec};
use crate::record::{Home, Record};
use crate::report::{Ability, DiskBound, Missing, Report, Tier};
use crate::setup::overlay::Wanted;
use crate::setup::{Descriptor, Files, Plan, Role};
use crate::{maps, remove, start, template};

/// Longer than any machine takes for one program.
const PATIENCE: i64 = 20;

impl Service {
    pub(super) fn probe(&self) -> Report {
        let outcome = self.attempt();
        let map = self.map_here().ok();
        let unbounded = self.lacks_bound();
        let bounded = unbounded.is_none();
        let enforced = outcome.as_ref().ok().and(map.as_ref()).map(|map| self.enforced(map, bounded));
        let failed_at = |steps: &[Step]| match &outcome {
            Err(error @ Error::Step { step, .. }) if steps.contains(step) => Ability::No { reason: error.to_string() },
            _ => Ability::Yes,
        };
        let namespaces = abilities::user_namespaces();
        let overlay = map.as_ref().filter(|_| namespaces.is_ok()).map(abilities::overlay);
        Report {
            tier: tier(enforced),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            architecture: std::env::consts::ARCH.to_owned(),
            root: rustix::process::geteuid().is_root(),
            isolation: match &outcome {
                Ok(()) => Ability::Yes,
                Err(error) => Ability::No { reason: error.to_string() },
            },
            user_namespaces: match &namespaces {
                Ok(()) => failed_at(&[Step::Clone, Step::Maps, Step::Ids, Step::Trees, Step::Root]),
                Err(reason) => Ability::No { reason: format!("the kernel makes none: {reason}") },
            },
            id_ranges: self.id_ranges(),
            seccomp: failed_at(&[Step::Seccomp]),
            landlock: self.landlock_ability(),
            overlay: match &overlay {
                Some(Ok(())) => Ability::Yes,
                Some(Err(reason)) => Ability::No { reason: format!("mounting an overlay: {reason}") },
                None => Ability::No { reason: "there is no user namespace to mount it in".to_owned() },
            },
            freezer: if self.groups.freezes() {
                Ability::Yes
            } else {
                Ability::No { reason: "no cgroup freezes: a pause stops each process by a signal".to_owned() }
            },
            groups: self.groups.version(),
            disk: match enforced.map(|enforced| enforced.disk) {
                Some(Bound::Enforced) => DiskBound::Enforced,
                Some(Bound::Watched) => DiskBound::Watched,
                Some(Bound::PerProcess | Bound::No) | None => DiskBound::None,
            },
            enforced,
            visible: self.visible(),
            inotify_instances: fs::read_to_string("/proc/sys/fs/inotify/max_user_instances")
                .ok()
                .and_then(|text| text.trim().parse().ok()),
            missing: {
                let mut missing = self.missing(outcome.err(), namespaces.err(), overlay.and_then(Result::err));
                missing.extend(unbounded.into_iter().chain(self.pool_too_large()));
                missing
            },
        }
    }

    fn landlock_ability(&self) -> Ability {
        match self.landlock.version() {
            0 => Ability::No { reason: "this kernel has no Landlock, or has it switched off".to_owned() },
            _ if self.landlock.is_usable() => Ability::Yes,
            old => Ability::No { reason: format!("its version {old} forbids to move files between directories") },
        }
    }

    fn id_ranges(&self) -> Ability {
        match &self.ids {
            Source::Ranges { .. } => match self.ids.map(&[]) {
                Ok(_) => Ability::Yes,
                Err(error) => Ability::No { reason: error.to_string() },
            },
            Source::Fixed { why_single: None, .. } => Ability::Yes,
            Source::Fixed { why_single: Some(reason), .. } => Ability::No { reason: reason.clone() },
        }
    }

    fn visible(&self) -> Vec<PathBuf> {
        let links = self.view.links.iter().map(|(link, _)| link.clone());
        let mut paths: Vec<PathBuf> = self.view.directories.iter().cloned().chain(links).collect();
        paths.extend(["null", "zero", "full", "random", "urandom", "tty"].map(|name| Path::new("/dev").join(name)));
        paths.sort();
        paths
    }

    fn missing(&self, failure: Option<Error>, namespaces: Option<Errno>, overlay: Option<Errno>) -> Vec<Missing> {
        let missing = |keeps_from: Option<Tier>, what: String, remedy: &str| Missing {
            what,
            remedy: remedy.to_owned(),
            keeps_from,
        };
        let is_root = rustix::process::geteuid().is_root();
        let mut list = Vec::new();
        if let Some(errno) = namespaces {
            let remedy = Step::Clone.remedy(errno).unwrap_or_else(namespaces_refused);
            list.push(missing(Some(Tier::Standard), format!("no user namespace can be made: {errno}"), &remedy));
        }
        if let Some(error) = failure.filter(|_| namespaces.is_none()) {
            let remedy = match &error {
                Error::Step { remedy: Some(remedy), .. } => remedy.clone(),
                _ => "Read the message: it names the step that failed.".to_owned(),
            };
            // The remedy stands beside it.
            let what = match &error {
                Error::Step { step, source, .. } => format!("no sandbox can be made: failed to {step}: {source}"),
                other => other.to_string(),
            };
            list.push(missing(Some(Tier::Standard), what, &remedy));
        }
        if let Some(lacks) = self.groups.lacks() {
            let remedy = if is_root {
                "Mount the cgroup controllers writable; in a service of systemd: Delegate=yes."
            } else {
                "Run the server where cgroups are delegated: systemd-run --user --scope -p Delegate=yes atoll serve, or a service with Delegate=yes."
            };
            let what = format!("limits hold for each process alone: {lacks}");
            list.push(missing(Some(Tier::Strong), what, remedy));
        }
        if let Source::Fixed { why_single: Some(why), .. } = &self.ids {
            let remedy = "Install the package uidmap and give this user ids: sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 $(id -un).";
            let what = format!("all of a sandbox runs under this user's own id: {why}");
            list.push(missing(Some(Tier::Strong), what, remedy));
        }
        if let Ability::No { reason } = self.landlock_ability() {
            let remedy = "A kernel of 5.19 or newer has it; switch it on with lsm=landlock,… on the kernel's command line, before the modules of /sys/kernel/security/lsm.";
            list.push(missing(None, format!("files have no second lock: {reason}"), remedy));
        }
        if let Some(errno) = overlay {
            let remedy = "A kernel of 5.11 or newer with overlayfs is needed: modprobe overlay.";
            list.push(missing(None, format!("no forks and snapshots: no overlay can be mounted: {errno}"), remedy));
        }
        list.extend(self.lacks_mapping());
        for (path, reason) in &self.view.refused {
            let what = format!("{} is not shown inside: {reason}", path.display());
            list.push(missing(None, what, "Name another directory."));
        }
        if !self.settings.worker.is_file() {
            let what = format!("the worker {} is missing", self.settings.worker.display());
            list.push(missing(Some(Tier::Standard), what, "Build it with `make worker`."));
        }
        list
    }

    /// Makes a sandbox beside the others, runs one program in it, and removes it again.
    fn attempt(&self) -> Result<(), Error> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let base = std::env::temp_dir().join(format!("atoll-probe-{}-{now}", std::process::id()));
        housekeeping::private_directory(&base)?;
        let ground = Layers::open(&base.join("layers"), &self.ids)
            .and_then(|layers| Ok((layers.map_for_another(&self.ids, &[])?, layers)));
        let (outcome, map) = match ground {
            Ok((map, layers)) => (self.attempt_in(&base, &layers, &map), Some(map)),
            Err(error) => (Err(error), None),
        };
        let remove = || remove::tree(&base).map_or_else(rustix::io::Errno::raw_os_error, |()| 0);
        let remover = map.as_ref().map(|map| maps::spawn_within(map, remove));
        match remover {
            Some(Ok(remover)) => drop(remover.wait()),
            // Nothing is in it that has another's ids.
            Some(Err(_)) | None => drop(remove::tree(&base)),
        }
        outcome
    }

    fn attempt_in(&self, base: &Path, layers: &Layers, map: &Map) -> Result<(), Error> {
        let name = "probe";
        let template = match &self.store {
            Some(store) => store.template.clone(),
            None => template::make(&base.join("etc"))?,
        };
        let spec = Spec {
            name: name.to_owned(),
            labels: BTreeMap::new(),
            limits: Limits::default(),
            hostname: "atoll".to_owned(),
            image: None,
            snapshot: None,
            protected: Vec::new(),
            programs: Vec::new(),
        };
        let stack = Stack { top: layers.make(Beginning::Empty, false)?, below: Vec::new(), image: None, volume: None };
        let taken = match layers.shown(map).map_err(|failure| Error::step(name, failure))? {
            None => None,
            Some(namespace) => {
                let take = |path: PathBuf| mapped(&path, &namespace).map_err(|failure| Error::step(name, failure));
                Some([take(layers.workspace(&stack.top))?, take(layers.agent_home(&stack.top))?])
            }
        };
        let record = Record { spec, map: map.clone(), enforced: self.enforced(map, false), stack };
        let home = Home::new(base, name);
        make(&home, &record, layers)?;
        // Only what it shows matters here, not what it does.
        let worker = if self.settings.worker.is_file() { &self.settings.worker } else { Path::new("/bin/sh") };
        let arguments = strings(["true".to_owned()])?;
        let environment = strings(self.run_environment(name))?;
        let null = null().map_err(|error| Error::file("open", Path::new("/dev/null"), error))?;
        let descriptors = [0; 3].map(|_| Descriptor::Of(null.as_fd()));
        let plan = Plan {
            protected: &[],
            programs: &[],
            view: &self.view,
            template: &template,
            worker,
            home: &home,
            files: Files {
                layers,
                stack: &record.stack,
                wanted: Wanted { files: false, system: false },
                store: None,
                taken,
                scratch: None,
                programs: None,
            },
            path: &self.view.path,
            map,
            hostname: "atoll",
            limits: self.process_limits(&record.spec.limits),
            filter: &self.filter,
            landlock: self.landlock,
            writable_root: false,
            role: Role::Agent,
            arguments: &arguments,
            environment: &environment,
            descriptors: &descriptors,
        };
        let group = format!("probe{}", std::process::id());
        let leaf = self.groups.make(&group, ONE_SHOT, &Bounds::agent(&record.spec.limits));
        let leaf = leaf.at(Step::Group).map_err(|failure| Error::step(name, failure))?;
        let outcome = run_once(&plan, &leaf).map_err(|failure| Error::step(name, failure));
        for _ in 0..50 {
            if leaf.remove() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        outcome
    }
}

fn run_once(plan: &Plan<'_>, leaf: &Leaf) -> Result<(), Failure> {
    let mut started = start::start(plan, leaf, |_| Ok(()))?;
    let mut descriptors = [PollFd::new(&started.process.descriptor, PollFlags::IN)];
    let patience = Timespec { tv_sec: PATIENCE, tv_nsec: 0 };
    if !matches!(rustix::event::poll(&mut descriptors, Some(&patience)), Ok(1)) {
        let _ = rustix::process::pidfd_send_signal(&started.process.descriptor, Signal::KILL);
    }
    let status = started.process.wait().at(Step::Execute)?;
    let mut text = Vec::new();
    started.status.read_to_end(&mut text).at(Step::Execute)?;
    match (start::said(&text), status.as_ref().and_then(WaitIdStatus::exit_status)) {
        (Some(failure), _) => Err(failure),
        (None, Some(0)) => Ok(()),
        (None, _) => Err(Errno(libc::EIO)).at_with(Step::Execute, "it ended otherwise than expected"),
    }
}

fn tier(enforced: Option<Enforced>) -> Tier {
    match enforced {
        None => Tier::None,
        Some(Enforced {
            memory: Bound::Enforced,
            cpu: Bound::Enforced,
            pids: Bound::Enforced,
            disk: Bound::Enforced,
            ids,
            open_files: _,
        }) if ids != Ids::Single => Tier::Strong,
        Some(_) => Tier::Standard,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_enforced_counts() {
        let all = Enforced {
            memory: Bound::Enforced,
            cpu: Bound::Enforced,
            pids: Bound::Enforced,
            open_files: Bound::PerProcess,
            disk: Bound::Enforced,
            ids: Ids::Own,
        };
        assert_eq!(tier(Some(all)), Tier::Strong);
        assert_eq!(tier(Some(Enforced { disk: Bound::No, ..all })), Tier::Standard);
        assert_eq!(tier(Some(Enforced { disk: Bound::Watched, ..all })), Tier::Standard);
        assert_eq!(tier(Some(Enforced { ids: Ids::Single, ..all })), Tier::Standard);
        assert_eq!(tier(Some(Enforced { memory: Bound::PerProcess, ..all })), Tier::Standard);
        assert_eq!(tier(None), Tier::None);
    }
}
