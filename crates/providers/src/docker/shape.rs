//! What the engine is asked to make, as plain values.

use super::place::{Place, Record};
use crate::inside::WORKER;
use atoll_core::agent::PLACE;
use atoll_core::provider::{Error, Shown};
use atoll_jail::Limits;
use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigLogConfig, Mount, MountType, MountVolumeOptions,
    ResourcesUlimits, VolumeCreateRequest,
};
use std::collections::HashMap;
use std::path::Path;

/// The agent's id inside.
const AGENT: u32 = 1000;
const LINK: &str = "/run/atoll/link";
const SPOOL: &str = "/run/atoll/spool";
const WORKSPACE: &str = "/workspace";
/// Whose a container is: an engine may serve several servers.
pub(super) const SERVER: &str = "atoll.server";
/// The sandbox that a git job is for.
pub(super) const JOB: &str = "atoll.job";
/// Of what a bound on processor time is a part, in microseconds.
const PERIOD: i64 = 100_000;

/// What all of a server's containers are made with.
pub(super) struct Common<'a> {
    pub server: &'a str,
    /// The worker's program on this machine.
    pub worker: &'a Path,
    /// What of this machine a sandbox is shown beside it.
    pub programs: &'a [Shown],
}

/// An image's name goes into the engine's paths and into commands that people are told to run.
pub(super) fn check_image(image: &str) -> Result<(), Error> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/:@".contains(&byte);
    let fits = (1..=255).contains(&image.len())
        && image.bytes().all(plain)
        && image.starts_with(|first: char| first.is_ascii_alphanumeric())
        && !image.split('/').any(|part| part.is_empty() || part.starts_with('.'));
    if fits { Ok(()) } else { Err(Error::Refused { detail: format!("`{image}` is not the name of an image") }) }
}

fn bind(source: &Path, target: &str, read_only: bool) -> Mount {
    Mount {
        typ: Some(MountType::BIND),
        source: Some(source.to_string_lossy().into_owned()),
        target: Some(target.to_owned()),
        read_only: Some(read_only),
        ..Mount::default()
    }
}

/// Empty at first, also where the image has something at its place.
fn workspace(place: &Place) -> Mount {
    Mount {
        typ: Some(MountType::VOLUME),
        source: Some(place.name()),
        target: Some(WORKSPACE.to_owned()),
        volume_options: Some(MountVolumeOptions { no_copy: Some(true), ..MountVolumeOptions::default() }),
        ..Mount::default()
    }
}

pub(super) fn volume(common: &Common<'_>, place: &Place) -> VolumeCreateRequest {
    let labels = [(SERVER, common.server.to_owned()), ("atoll.sandbox", place.sandbox.to_string())];
    VolumeCreateRequest {
        name: Some(place.name()),
        labels: Some(labels.map(|(key, value)| (key.to_owned(), value)).into()),
        ..VolumeCreateRequest::default()
    }
}

/// No network, no capability but the few named, nothing that gains any, and bounds on what it uses.
fn host(limits: &Limits, capabilities: &[&str], mounts: Vec<Mount>) -> HostConfig {
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
        // As much with swap as without: none.
        memory_swap: Some(whole(limits.memory_bytes)),
        cpu_period: Some(PERIOD),
        cpu_quota: Some(i64::from(limits.cpu_milli).saturating_mul(PERIOD / 1000)),
        pids_limit: Some(i64::from(limits.pids)),
        ulimits: Some(vec![ResourcesUlimits { name: Some("nofile".into()), soft: Some(files), hard: Some(files) }]),
        ..HostConfig::default()
    }
}

/// What the image would start by itself is not started: neither its entry point nor its health check.
fn body(image: &str, command: Vec<String>, labels: HashMap<String, String>) -> ContainerCreateBody {
    ContainerCreateBody {
        image: Some(image.to_owned()),
        entrypoint: Some(vec![WORKER.to_owned()]),
        cmd: Some(command),
        user: Some("0:0".into()),
        working_dir: Some("/".into()),
        hostname: Some("atoll".into()),
        labels: Some(labels),
        healthcheck: Some(HealthConfig { test: Some(vec!["NONE".into()]), ..HealthConfig::default() }),
        ..ContainerCreateBody::default()
    }
}

/// The sandbox itself, with the worker as its first process.
pub(super) fn sandbox(common: &Common<'_>, place: &Place, record: &Record, limits: &Limits) -> ContainerCreateBody {
    let mut labels: HashMap<String, String> = record.labels.clone().into_iter().collect();
    labels.insert(SERVER.to_owned(), common.server.to_owned());
    let environment = [
        format!("ATOLL_SANDBOX={}", place.sandbox),
        format!("ATOLL_AGENT_UID={AGENT}"),
        format!("ATOLL_LINK_DIR={LINK}"),
        format!("ATOLL_SPOOL_DIR={SPOOL}"),
        format!("ATOLL_MEMORY_LIMIT={}", limits.memory_bytes),
    ];
    let programs = common.programs.iter().map(|shown| bind(&shown.from, &format!("{PLACE}/{}", shown.at), true));
    let mounts = [
        bind(common.worker, WORKER, true),
        bind(&place.link(), LINK, false),
        bind(&place.spool(), SPOOL, false),
        workspace(place),
    ];
    let mounts = mounts.into_iter().chain(programs).collect();
    // The worker gives up the second two when it has made the agent's directories.
    let mut host = host(limits, &["SETUID", "SETGID", "KILL", "CHOWN", "SETPCAP"], mounts);
    let bounded = [("max-size", "1m"), ("max-file", "1")].map(|(key, value)| (key.to_owned(), value.to_owned()));
    host.log_config = Some(HostConfigLogConfig { typ: Some("json-file".into()), config: Some(bounded.into()) });
    ContainerCreateBody {
        env: Some(environment.into()),
        host_config: Some(host),
        ..body(&record.image, vec!["init".to_owned()], labels)
    }
}

/// Git over a sandbox's workspace, in a container of its own that ends with it. What goes through is kept nowhere.
pub(super) fn job(
    common: &Common<'_>,
    place: &Place,
    record: &Record,
    arguments: Vec<String>,
    has_input: bool,
) -> ContainerCreateBody {
    let labels = [(SERVER, common.server.to_owned()), (JOB, place.sandbox.to_string())];
    let labels = labels.map(|(key, value)| (key.to_owned(), value)).into();
    let mut command = vec!["as-agent".to_owned(), AGENT.to_string()];
    command.extend(arguments);
    let limits = Limits { memory_bytes: record.memory_bytes, ..Limits::default() };
    let mounts = vec![bind(common.worker, WORKER, true), workspace(place)];
    let mut host = host(&limits, &["SETUID", "SETGID", "CHOWN", "SETPCAP"], mounts);
    host.log_config = Some(HostConfigLogConfig { typ: Some("none".into()), config: None });
    ContainerCreateBody {
        host_config: Some(host),
        attach_stdin: Some(has_input),
        open_stdin: Some(has_input),
        stdin_once: Some(has_input),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        ..body(&record.image, command, labels)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::id::SandboxId;
    use atoll_core::provider::ProviderId;

    fn shapes() -> [ContainerCreateBody; 2] {
        let programs = [Shown { from: "/home/x/claude".into(), at: "claude/bin/claude".into() }];
        let worker = Path::new("/usr/lib/atoll/atoll-worker");
        let common = Common { server: "here", worker, programs: &programs };
        let place = Place::of(Path::new("/data/docker"), &ProviderId(SandboxId::new().to_string())).unwrap();
        let labels = [("atoll".to_owned(), "1".to_owned())].into();
        let record = Record { labels, image: "debian".into(), memory_bytes: 1 << 30 };
        let git = job(&common, &place, &record, vec!["git-diff".into()], false);
        [sandbox(&common, &place, &record, &Limits::default()), git]
    }

    #[test]
    fn every_container_is_shut_in() {
        for shape in shapes() {
            let host = shape.host_config.unwrap();
            assert_eq!(host.network_mode.as_deref(), Some("none"));
            assert_eq!(host.cap_drop.unwrap(), ["ALL"]);
            assert_eq!(host.security_opt.unwrap(), ["no-new-privileges"]);
            assert!(host.privileged.is_none() && host.binds.is_none() && host.devices.is_none());
            let named = ["SETUID", "SETGID", "KILL", "CHOWN", "SETPCAP"];
            assert!(host.cap_add.unwrap().iter().all(|name| named.contains(&name.as_str())));
            assert!(host.memory > Some(0) && host.memory == host.memory_swap && host.pids_limit > Some(0));
            assert_eq!(shape.entrypoint.unwrap(), [WORKER], "nothing of the image's own");
            assert_eq!(shape.healthcheck.unwrap().test.unwrap(), ["NONE"]);
            let writable = host.mounts.unwrap().into_iter().filter(|mount| mount.read_only != Some(true));
            for mount in writable {
                assert!([LINK, SPOOL, WORKSPACE].contains(&mount.target.as_deref().unwrap()), "{mount:?}");
            }
        }
    }

    #[test]
    fn a_job_sees_the_workspace_and_neither_link_nor_spool() {
        let [_, git] = shapes();
        let targets: Vec<_> =
            git.host_config.unwrap().mounts.unwrap().into_iter().filter_map(|one| one.target).collect();
        assert_eq!(targets, [WORKER, WORKSPACE]);
        assert_eq!(git.cmd.unwrap(), ["as-agent", "1000", "git-diff"]);
    }

    #[test]
    fn an_agents_program_is_shown_and_can_not_be_written() {
        let [sandbox, _] = shapes();
        let mounts = sandbox.host_config.unwrap().mounts.unwrap();
        let program = mounts.iter().find(|mount| mount.source.as_deref() == Some("/home/x/claude")).unwrap();
        assert_eq!(program.target.as_deref(), Some("/opt/atoll/agents/claude/bin/claude"));
        assert_eq!(program.read_only, Some(true));
    }

    #[test]
    fn only_names_of_images_are_taken_for_one() {
        for good in ["debian", "debian:stable-slim", "registry.example:5000/a/b_c@sha256:00ff"] {
            assert_eq!(check_image(good), Ok(()), "{good}");
        }
        for bad in ["", "../x", "a/../b", "a b", "a?force=1", "/x", "a//b", "-v", "a\n"] {
            assert!(check_image(bad).is_err(), "{bad:?}");
        }
    }
}
