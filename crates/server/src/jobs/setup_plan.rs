//! Plans the set-up of a new sandbox from its request, its project and its repository.

use crate::gateway::registry_addresses;
use crate::problem::Result;
use crate::repositories;
use crate::state::App;
use atoll_api::NewSandbox;
use atoll_core::provider::{PACKAGE_CACHE_DIR, RepositorySource};
use atoll_core::registry::{ToolFile, ToolSettings, tool_settings};
use atoll_core::sandbox::Repo;
use atoll_core::setup::{
    PackageEnvironment, RepositoryFiles, SETUP_VARIABLES, SetupError, SetupPlan, SetupRequest, plan_setup,
};
use atoll_core::setup_phase::SetupEnvironment;
use atoll_store::sandboxes::SandboxRow;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// A set-up that runs in a new sandbox.
#[derive(Debug, Clone)]
pub(super) struct PlannedSetup {
    pub plan: SetupPlan,
    /// The repository's files that set-up depends on.
    pub files: RepositoryFiles,
    pub environment: SetupEnvironment,
    /// Variables of the commands.
    pub variables: BTreeMap<String, String>,
    /// Files with which tools use the configured registries.
    pub tool_files: Vec<ToolFile>,
    pub time_limit: Duration,
}

/// The decision about a sandbox's set-up.
#[derive(Debug)]
pub(super) enum SetupDecision {
    Planned(Box<PlannedSetup>),
    /// There is none, with the reason if a user may not expect it.
    Skipped(Option<String>),
    /// There are no commands, but variables for the agent.
    VariablesOnly(SetupEnvironment, Option<String>),
    /// The repository's own files are unusable.
    Unusable(SetupError),
}

/// Settings of set-up from the project's defaults and the request, which wins.
struct SetupSettings<'a> {
    request: Option<&'a SetupRequest>,
    project: Option<&'a SetupRequest>,
    merged: SetupRequest,
}

impl<'a> SetupSettings<'a> {
    fn new(request: Option<&'a SetupRequest>, project: Option<&'a SetupRequest>) -> Self {
        let merged = request.cloned().unwrap_or_default().or(project.cloned());
        Self { request, project, merged }
    }

    /// Why set-up is off; `None` if it is on. Commands turn it on unless the request or the project turns it off.
    fn reason_off(&self, config: &atoll_config::Setup) -> Option<String> {
        let is_off = |settings: Option<&SetupRequest>| settings.and_then(|settings| settings.enabled).map(|on| !on);
        let reason = match (is_off(self.request), is_off(self.project)) {
            (Some(false), _) | (None, Some(false)) => return None,
            (Some(true), _) => "the request turns set-up off",
            (None, Some(true)) => "the project turns set-up off",
            (None, None) if config.enabled || self.merged.commands.is_some() => return None,
            (None, None) => "the server's configuration turns set-up off (setup.enabled)",
        };
        Some(reason.to_owned())
    }
}

/// Decides about the set-up of a sandbox whose repository is packed. A fork has its parent's files.
pub(super) async fn decide_setup(
    app: &App,
    sandbox: &SandboxRow,
    defaults: &NewSandbox,
    source: Option<&RepositorySource>,
) -> Result<SetupDecision> {
    if sandbox.settings.forked_from.is_some() {
        return Ok(SetupDecision::Skipped(None));
    }
    let settings = SetupSettings::new(sandbox.settings.setup.as_ref(), defaults.setup.as_ref());
    if source.is_none() && settings.merged.commands.is_none() {
        return Ok(SetupDecision::Skipped(None));
    }
    if let Some(reason) = settings.reason_off(&app.config.setup) {
        return Ok(SetupDecision::Skipped(Some(reason)));
    }
    let files = read_files(app, sandbox.settings.repo.as_ref(), source).await?;
    let plan = match plan_setup(settings.request, settings.project, &files) {
        Ok(plan) => plan,
        Err(error) => return Ok(SetupDecision::Unusable(error)),
    };
    let Some(plan) = plan else { return Ok(SetupDecision::Skipped(None)) };
    if plan.steps.is_empty() {
        let reason = Some(plan.notes.join("; ")).filter(|notes| !notes.is_empty());
        let environment = SetupEnvironment { variables: plan.env, network: None };
        return Ok(SetupDecision::VariablesOnly(environment, reason));
    }
    let ToolSettings { variables: registries, files: tool_files } =
        tool_settings(&registry_addresses(&app.config.registries));
    let (environment, mut variables) = build_environment(app, sandbox, &settings.merged, &plan);
    for (name, value) in registries {
        variables.entry(name.to_owned()).or_insert(value);
    }
    let time_limit = app.config.setup.time_limit(settings.merged.timeout_s);
    let planned = PlannedSetup { plan, files, environment, variables, tool_files, time_limit };
    Ok(SetupDecision::Planned(Box::new(planned)))
}

async fn read_files(app: &App, repo: Option<&Repo>, source: Option<&RepositorySource>) -> Result<RepositoryFiles> {
    match (repo, source) {
        (Some(repo), Some(source)) => {
            let mut files = repositories::read_setup_files(app, repo, source.commit.clone()).await?;
            files.retain_checked_out(&repo.sparse);
            Ok(files)
        }
        _ => Ok(RepositoryFiles::default()),
    }
}

/// The environment of set-up and agent, and the variables of the commands. The user's variables win.
fn build_environment(
    app: &App,
    sandbox: &SandboxRow,
    settings: &SetupRequest,
    plan: &SetupPlan,
) -> (SetupEnvironment, BTreeMap<String, String>) {
    let proxy = Some(SocketAddr::from((Ipv4Addr::LOCALHOST, atoll_protocol::PROXY_PORT)));
    let packages = PackageEnvironment { cache_dir: PACKAGE_CACHE_DIR, proxy };
    let mut shared = packages.variables(Some(plan));
    shared.extend(plan.env.clone());
    let mut variables = shared.clone();
    variables.extend(SETUP_VARIABLES.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    variables.extend(sandbox.settings.env.clone());
    let network = settings.network.clone().unwrap_or_else(|| app.config.setup.network_policy());
    (SetupEnvironment { variables: shared, network: Some(network) }, variables)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(enabled: Option<bool>, commands: Option<&[&str]>) -> SetupRequest {
        let commands = commands.map(|commands| commands.iter().map(|command| (*command).to_owned()).collect());
        SetupRequest { enabled, commands, ..SetupRequest::default() }
    }

    #[test]
    fn the_request_wins_over_the_project_and_the_configuration() {
        let (on, off) = (atoll_config::Setup::default(), atoll_config::Setup { enabled: false, ..Default::default() });
        let none = request(None, None);
        let reason = |request: &SetupRequest, project: &SetupRequest, config: &atoll_config::Setup| {
            SetupSettings::new(Some(request), Some(project)).reason_off(config)
        };
        assert_eq!(reason(&none, &none, &on), None);
        assert!(reason(&none, &none, &off).unwrap().contains("setup.enabled"));
        assert_eq!(reason(&request(None, Some(&["make"])), &none, &off), None, "commands turn it on");
        assert_eq!(reason(&request(Some(true), None), &request(Some(false), None), &off), None);
        let refused = reason(&request(Some(false), None), &request(None, Some(&["make"])), &on);
        assert_eq!(refused.as_deref(), Some("the request turns set-up off"));
        let refused = reason(&none, &request(Some(false), None), &on);
        assert_eq!(refused.as_deref(), Some("the project turns set-up off"));
    }
}
