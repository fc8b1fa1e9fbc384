//! The flags of a sandbox's files, environment and resources.

use crate::arguments::{parse_pair, parse_repository, parse_word, provider_parser};
use crate::failure::{Failure, Result};
use atoll_core::health::{HealthSettings, IdleAction, RestartMode};
use atoll_core::sandbox::{IsolationTier, ProviderKind, Repo, Resources};
use atoll_core::setup::SetupRequest;
use std::path::{Path, PathBuf};

#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Sandbox")]
pub struct SandboxFlags {
    /// Git repository: a directory of the server's machine, or a URL [default: that of this directory]
    #[arg(long, value_name = "PATH|URL")]
    pub repo: Option<PathBuf>,
    /// Start from this commit, branch or tag of the repository
    #[arg(long, value_name = "COMMIT")]
    pub base: Option<String>,
    /// Number of commits of the history, for a URL [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub depth: Option<u32>,
    /// Fill the submodules of the repository
    #[arg(long)]
    pub submodules: bool,
    /// Fetch the files of large-file storage (LFS)
    #[arg(long)]
    pub lfs: bool,
    /// Check out only this directory (repeatable) [default: all]
    #[arg(long, value_name = "DIR")]
    pub sparse: Vec<String>,
    /// Name of the result branch [default: from the title]
    #[arg(long, value_name = "NAME")]
    pub branch: Option<String>,
    /// Remote branch that a pull request is merged into, for a URL [default: the base, or the default branch]
    #[arg(long, value_name = "BRANCH")]
    pub target: Option<String>,
    /// Export the results at the end [default: as the mode says]
    #[arg(long, value_name = "BOOL")]
    pub deliver: Option<bool>,
    /// Protect a path of the workspace from changes (repeatable)
    #[arg(long = "protect", value_name = "PATH")]
    pub protected: Vec<String>,
    /// Run this command before the agent starts (repeatable) [default: what the project or its repository needs]
    #[arg(long = "setup", value_name = "COMMAND", conflicts_with = "no_setup")]
    setup: Vec<String>,
    /// Start the agent without the project's set-up
    #[arg(long)]
    no_setup: bool,
    /// Provider of the sandbox [default: provider.default]
    #[arg(long, value_name = "NAME", value_parser = provider_parser())]
    pub provider: Option<ProviderKind>,
    /// Start from this image
    #[arg(long, value_name = "NAME")]
    pub image: Option<String>,
    /// Start from this snapshot
    #[arg(long, value_name = "NAME")]
    pub snapshot: Option<String>,
    /// Require this isolation tier: standard or strong
    #[arg(long, value_name = "TIER", value_parser = parse_word::<IsolationTier>)]
    pub isolation: Option<IsolationTier>,
    /// Set an environment variable (repeatable)
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = parse_pair)]
    pub env: Vec<(String, String)>,
    /// Allow a secret, by name (repeatable)
    #[arg(long = "secret", value_name = "NAME")]
    pub secrets: Vec<String>,
    /// Add a label (repeatable)
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub labels: Vec<(String, String)>,
    /// Memory limit, in GiB
    #[arg(long, value_name = "GiB")]
    memory: Option<f64>,
    /// Processor limit
    #[arg(long, value_name = "N")]
    cpu: Option<f64>,
    /// Disk limit, in GiB
    #[arg(long, value_name = "GiB")]
    disk: Option<f64>,
    /// Limit on the number of processes
    #[arg(long, value_name = "N")]
    pids: Option<u32>,
    /// Stop after this many seconds
    #[arg(long, alias = "timeout-s", value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    pub timeout: Option<u32>,
    /// Provider to use while the other one fails
    #[arg(long, value_name = "NAME", value_parser = provider_parser())]
    pub fallback_provider: Option<ProviderKind>,
    /// Time without work after which a waiting sandbox is idle; 0 is never [default: health.idle_after]
    #[arg(long, value_name = "SECONDS")]
    idle_after: Option<u32>,
    /// What happens to an idle sandbox: pause, end or keep [default: health.idle_action]
    #[arg(long, value_name = "ACTION", value_parser = parse_word::<IdleAction>)]
    idle_action: Option<IdleAction>,
    /// What follows a failure with unfinished work: never or on_failure [default: health.restart]
    #[arg(long, value_name = "MODE", value_parser = parse_word::<RestartMode>)]
    restart: Option<RestartMode>,
}

impl SandboxFlags {
    /// The repository of `--repo` or the default one.
    pub fn repository(&self, default: Option<&Path>) -> Result<Option<Repo>> {
        let Some(directory) = self.repo.as_deref().or(default) else {
            let has_repository_flag = self.base.is_some()
                || self.branch.is_some()
                || self.depth.is_some()
                || self.target.is_some()
                || self.submodules
                || self.lfs
                || !self.sparse.is_empty();
            if has_repository_flag {
                return Err(Failure::input(
                    "--base, --branch, --depth, --target, --submodules, --lfs and --sparse need a repository",
                )
                .with_hint("Name it with --repo PATH|URL, or run the command in it."));
            }
            return Ok(None);
        };
        let Self { base, branch, target, depth, submodules, lfs, sparse, .. } = self;
        Ok(Some(Repo {
            base: base.clone(),
            branch: branch.clone(),
            target: target.clone(),
            depth: *depth,
            submodules: *submodules,
            lfs: *lfs,
            sparse: sparse.clone(),
            ..parse_repository(directory)?
        }))
    }

    /// The settings of health; `None` without any flag.
    pub fn health(&self) -> Option<HealthSettings> {
        let settings = HealthSettings {
            idle_after_s: self.idle_after,
            idle_action: self.idle_action,
            restart: self.restart,
            stalled_after_s: None,
        };
        (settings != HealthSettings::default()).then_some(settings)
    }

    /// The set-up of the request; `None` without any flag.
    pub fn setup(&self) -> Option<SetupRequest> {
        if self.no_setup {
            return Some(SetupRequest::disabled());
        }
        let commands = Some(self.setup.clone()).filter(|commands| !commands.is_empty())?;
        Some(SetupRequest { commands: Some(commands), ..SetupRequest::default() })
    }

    /// The resources of the request; `None` without any flag.
    pub fn resources(&self) -> Option<Resources> {
        let resources = Resources { memory_gb: self.memory, cpu: self.cpu, disk_gb: self.disk, pids: self.pids };
        (resources != Resources::default()).then_some(resources)
    }
}
