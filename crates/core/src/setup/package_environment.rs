//! The environment of package managers in a sandbox: the same for set-up and agent, so that the agent finds what set-up
//! installed.

use super::{SetupCommand, SetupPlan};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Variables of set-up only: the agent may update lock files.
pub const SETUP_VARIABLES: &[(&str, &str)] = &[
    ("CI", "1"),
    ("BUNDLE_FROZEN", "1"),
    ("DEBIAN_FRONTEND", "noninteractive"),
    // npm's default. With the agents' value, which ends npm in a closed network, downloads take twice as long; set-up
    // ends by itself when a host is refused.
    ("npm_config_maxsockets", "15"),
];

/// Cache directories, relative to the cache directory.
const CACHE_DIRECTORIES: &[(&str, &str)] = &[
    ("npm_config_cache", "npm"),
    ("pnpm_config_store_dir", "pnpm"),
    ("YARN_GLOBAL_FOLDER", "yarn-berry"),
    ("BUN_INSTALL_CACHE_DIR", "bun"),
    ("UV_CACHE_DIR", "uv"),
    ("PIP_CACHE_DIR", "pip"),
    ("POETRY_CACHE_DIR", "poetry"),
    ("PIPENV_CACHE_DIR", "pipenv"),
    ("CARGO_HOME", "cargo"),
    ("GOMODCACHE", "go-mod"),
    ("GOCACHE", "go-build"),
    ("COMPOSER_HOME", "composer"),
    ("GRADLE_USER_HOME", "gradle"),
];

const SETTINGS: &[(&str, &str)] = &[
    // `/workspace` and the cache are two mounts, so hard links between them fail.
    ("UV_LINK_MODE", "copy"),
    // Otherwise pnpm 12 fails if a dependency has a build script that the project did not approve.
    ("pnpm_config_strict_dep_builds", "false"),
    ("PIP_DISABLE_PIP_VERSION_CHECK", "1"),
    ("PIP_NO_INPUT", "1"),
    // Otherwise the virtual environment is in the home, where no editor or test finds it.
    ("POETRY_VIRTUALENVS_IN_PROJECT", "1"),
    ("POETRY_NO_INTERACTION", "1"),
    ("PIPENV_VENV_IN_PROJECT", "1"),
    // Go would download another toolchain from a host that serves arbitrary content.
    ("GOTOOLCHAIN", "local"),
    // Otherwise Go's module cache cannot be removed without a chmod.
    ("GOFLAGS", "-modcacherw"),
    ("BUNDLE_PATH", "vendor/bundle"),
    ("COMPOSER_NO_INTERACTION", "1"),
    // A daemon would outlive its command.
    ("GRADLE_OPTS", "-Dorg.gradle.daemon=false"),
];

/// Locations that the variables name.
#[derive(Debug, Clone, Copy)]
pub struct PackageEnvironment<'a> {
    /// Absolute path of the directory of download caches in the sandbox.
    pub cache_dir: &'a str,
    /// The egress proxy in the sandbox.
    pub proxy: Option<SocketAddr>,
}

impl PackageEnvironment<'_> {
    /// The variables of set-up and agent. A caller lets the plan's and the user's variables override them.
    pub fn variables(&self, plan: Option<&SetupPlan>) -> BTreeMap<String, String> {
        let cached = CACHE_DIRECTORIES.iter().map(|(name, directory)| ((*name).to_owned(), self.cache_path(directory)));
        let fixed = SETTINGS.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let mut variables: BTreeMap<_, _> = cached.chain(fixed).collect();
        variables.insert("MAVEN_OPTS".to_owned(), format!("-Dmaven.repo.local={}", self.cache_path("maven")));
        if let Some(proxy) = self.proxy {
            let url = format!("http://{proxy}");
            variables.extend(["YARN_HTTP_PROXY", "YARN_HTTPS_PROXY"].map(|name| (name.to_owned(), url.clone())));
            let (host, port) = (proxy.ip(), proxy.port());
            let java =
                ["http", "https"].map(|scheme| format!("-D{scheme}.proxyHost={host} -D{scheme}.proxyPort={port}"));
            variables.insert("JAVA_TOOL_OPTIONS".to_owned(), java.join(" "));
        }
        // Only where pnpm runs: npm warns about a setting that it does not know.
        if plan.is_some_and(|plan| plan.tools().contains(&"pnpm")) {
            variables.insert("npm_config_store_dir".to_owned(), self.cache_path("pnpm"));
        }
        // Yarn 2 and newer may have its cache in the repository.
        if plan.is_some_and(runs_classic_yarn) {
            variables.insert("YARN_CACHE_FOLDER".to_owned(), self.cache_path("yarn"));
        }
        variables
    }

    fn cache_path(&self, directory: &str) -> String {
        format!("{}/{directory}", self.cache_dir.trim_end_matches('/'))
    }
}

fn runs_classic_yarn(plan: &SetupPlan) -> bool {
    plan.steps.iter().any(|step| match &step.command {
        SetupCommand::Argv(argv) => {
            argv.first().is_some_and(|program| program == "yarn") && !argv.iter().any(|word| word == "--immutable")
        }
        SetupCommand::Shell(_) => false,
    })
}
