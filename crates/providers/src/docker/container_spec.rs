//! Builds the engine's request bodies.

use super::container_dir::{ContainerDir, ContainerRecord};
use crate::worker_client::WORKER_PATH;
use atoll_core::agent::AGENTS_DIR;
use atoll_core::provider::{Error, ReadOnlyMount};
use atoll_jail::ResourceLimits;
use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigLogConfig, Mount, MountType, MountVolumeOptions,
    ResourcesUlimits, VolumeCreateRequest,
};
use std::collections::HashMap;
use std::path::Path;

/// The agent's uid in the container.
const AGENT_UID: u32 = 1000;
const LINK_DIR: &str = "/run/atoll/link";
const SPOOL_DIR: &str = "/run/atoll/spool";
const WORKSPACE_DIR: &str = "/workspace";
/// Label with the owning server: several servers may share an engine.
pub(super) const SERVER_LABEL: &str = "atoll.server";
/// Label with the sandbox that a git container works on.
pub(super) const JOB_LABEL: &str = "atoll.job";
/// The period that CPU quotas refer to.
const CPU_PERIOD_MICROS: i64 = 100_000;

/// Options that all containers of a server share.
pub(super) struct CommonOptions<'a> {
    pub server: &'a str,
    /// The worker binary on the host.
    pub worker: &'a Path,
    /// Programs of the host to mount beside it.
    pub programs: &'a [ReadOnlyMount],
}

/// Validates an image name: it becomes part of engine URLs and of commands that users copy.
pub(super) fn check_image(image: &str) -> Result<(), Error> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/:@".contains(&byte);
    let fits = (1..=255).contains(&image.len())
        && image.bytes().all(plain)
        && image.starts_with(|first: char| first.is_ascii_alphanumeric())
        && !image.split('/').any(|part| part.is_empty() || part.starts_with('.'));
    if fits { Ok(()) } else { Err(Error::Refused { detail: format!("`{image}` is not a valid image name") }) }
}

fn bind_mount(source: &Path, target: &str, read_only: bool) -> Mount {
    Mount {
        typ: Some(MountType::BIND),
        source: Some(source.to_string_lossy().into_owned()),
        target: Some(target.to_owned()),
        read_only: Some(read_only),
        ..Mount::default()
    }
}

/// The workspace volume; it starts empty even if the image has files at its path.
fn workspace_mount(dir: &ContainerDir) -> Mount {
    Mount {
        typ: Some(MountType::VOLUME),
        source: Some(dir.container_name()),
        target: Some(WORKSPACE_DIR.to_owned()),
        volume_options: Some(MountVolumeOptions { no_copy: Some(true), ..MountVolumeOptions::default() }),
        ..Mount::default()
    }
}

pub(super) fn volume_request(common: &CommonOptions<'_>, dir: &ContainerDir) -> VolumeCreateRequest {
    let labels = [(SERVER_LABEL, common.server.to_owned()), ("atoll.sandbox", dir.sandbox.to_string())];
    VolumeCreateRequest {
        name: Some(dir.container_name()),
        labels: Some(labels.map(|(key, value)| (key.to_owned(), value)).into()),
        ..VolumeCreateRequest::default()
    }
}

/// No network, only the named capabilities, no new privileges, and resource limits.
fn host_config(limits: &ResourceLimits, capabilities: &[&str], mounts: Vec<Mount>) -> HostConfig {
    let whole = |figure: u64| i64::try_from(figure).unwrap_or(i64::MAX);
    let files = whole(limits.open_files);
    HostConfig {
        mounts: Some(mounts),
        network_mode: Some("none".into()),
        ipc_mode: Some("private".into()),
        cap_drop: Some(vec!["ALL".into()]),
        cap_add: Some(capabilities.iter().map(|name| (*name).to_owned()).collect()),
        security_opt: Some(vec!["no-new-privileges".into()]),
        memory: Some(whole(limits.memory_bytes)),
        // The same value disables swap.
        memory_swap: Some(whole(limits.memory_bytes)),
        cpu_period: Some(CPU_PERIOD_MICROS),
        cpu_quota: Some(i64::from(limits.cpu_milli).saturating_mul(CPU_PERIOD_MICROS / 1000)),
        pids_limit: Some(i64::from(limits.pids)),
        ulimits: Some(vec![ResourcesUlimits { name: Some("nofile".into()), soft: Some(files), hard: Some(files) }]),
        ..HostConfig::default()
    }
}

/// Overrides the image's entry point and health check.
fn container_body(image: &str, command: Vec<String>, labels: HashMap<String, String>) -> ContainerCreateBody {
    ContainerCreateBody {
        image: Some(image.to_owned()),
        entrypoint: Some(vec![WORKER_PATH.to_owned()]),
        cmd: Some(command),
        user: Some("0:0".into()),
        working_dir: Some("/".into()),
        hostname: Some("atoll".into()),
        labels: Some(labels),
        healthcheck: Some(HealthConfig { test: Some(vec!["NONE".into()]), ..HealthConfig::default() }),
        ..ContainerCreateBody::default()
    }
}

/// The sandbox's container, with the worker as its first process.
pub(super) fn sandbox_container(
    common: &CommonOptions<'_>,
    dir: &ContainerDir,
    record: &ContainerRecord,
    limits: &ResourceLimits,
) -> ContainerCreateBody {
    let mut labels: HashMap<String, String> = record.labels.clone().into_iter().collect();
    labels.insert(SERVER_LABEL.to_owned(), common.server.to_owned());
    let environment = [
        format!("ATOLL_SANDBOX={}", dir.sandbox),
        format!("ATOLL_AGENT_UID={AGENT_UID}"),
        format!("ATOLL_LINK_DIR={LINK_DIR}"),
        format!("ATOLL_SPOOL_DIR={SPOOL_DIR}"),
        format!("ATOLL_MEMORY_LIMIT={}", limits.memory_bytes),
    ];
    let programs = common
        .programs
        .iter()
        .map(|program| bind_mount(&program.host_path, &format!("{AGENTS_DIR}/{}", program.relative_path), true));
    let mounts = [
        bind_mount(common.worker, WORKER_PATH, true),
        bind_mount(&dir.link_dir(), LINK_DIR, false),
        bind_mount(&dir.spool_dir(), SPOOL_DIR, false),
        workspace_mount(dir),
    ];
    let mounts = mounts.into_iter().chain(programs).collect();
    // The worker drops CHOWN and SETPCAP after it has created the agent's directories.
    let mut host = host_config(limits, &["SETUID", "SETGID", "KILL", "CHOWN", "SETPCAP"], mounts);
    let bounded = [("max-size", "1m"), ("max-file", "1")].map(|(key, value)| (key.to_owned(), value.to_owned()));
    host.log_config = Some(HostConfigLogConfig { typ: Some("json-file".into()), config: Some(bounded.into()) });
    ContainerCreateBody {
        env: Some(environment.into()),
        host_config: Some(host),
        ..container_body(&record.image, vec!["init".to_owned()], labels)
    }
}

/// A container that runs one git command over a workspace. The engine logs none of its output.
pub(super) fn git_container(
    common: &CommonOptions<'_>,
    dir: &ContainerDir,
    record: &ContainerRecord,
    arguments: Vec<String>,
    has_input: bool,
) -> ContainerCreateBody {
    let labels = [(SERVER_LABEL, common.server.to_owned()), (JOB_LABEL, dir.sandbox.to_string())];
    let labels = labels.map(|(key, value)| (key.to_owned(), value)).into();
    let mut command = vec!["as-agent".to_owned(), AGENT_UID.to_string()];
    command.extend(arguments);
    let limits = ResourceLimits { memory_bytes: record.memory_bytes, ..ResourceLimits::default() };
    let mounts = vec![bind_mount(common.worker, WORKER_PATH, true), workspace_mount(dir)];
    let mut host = host_config(&limits, &["SETUID", "SETGID", "CHOWN", "SETPCAP"], mounts);
    host.log_config = Some(HostConfigLogConfig { typ: Some("none".into()), config: None });
    ContainerCreateBody {
        host_config: Some(host),
        attach_stdin: Some(has_input),
        open_stdin: Some(has_input),
        stdin_once: Some(has_input),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        ..container_body(&record.image, command, labels)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::id::SandboxId;
    use atoll_core::provider::ProviderId;

    fn container_bodies() -> [ContainerCreateBody; 2] {
        let programs =
            [ReadOnlyMount { host_path: "/home/x/claude".into(), relative_path: "claude/bin/claude".into() }];
        let worker = Path::new("/usr/lib/atoll/atoll-worker");
        let common = CommonOptions { server: "here", worker, programs: &programs };
        let dir = ContainerDir::for_id(Path::new("/data/docker"), &ProviderId(SandboxId::new().to_string())).unwrap();
        let labels = [("atoll".to_owned(), "1".to_owned())].into();
        let record = ContainerRecord { labels, image: "debian".into(), memory_bytes: 1 << 30 };
        let git = git_container(&common, &dir, &record, vec!["git-diff".into()], false);
        [sandbox_container(&common, &dir, &record, &ResourceLimits::default()), git]
    }

    #[test]
    fn every_container_is_confined() {
        for shape in container_bodies() {
            let host = shape.host_config.unwrap();
            assert_eq!(host.network_mode.as_deref(), Some("none"));
            assert_eq!(host.cap_drop.unwrap(), ["ALL"]);
            assert_eq!(host.security_opt.unwrap(), ["no-new-privileges"]);
            assert!(host.privileged.is_none() && host.binds.is_none() && host.devices.is_none());
            let named = ["SETUID", "SETGID", "KILL", "CHOWN", "SETPCAP"];
            assert!(host.cap_add.unwrap().iter().all(|name| named.contains(&name.as_str())));
            assert!(host.memory > Some(0) && host.memory == host.memory_swap && host.pids_limit > Some(0));
            assert_eq!(shape.entrypoint.unwrap(), [WORKER_PATH], "not the image's entry point");
            assert_eq!(shape.healthcheck.unwrap().test.unwrap(), ["NONE"]);
            let writable = host.mounts.unwrap().into_iter().filter(|mount| mount.read_only != Some(true));
            for mount in writable {
                assert!([LINK_DIR, SPOOL_DIR, WORKSPACE_DIR].contains(&mount.target.as_deref().unwrap()), "{mount:?}");
            }
        }
    }

    #[test]
    fn a_job_sees_the_workspace_and_neither_link_nor_spool() {
        let [_, git] = container_bodies();
        let targets: Vec<_> =
            git.host_config.unwrap().mounts.unwrap().into_iter().filter_map(|one| one.target).collect();
        assert_eq!(targets, [WORKER_PATH, WORKSPACE_DIR]);
        assert_eq!(git.cmd.unwrap(), ["as-agent", "1000", "git-diff"]);
    }

    #[test]
    fn an_agents_program_is_mounted_read_only() {
        let [sandbox, _] = container_bodies();
        let mounts = sandbox.host_config.unwrap().mounts.unwrap();
        let program = mounts.iter().find(|mount| mount.source.as_deref() == Some("/home/x/claude")).unwrap();
        assert_eq!(program.target.as_deref(), Some("/opt/atoll/agents/claude/bin/claude"));
        assert_eq!(program.read_only, Some(true));
    }

    #[test]
    fn accepts_only_valid_image_names() {
        for good in ["debian", "debian:stable-slim", "registry.example:5000/a/b_c@sha256:00ff"] {
            assert_eq!(check_image(good), Ok(()), "{good}");
        }
        for bad in ["", "../x", "a/../b", "a b", "a?force=1", "/x", "a//b", "-v", "a\n"] {
            assert!(check_image(bad).is_err(), "{bad:?}");
        }
    }
}
