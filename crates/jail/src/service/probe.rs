//! Probes what this host supports by creating a test sandbox.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Signal, WaitIdStatus};

use super::requests::create_sandbox_dirs;
use super::starting::{open_null, to_c_strings};
use super::{Service, kernel_features, missing_features, startup};
use crate::cgroup::{CgroupLeaf, LeafLimits, ONE_SHOT_PREFIX};
use crate::error::{AtStep, Errno, Error, LaunchStep, StepFailure};
use crate::host_report::{DiskQuota, HostReport, Support, Tier};
use crate::id_maps::IdSource;
use crate::id_ranges::IdMap;
use crate::layers::{LayerContent, LayerStack, LayerStore, clone_idmapped_mount};
use crate::overlay_xattrs::OverlayXattrs;
use crate::record::{SandboxDir, SandboxRecord};
use crate::sandbox::{EnforcedLimits, Enforcement, IdMapKind, ResourceLimits, SandboxSpec};
use crate::setup::overlay::OverlayRequest;
use crate::setup::{Descriptor, FileSources, Role, SetupPlan};
use crate::{etc_template, id_maps, process_start, tree_removal};

/// Longer than any host needs to run one program.
const PROBE_TIMEOUT_SECS: i64 = 20;

impl Service {
    pub(super) fn probe_host(&self) -> HostReport {
        let outcome = self.try_sandbox();
        let map = self.probe_id_map().ok();
        let unbounded = self.missing_quota();
        let bounded = unbounded.is_none();
        let enforced = outcome.as_ref().ok().and(map.as_ref()).map(|map| self.enforced_limits(map, bounded));
        let failed_at = |steps: &[LaunchStep]| match &outcome {
            Err(error @ Error::StepFailed { step, .. }) if steps.contains(step) => {
                Support::Unavailable { reason: error.to_string() }
            }
            _ => Support::Available,
        };
        let namespaces = kernel_features::try_user_namespace();
        let overlay = map.as_ref().filter(|_| namespaces.is_ok()).map(kernel_features::try_overlay);
        HostReport {
            tier: rate_tier(enforced),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            architecture: std::env::consts::ARCH.to_owned(),
            root: rustix::process::geteuid().is_root(),
            isolation: match &outcome {
                Ok(()) => Support::Available,
                Err(error) => Support::Unavailable { reason: error.to_string() },
            },
            user_namespaces: match &namespaces {
                Ok(()) => failed_at(&[
                    LaunchStep::Namespaces,
                    LaunchStep::IdMaps,
                    LaunchStep::SwitchIds,
                    LaunchStep::CloneMounts,
                    LaunchStep::Root,
                ]),
                Err(reason) => Support::Unavailable { reason: format!("the kernel creates none: {reason}") },
            },
            id_ranges: self.id_range_support(),
            seccomp: failed_at(&[LaunchStep::Seccomp]),
            landlock: self.landlock_support(),
            overlay: match &overlay {
                Some(Ok(())) => Support::Available,
                Some(Err(reason)) => Support::Unavailable { reason: format!("failed to mount an overlay: {reason}") },
                None => Support::Unavailable { reason: "no user namespace to mount it in".to_owned() },
            },
            freezer: if self.cgroups.can_freeze() {
                Support::Available
            } else {
                Support::Unavailable { reason: "no cgroup freezer: a pause stops each process by a signal".to_owned() }
            },
            cgroups: self.cgroups.version(),
            disk: match enforced.map(|enforced| enforced.disk) {
                Some(Enforcement::Enforced) => DiskQuota::Enforced,
                Some(Enforcement::Monitored) => DiskQuota::Monitored,
                Some(Enforcement::PerProcess | Enforcement::None) | None => DiskQuota::None,
            },
            enforced,
            visible: self.visible_paths(),
            inotify_instances: fs::read_to_string("/proc/sys/fs/inotify/max_user_instances")
                .ok()
                .and_then(|text| text.trim().parse().ok()),
            missing: {
                let mut missing = self.missing_features(outcome.err(), namespaces.err(), overlay.and_then(Result::err));
                if !bounded && overlay == Some(Ok(())) {
                    missing.extend(missing_features::missing_directory_renames());
                }
                missing.extend(unbounded.into_iter().chain(self.oversized_pool()));
                missing
            },
        }
    }

    pub(super) fn landlock_support(&self) -> Support {
        match self.landlock.version() {
            0 => Support::Unavailable { reason: "this kernel has no Landlock, or it is disabled".to_owned() },
            _ if self.landlock.is_usable() => Support::Available,
            old => {
                Support::Unavailable { reason: format!("its version {old} forbids moving files between directories") }
            }
        }
    }

    fn id_range_support(&self) -> Support {
        match &self.id_source {
            IdSource::Ranges { .. } => match self.id_source.allocate_map(&[]) {
                Ok(_) => Support::Available,
                Err(error) => Support::Unavailable { reason: error.to_string() },
            },
            IdSource::Fixed { why_single: None, .. } => Support::Available,
            IdSource::Fixed { why_single: Some(reason), .. } => Support::Unavailable { reason: reason.clone() },
        }
    }

    fn visible_paths(&self) -> Vec<PathBuf> {
        let links = self.view.links.iter().map(|(link, _)| link.clone());
        let mut paths: Vec<PathBuf> = self.view.directories.iter().cloned().chain(links).collect();
        paths.extend(["null", "zero", "full", "random", "urandom", "tty"].map(|name| Path::new("/dev").join(name)));
        paths.sort();
        paths
    }

    /// Creates a test sandbox in a temporary directory, runs one program in it, and removes it.
    fn try_sandbox(&self) -> Result<(), Error> {
        self.check_program_protection("probe")?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let base = std::env::temp_dir().join(format!("atoll-probe-{}-{now}", std::process::id()));
        startup::create_private_dir(&base)?;
        let opened = LayerStore::open(&base.join("layers"), &self.id_source)
            .and_then(|layers| Ok((layers.allocate_map(&self.id_source, &[])?, layers)));
        let (outcome, map) = match opened {
            Ok((map, layers)) => (self.try_sandbox_in(&base, &layers, &map), Some(map)),
            Err(error) => (Err(error), None),
        };
        let remove = || tree_removal::remove_tree(&base).map_or_else(rustix::io::Errno::raw_os_error, |()| 0);
        let remover = map.as_ref().map(|map| id_maps::spawn_as_mapped_root(map, remove));
        match remover {
            Some(Ok(remover)) => drop(remover.reap()),
            // Nothing in it has other ids.
            Some(Err(_)) | None => drop(tree_removal::remove_tree(&base)),
        }
        outcome
    }

    fn try_sandbox_in(&self, base: &Path, layers: &LayerStore, map: &IdMap) -> Result<(), Error> {
        let name = "probe";
        let template = match &self.data_dir {
            Some(store) => store.template.clone(),
            None => etc_template::create_template(&base.join("etc"))?,
        };
        let spec = SandboxSpec {
            name: name.to_owned(),
            labels: BTreeMap::new(),
            limits: ResourceLimits::default(),
            hostname: "atoll".to_owned(),
            image: None,
            snapshot: None,
            cache: None,
            protected: Vec::new(),
            programs: Vec::new(),
        };
        let stack = LayerStack {
            top: layers.create_layer(LayerContent::Empty, false, OverlayXattrs::User)?,
            below: Vec::new(),
            image: None,
            volume: None,
            uncounted: 0,
        };
        let files = match layers.mapping_namespace(map).map_err(|failure| Error::step(name, failure))? {
            None => None,
            Some(namespace) => {
                let take = |path: PathBuf| {
                    clone_idmapped_mount(&path, &namespace).map_err(|failure| Error::step(name, failure))
                };
                Some([take(layers.workspace_dir(&stack.top))?, take(layers.home_dir(&stack.top))?])
            }
        };
        let record = SandboxRecord { spec, map: map.clone(), enforced: self.enforced_limits(map, false), stack };
        let home = SandboxDir::new(base, name);
        create_sandbox_dirs(&home, &record, layers)?;
        // Only the mount matters here, not the program.
        let worker =
            if self.settings.worker_binary.is_file() { &self.settings.worker_binary } else { Path::new("/bin/sh") };
        let arguments = to_c_strings(["true".to_owned()])?;
        let environment = to_c_strings(self.run_environment(name))?;
        let null = open_null().map_err(|error| Error::file("open", Path::new("/dev/null"), error))?;
        let descriptors = [0; 3].map(|_| Descriptor::Fd(null.as_fd()));
        let plan = SetupPlan {
            protected: &[],
            programs: &[],
            view: &self.view,
            template: &template,
            worker,
            sandbox_dir: &home,
            files: FileSources {
                layers,
                stack: &record.stack,
                overlays: OverlayRequest { files: false, system: false },
                mounted: None,
                store: None,
                files,
                scratch: None,
                programs: None,
            },
            path: &self.view.path,
            map,
            hostname: "atoll",
            limits: self.process_limits(&record.spec.limits, map),
            filter: &self.filter,
            landlock: self.landlock,
            writable_root: false,
            role: Role::Agent,
            arguments: &arguments,
            environment: &environment,
            descriptors: &descriptors,
        };
        let group = format!("probe{}", std::process::id());
        let leaf = self.cgroups.create_leaf(&group, ONE_SHOT_PREFIX, &LeafLimits::for_agent(&record.spec.limits));
        let leaf = leaf.at(LaunchStep::Cgroup).map_err(|failure| Error::step(name, failure))?;
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

fn run_once(plan: &SetupPlan<'_>, leaf: &CgroupLeaf) -> Result<(), StepFailure> {
    let mut started = process_start::start_process(plan, leaf, |_| Ok(()))?;
    let mut descriptors = [PollFd::new(&started.process.pidfd, PollFlags::IN)];
    let patience = Timespec { tv_sec: PROBE_TIMEOUT_SECS, tv_nsec: 0 };
    if !matches!(rustix::event::poll(&mut descriptors, Some(&patience)), Ok(1)) {
        let _ = rustix::process::pidfd_send_signal(&started.process.pidfd, Signal::KILL);
    }
    let status = started.process.reap().at(LaunchStep::Execute)?;
    let mut text = Vec::new();
    started.status.read_to_end(&mut text).at(LaunchStep::Execute)?;
    match (process_start::parse_failure(&text), status.as_ref().and_then(WaitIdStatus::exit_status)) {
        (Some(failure), _) => Err(failure),
        (None, Some(0)) => Ok(()),
        (None, _) => Err(Errno(libc::EIO)).at_with(LaunchStep::Execute, "the test program failed"),
    }
}

fn rate_tier(enforced: Option<EnforcedLimits>) -> Tier {
    match enforced {
        None => Tier::None,
        Some(EnforcedLimits {
            memory: Enforcement::Enforced,
            cpu: Enforcement::Enforced,
            pids: Enforcement::Enforced,
            disk: Enforcement::Enforced,
            ids,
            open_files: _,
        }) if ids != IdMapKind::SingleId => Tier::Strong,
        Some(_) => Tier::Standard,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_strong_tier_needs_all_limits_enforced() {
        let all = EnforcedLimits {
            memory: Enforcement::Enforced,
            cpu: Enforcement::Enforced,
            pids: Enforcement::Enforced,
            open_files: Enforcement::PerProcess,
            disk: Enforcement::Enforced,
            ids: IdMapKind::OwnRange,
        };
        assert_eq!(rate_tier(Some(all)), Tier::Strong);
        assert_eq!(rate_tier(Some(EnforcedLimits { disk: Enforcement::None, ..all })), Tier::Standard);
        assert_eq!(rate_tier(Some(EnforcedLimits { disk: Enforcement::Monitored, ..all })), Tier::Standard);
        assert_eq!(rate_tier(Some(EnforcedLimits { ids: IdMapKind::SingleId, ..all })), Tier::Standard);
        assert_eq!(rate_tier(Some(EnforcedLimits { memory: Enforcement::PerProcess, ..all })), Tier::Standard);
        assert_eq!(rate_tier(None), Tier::None);
    }
}
