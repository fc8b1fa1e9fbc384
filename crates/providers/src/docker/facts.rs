//! What an engine is like, once for all of its containers: who root is in them, and what it can't hold them to.

use bollard::models::SystemInfo;

/// Who a container's root is on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Root {
    /// The machine's own root.
    Same,
    /// Somebody without power here, by the engine's user namespace.
    Mapped { user: u32, group: u32 },
    /// The user that the engine runs as.
    Rootless,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Facts {
    pub root: Root,
    unbounded: Vec<&'static str>,
    filters_calls: bool,
}

impl Facts {
    pub(super) fn of(info: &SystemInfo) -> Self {
        let named = |wanted: &str| {
            let options = info.security_options.as_deref().unwrap_or_default();
            options.iter().any(|option| option.split(',').any(|part| part == format!("name={wanted}")))
        };
        let bounds = [
            ("memory", info.memory_limit),
            ("processor time", info.cpu_cfs_quota),
            ("the number of processes", info.pids_limit),
            ("disk space", Some(false)),
        ];
        let root = if named("rootless") {
            Root::Rootless
        } else if named("userns") {
            info.docker_root_dir.as_deref().and_then(mapped).unwrap_or(Root::Same)
        } else {
            Root::Same
        };
        Self {
            root,
            unbounded: bounds.iter().filter(|(_, bound)| *bound == Some(false)).map(|(name, _)| *name).collect(),
            filters_calls: named("seccomp"),
        }
    }

    /// What somebody should know before trusting a container as much as a local sandbox.
    pub(super) fn notices(&self) -> Vec<String> {
        let mut said = Vec::new();
        match self.root {
            Root::Same => said.push(
                "users in this container have the ids of this machine's users, also this machine's root; only what \
                 they may not do holds them: an engine with userns-remap, or one without root, holds them better"
                    .into(),
            ),
            Root::Mapped { .. } | Root::Rootless => {}
        }
        if !self.filters_calls {
            said.push("this engine filters no system calls (seccomp is off)".into());
        }
        if !self.unbounded.is_empty() {
            said.push(format!("not limited by this engine: {}", self.unbounded.join(", ")));
        }
        said
    }
}

/// An engine with a user namespace keeps its data in a directory that is named by the ids of its root.
fn mapped(directory: &str) -> Option<Root> {
    let (user, group) = directory.trim_end_matches('/').rsplit('/').next()?.split_once('.')?;
    Some(Root::Mapped { user: user.parse().ok()?, group: group.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(options: &[&str], directory: &str) -> SystemInfo {
        SystemInfo {
            security_options: Some(options.iter().map(|option| (*option).to_owned()).collect()),
            docker_root_dir: Some(directory.to_owned()),
            memory_limit: Some(true),
            cpu_cfs_quota: Some(true),
            pids_limit: Some(true),
            ..SystemInfo::default()
        }
    }

    #[test]
    fn an_engines_root_is_known() {
        let plain = Facts::of(&info(&["name=seccomp,profile=default"], "/var/lib/docker"));
        assert_eq!(plain.root, Root::Same);
        assert_eq!(plain.notices().len(), 2, "{:?}", plain.notices());
        let remapped =
            Facts::of(&info(&["name=seccomp,profile=default", "name=userns"], "/var/lib/docker/165536.165537"));
        assert_eq!(remapped.root, Root::Mapped { user: 165_536, group: 165_537 });
        assert_eq!(remapped.notices(), ["not limited by this engine: disk space"]);
        assert_eq!(Facts::of(&info(&["name=rootless"], "/home/u/docker")).root, Root::Rootless);
        // Where its ids can't be told, nothing better is claimed.
        assert_eq!(Facts::of(&info(&["name=userns"], "/var/lib/docker")).root, Root::Same);
    }

    #[test]
    fn what_it_can_not_bound_is_named() {
        let weak = SystemInfo { memory_limit: Some(false), ..info(&[], "/var/lib/docker") };
        let said = Facts::of(&weak).notices();
        assert!(said.contains(&"not limited by this engine: memory, disk space".to_owned()), "{said:?}");
        assert!(said.iter().any(|notice| notice.contains("seccomp")));
    }
}
