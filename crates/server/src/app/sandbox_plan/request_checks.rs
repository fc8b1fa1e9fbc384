//! Bounds of a request for a sandbox, and of a project's defaults.

use super::agent_settings::{MAX_SYSTEM_PROMPT_BYTES, check_agent_settings};
use crate::auth::Caller;
use crate::problem::{Problem, Result};
use crate::repositories::parse_url;
use atoll_api::NewSandbox;
use atoll_core::bounds;
use atoll_core::git_settings::Publication;
use atoll_core::protected_paths;
use atoll_core::provider::Capabilities;
use atoll_core::reference::check_sandbox_name;
use atoll_core::sandbox::{Repo, Resources};
use atoll_core::sparse_checkout::normalise_sparse_dirs;
use serde_json::{Map, Value};

const MAX_MEMORY_GB: f64 = 1024.0;
const MAX_CPU: f64 = 256.0;
const MAX_DISK_GB: f64 = 10_240.0;
const MAX_PIDS: u32 = 1_000_000;
const MAX_DEPTH: u32 = 1_000_000;
const MAX_LIST_NAMES: usize = 200;

fn check_resources(resources: &Resources) -> Result<()> {
    let amounts = [
        ("resources.memory_gb", resources.memory_gb, MAX_MEMORY_GB),
        ("resources.cpu", resources.cpu, MAX_CPU),
        ("resources.disk_gb", resources.disk_gb, MAX_DISK_GB),
        ("resources.pids", resources.pids.map(f64::from), f64::from(MAX_PIDS)),
    ];
    for (field, value, most) in amounts {
        if let Some(value) = value {
            bounds::check_amount(field, value, most)?;
        }
    }
    Ok(())
}

/// Rejects resources that a request or a project names and that the provider, or this machine, does not have.
pub fn check_maximum(requested: &Resources, provider: &Capabilities) -> Result<()> {
    let amounts = [
        ("resources.memory_gb", requested.memory_gb, provider.max_memory_gb),
        ("resources.cpu", requested.cpu, provider.max_cpu),
        ("resources.disk_gb", requested.disk_gb, provider.max_disk_gb),
    ];
    for (field, value, most) in amounts {
        if let (Some(value), Some(most)) = (value, most) {
            bounds::check_amount(field, value, most)?;
        }
    }
    Ok(())
}

/// The server's own defaults on a small machine: no more than it has.
pub fn lower_to_maximum(defaults: Resources, provider: &Capabilities) -> Resources {
    let lower = |value: Option<f64>, most: Option<f64>| match (value, most) {
        (Some(value), Some(most)) => Some(value.min(most)),
        (value, _) => value,
    };
    Resources {
        memory_gb: lower(defaults.memory_gb, provider.max_memory_gb),
        cpu: lower(defaults.cpu, provider.max_cpu),
        disk_gb: lower(defaults.disk_gb, provider.max_disk_gb),
        pids: defaults.pids,
    }
}

/// Checks a repository. Only an admin on the server's machine may name a path.
pub fn check_repo(repo: &Repo, caller: &Caller) -> Result<()> {
    let may_name_paths = caller.is_admin() && caller.is_local;
    if repo.path.is_some() && !may_name_paths {
        return Err(Problem::forbidden(
            "repo.path names a directory of the server: only an admin on the same machine may",
        ));
    }
    match (&repo.url, &repo.path) {
        (Some(_), Some(_)) => return Err(Problem::invalid("repo: give `url` or `path`, not both")),
        (None, None) => return Err(Problem::invalid("repo: needs a `url` or a `path`")),
        (Some(url), None) => {
            if parse_url(url)?.is_local() && !may_name_paths {
                return Err(Problem::forbidden(
                    "repo.url names a repository of the server's machine: only an admin on the same machine may",
                ));
            }
        }
        (None, Some(path)) => bounds::check_line("repo.path", path, 4096)?,
    }
    match repo.depth {
        Some(_) if repo.path.is_some() => {
            return Err(Problem::invalid("repo.depth: needs a `url`; for a directory, use its file:// URL"));
        }
        Some(depth) => bounds::check_amount("repo.depth", f64::from(depth), f64::from(MAX_DEPTH))?,
        None => {}
    }
    if repo.target.is_some() && repo.path.is_some() {
        return Err(Problem::invalid("repo.target: needs a `url`"));
    }
    normalise_sparse_dirs("repo.sparse", &repo.sparse)?;
    for (field, name) in [("repo.base", &repo.base), ("repo.branch", &repo.branch), ("repo.target", &repo.target)] {
        if let Some(name) = name {
            bounds::check_line(field, name, 255)?;
            if name.starts_with('-') || name.contains("..") || name.contains(char::is_whitespace) {
                return Err(Problem::invalid(format!("{field}: is not a branch name")));
            }
        }
    }
    Ok(())
}

/// Checks the settings of a task's sandboxes. The task itself decides the other fields.
pub fn check_task_settings(settings: &NewSandbox, caller: &Caller) -> Result<()> {
    check_request(settings, caller)?;
    let of_task = [
        ("prompt", settings.prompt.is_some()),
        ("title", settings.title.is_some()),
        ("name", settings.name.is_some()),
        ("end", settings.end.is_some()),
        ("project_id", settings.project_id.is_some()),
        ("session_id", settings.session_id.is_some()),
        ("ticket_id", settings.ticket_id.is_some()),
        ("timeout_s", settings.timeout_s.is_some()),
        ("modes", !settings.modes.is_empty()),
    ];
    match of_task.into_iter().find(|(_, is_set)| *is_set) {
        Some((field, _)) => Err(Problem::invalid(format!("sandbox.{field}: the task decides this field"))),
        None => Ok(()),
    }
}

pub fn check_request(new: &NewSandbox, caller: &Caller) -> Result<()> {
    let lines = [
        ("agent", &new.agent),
        ("model", &new.model),
        ("image", &new.image),
        ("snapshot", &new.snapshot),
        ("title", &new.title),
    ];
    for (field, value) in lines {
        if let Some(value) = value {
            bounds::check_line(field, value, bounds::MAX_TITLE_CHARS)?;
        }
    }
    if let Some(name) = &new.name {
        check_sandbox_name("name", name)?;
    }
    if let Some(prompt) = &new.prompt {
        bounds::check_content("prompt", prompt, bounds::MAX_PROMPT_BYTES)?;
    }
    if let Some(text) = &new.system_prompt {
        bounds::check_content("system_prompt", text, MAX_SYSTEM_PROMPT_BYTES)?;
    }
    if new.timeout_s == Some(0) {
        return Err(Problem::invalid("timeout_s: must be above 0"));
    }
    for name in new.secrets.iter().flatten() {
        atoll_core::secret::check_secret_name("secrets", name)?;
    }
    for (field, names) in [("tools", &new.tools), ("secrets", &new.secrets)] {
        for name in names.iter().flatten() {
            bounds::check_line(field, name, bounds::MAX_NAME_CHARS)?;
        }
        if names.as_ref().is_some_and(|names| names.len() > MAX_LIST_NAMES) {
            return Err(Problem::invalid(format!("{field}: at most {MAX_LIST_NAMES}")));
        }
    }
    if let Some(mcp) = &new.mcp {
        let text = serde_json::to_string(mcp).map_err(Problem::internal)?;
        bounds::check_event_data(&text).map_err(|error| Problem::invalid(format!("mcp: {}", error.detail)))?;
    }
    check_agent_settings(new)?;
    bounds::check_labels(&new.labels)?;
    bounds::check_env(&new.env)?;
    protected_paths::join_protected_paths("protected", &new.protected)?;
    if let Some(resources) = &new.resources {
        check_resources(resources)?;
    }
    if let Some(limits) = &new.limits {
        limits.check_bounds("limits")?;
    }
    if let Some(policy) = &new.policy {
        policy.check_bounds("policy")?;
    }
    if let Some(guardian) = &new.guardian {
        guardian.check_bounds("guardian")?;
    }
    if let Some(health) = &new.health {
        health.check_bounds("health")?;
    }
    if let Some(network) = &new.network {
        crate::app::network::check_network(network)?;
    }
    if let Some(setup) = &new.setup {
        setup.check_bounds()?;
        setup.network.as_ref().map_or(Ok(()), crate::app::network::check_network)?;
    }
    check_publication(new)?;
    atoll_core::service::check_services(new.services.as_deref().unwrap_or_default())?;
    new.repo.as_ref().map_or(Ok(()), |repo| check_repo(repo, caller))
}

/// Rejects a publication that the request's own repository does not allow. A project's setting has no effect on a directory.
fn check_publication(new: &NewSandbox) -> Result<()> {
    let git = new.git.unwrap_or_default();
    let publishes = git.publish.is_some_and(|publish| publish != Publication::None);
    if publishes && new.repo.as_ref().is_some_and(|repo| repo.path.is_some()) {
        return Err(Problem::invalid("git.publish: needs repo.url; the branch of a directory stays in the directory"));
    }
    if git.merge == Some(true) && git.publish.is_some_and(|publish| publish != Publication::PullRequest) {
        return Err(Problem::invalid("git.merge: needs `git.publish: pull_request`"));
    }
    Ok(())
}

/// Checks a project's defaults: a request without the fields that belong to one sandbox.
pub fn check_defaults(defaults: &Map<String, Value>, caller: &Caller) -> Result<()> {
    let parsed: NewSandbox = serde_json::from_value(defaults.clone().into())
        .map_err(|error| Problem::invalid(format!("defaults: {error}")))?;
    for (field, is_set) in [
        ("prompt", parsed.prompt.is_some()),
        ("title", parsed.title.is_some()),
        ("name", parsed.name.is_some()),
        ("session_id", parsed.session_id.is_some()),
        ("ticket_id", parsed.ticket_id.is_some()),
        ("project_id", parsed.project_id.is_some()),
    ] {
        if is_set {
            return Err(Problem::invalid(format!("defaults: `{field}` is not a default")));
        }
    }
    check_request(&parsed, caller)
}

/// Checks a project's repository.
pub fn check_default_repo(repo: Option<&Repo>, caller: &Caller) -> Result<()> {
    repo.map_or(Ok(()), |repo| check_repo(repo, caller))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Capabilities =
        Capabilities { max_memory_gb: Some(2.0), max_cpu: Some(1.0), max_disk_gb: Some(9.5), ..Capabilities::NONE };

    #[test]
    fn resources_above_the_machine_are_refused_with_its_maximum() {
        let requested = |memory_gb, cpu, disk_gb| Resources { memory_gb, cpu, disk_gb, pids: None };
        check_maximum(&requested(Some(2.0), Some(1.0), None), &SMALL).unwrap();
        for (resources, sentence) in [
            (requested(Some(2.1), None, None), "resources.memory_gb: is 2.1; the provider's maximum is 2"),
            (requested(None, Some(8.0), None), "resources.cpu: is 8; the provider's maximum is 1"),
            (requested(None, None, Some(10.0)), "resources.disk_gb: is 10; the provider's maximum is 9.5"),
        ] {
            let refused = check_maximum(&resources, &SMALL).unwrap_err();
            assert_eq!((refused.code.status(), refused.detail.as_str()), (422, sentence));
        }
        check_maximum(&requested(Some(900.0), None, None), &Capabilities::NONE).unwrap();
    }

    #[test]
    fn the_servers_defaults_fit_a_small_machine() {
        let defaults = Resources { memory_gb: Some(4.0), cpu: Some(2.0), disk_gb: Some(8.0), pids: Some(7) };
        let fitting = Resources { memory_gb: Some(2.0), cpu: Some(1.0), ..defaults };
        assert_eq!(lower_to_maximum(defaults, &SMALL), fitting);
        assert_eq!(lower_to_maximum(defaults, &Capabilities::NONE), defaults);
    }
}
