//! Lists what this host lacks, each with a remedy.

use super::{Service, kernel_features};
use crate::error::{Errno, Error, LaunchStep, explain_refused_namespaces};
use crate::host_report::{MissingFeature, Support, Tier};
use crate::id_maps::IdSource;

impl Service {
    pub(super) fn missing_features(
        &self,
        failure: Option<Error>,
        namespaces: Option<Errno>,
        overlay: Option<Errno>,
    ) -> Vec<MissingFeature> {
        let missing = |keeps_from: Option<Tier>, what: String, remedy: &str| MissingFeature {
            description: what,
            remedy: remedy.to_owned(),
            blocks_tier: keeps_from,
        };
        let is_root = rustix::process::geteuid().is_root();
        let mut list = Vec::new();
        if let Some(errno) = namespaces {
            let remedy = LaunchStep::Namespaces.remedy(errno).unwrap_or_else(explain_refused_namespaces);
            list.push(missing(Some(Tier::Standard), format!("cannot create user namespaces: {errno}"), &remedy));
        }
        if let Some(error) = failure.filter(|_| namespaces.is_none()) {
            let remedy = match &error {
                Error::StepFailed { remedy: Some(remedy), .. } => remedy.clone(),
                _ => "See the message for the failed step.".to_owned(),
            };
            // The remedy is a field of its own.
            let what = match &error {
                Error::StepFailed { step, source, .. } => {
                    format!("cannot create sandboxes: failed to {step}: {source}")
                }
                other => other.to_string(),
            };
            list.push(missing(Some(Tier::Standard), what, &remedy));
        }
        if let Some(missing_controllers) = self.cgroups.missing_controllers() {
            let remedy = if is_root {
                "Mount the cgroup controllers writable; in a systemd service: Delegate=yes."
            } else {
                "Run the server where cgroups are delegated: systemd-run --user --scope -p Delegate=yes atoll serve, or a service with Delegate=yes."
            };
            let what = format!("limits apply to each process alone: {missing_controllers}");
            list.push(missing(Some(Tier::Strong), what, remedy));
        }
        if self.cgroups.enforcement().cpu && !self.cgroups.has_cpuset() {
            let what = "a sandbox is not confined to as many CPUs as it has: the cgroup controller cpuset is missing, so `nproc` inside counts all CPUs";
            let remedy = if is_root {
                "In a systemd service: Delegate=yes. The unit packaging/atoll.service has it."
            } else {
                "As root, let systemd delegate it to users: put `[Service]` and `Delegate=cpu cpuset io memory pids` into /etc/systemd/system/user@.service.d/delegate.conf, run systemctl daemon-reload, and log in again."
            };
            list.push(missing(None, what.to_owned(), remedy));
        }
        if let Some(unit) = self.cgroups.ending_unit() {
            let what = format!("stopping {unit} kills the sandboxes, unless its unit says KillMode=process");
            let remedy = "Set KillMode=process in the unit, as packaging/atoll-user.service does: the sandboxes then continue, and the next start adopts them.";
            list.push(missing(None, what, remedy));
        }
        if let IdSource::Fixed { why_single: Some(why), .. } = &self.id_source {
            let remedy = "Install the package uidmap and give this user ids: sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 $(id -un).";
            let what = format!("sandboxes run under this user's own id: {why}");
            list.push(missing(Some(Tier::Strong), what, remedy));
        }
        if let Support::Unavailable { reason } = self.landlock_support() {
            let remedy = "Use Linux 5.19 or newer and enable it with lsm=landlock,… on the kernel's command line, before the modules of /sys/kernel/security/lsm.";
            list.push(missing(None, format!("writes are not restricted by Landlock: {reason}"), remedy));
        }
        if let Some(errno) = overlay {
            let remedy = "Use Linux 5.11 or newer with overlayfs: modprobe overlay.";
            list.push(missing(None, format!("no forks and snapshots: cannot mount an overlay: {errno}"), remedy));
        }
        list.extend(self.missing_idmapped_mounts());
        for (path, reason) in &self.view.refused {
            let what = format!("{} is not visible inside: {reason}", path.display());
            list.push(missing(None, what, "Configure another directory."));
        }
        if !self.settings.worker_binary.is_file() {
            let what = format!("the worker {} is missing", self.settings.worker_binary.display());
            list.push(missing(Some(Tier::Standard), what, "Build it with `make worker`."));
        }
        list
    }
}

/// The missing feature if directories cannot be renamed after a fork; volumes have no such overlays.
pub(super) fn missing_directory_renames() -> Option<MissingFeature> {
    let reason = match rustix::process::geteuid().is_root().then(kernel_features::try_directory_rename) {
        Some(Ok(())) => return None,
        Some(Err(errno)) => format!("the kernel refuses it: {errno}"),
        None => "only root can mount such overlays".to_owned(),
    };
    Some(MissingFeature {
        description: format!(
            "after a fork or snapshot, a directory from before it cannot be renamed in place (EXDEV): {reason}"
        ),
        remedy: "`mv` copies the directory instead, but `git mv` and rename() fail. Start the server as root to avoid this; it can give up root (server.user).".to_owned(),
        blocks_tier: None,
    })
}
