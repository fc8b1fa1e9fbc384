//! Facts about an engine that hold for all its containers: the root mapping and the limits that it does not enforce.

use atoll_core::provider::Error;
use atoll_core::sandbox::IsolationTier;
use bollard::models::SystemInfo;

/// The host user that a container's root maps to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RootMapping {
    /// The host's root.
    HostRoot,
    /// An unprivileged user, by the engine's user namespace.
    Mapped { user: u32, group: u32 },
    /// The user that the engine runs as.
    Rootless,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EngineInfo {
    pub root: RootMapping,
    unenforced_limits: Vec<&'static str>,
    has_seccomp: bool,
}

impl EngineInfo {
    pub(super) fn from_info(info: &SystemInfo) -> Self {
        let named = |option_name: &str| {
            let options = info.security_options.as_deref().unwrap_or_default();
            options.iter().any(|option| option.split(',').any(|part| part == format!("name={option_name}")))
        };
        let bounds =
            [("memory", info.memory_limit), ("CPU time", info.cpu_cfs_quota), ("process count", info.pids_limit)];
        let root = if named("rootless") {
            RootMapping::Rootless
        } else if named("userns") {
            info.docker_root_dir.as_deref().and_then(parse_remapped_root).unwrap_or(RootMapping::HostRoot)
        } else {
            RootMapping::HostRoot
        };
        Self {
            root,
            unenforced_limits: bounds
                .iter()
                .filter(|(_, bound)| *bound == Some(false))
                .map(|(name, _)| *name)
                .collect(),
            has_seccomp: named("seccomp"),
        }
    }

    /// Refuses a tier that a container of this engine does not reach.
    pub(super) fn check_tier(&self, demanded: Option<IsolationTier>) -> Result<(), Error> {
        let missing = match demanded {
            None => return Ok(()),
            Some(IsolationTier::Standard) if self.has_seccomp => return Ok(()),
            Some(IsolationTier::Standard) => "this engine does not filter system calls (seccomp is off)",
            Some(IsolationTier::Strong) => "containers have no disk quota; use the provider `local`",
        };
        let demanded = demanded.map_or("", IsolationTier::as_str);
        Err(Error::Refused {
            detail: format!("isolation `{demanded}` is required, but containers do not reach it: {missing}"),
        })
    }

    /// Notices about how a container is weaker than a local sandbox.
    pub(super) fn limit_notices(&self) -> Vec<String> {
        let mut notices = Vec::new();
        match self.root {
            RootMapping::HostRoot => notices.push(
                "user ids in this container equal those of the host, including root; for stronger isolation, use an \
                 engine with userns-remap or a rootless one"
                    .into(),
            ),
            RootMapping::Mapped { .. } | RootMapping::Rootless => {}
        }
        if !self.has_seccomp {
            notices.push("this engine does not filter system calls (seccomp is off)".into());
        }
        if !self.unenforced_limits.is_empty() {
            notices.push(format!("not limited by this engine: {}", self.unenforced_limits.join(", ")));
        }
        notices
    }
}

/// Parses the data directory of an engine with userns-remap, which is named after its root's ids.
fn parse_remapped_root(directory: &str) -> Option<RootMapping> {
    let (user, group) = directory.trim_end_matches('/').rsplit('/').next()?.split_once('.')?;
    Some(RootMapping::Mapped { user: user.parse().ok()?, group: group.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system_info(options: &[&str], directory: &str) -> SystemInfo {
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
    fn detects_the_root_mapping() {
        let plain = EngineInfo::from_info(&system_info(&["name=seccomp,profile=default"], "/var/lib/docker"));
        assert_eq!(plain.root, RootMapping::HostRoot);
        assert_eq!(plain.limit_notices().len(), 1, "{:?}", plain.limit_notices());
        let remapped = EngineInfo::from_info(&system_info(
            &["name=seccomp,profile=default", "name=userns"],
            "/var/lib/docker/165536.165537",
        ));
        assert_eq!(remapped.root, RootMapping::Mapped { user: 165_536, group: 165_537 });
        assert_eq!(remapped.limit_notices(), Vec::<String>::new());
        assert_eq!(
            EngineInfo::from_info(&system_info(&["name=rootless"], "/home/u/docker")).root,
            RootMapping::Rootless
        );
        // If the ids are unknown, assume the host's root.
        assert_eq!(
            EngineInfo::from_info(&system_info(&["name=userns"], "/var/lib/docker")).root,
            RootMapping::HostRoot
        );
    }

    #[test]
    fn refuses_a_tier_above_the_engines() {
        let plain = EngineInfo::from_info(&system_info(&["name=seccomp,profile=default"], "/var/lib/docker"));
        assert_eq!((plain.check_tier(None), plain.check_tier(Some(IsolationTier::Standard))), (Ok(()), Ok(())));
        let error = plain.check_tier(Some(IsolationTier::Strong)).unwrap_err().to_string();
        assert!(error.contains("`strong` is required") && error.contains("disk"), "{error}");
        let open = EngineInfo::from_info(&system_info(&[], "/var/lib/docker"));
        assert!(open.check_tier(Some(IsolationTier::Standard)).is_err());
    }

    #[test]
    fn notices_name_unenforced_limits() {
        let weak = SystemInfo { memory_limit: Some(false), ..system_info(&[], "/var/lib/docker") };
        let notices = EngineInfo::from_info(&weak).limit_notices();
        assert!(notices.contains(&"not limited by this engine: memory".to_owned()), "{notices:?}");
        assert!(notices.iter().any(|notice| notice.contains("seccomp")));
    }
}
