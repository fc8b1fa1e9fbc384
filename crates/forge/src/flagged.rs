//! Files whose change deserves a second look before anything is pushed: they decide what machines
//! run, or where more code comes from.

/// Directories of which every file counts.
const DIRECTORIES: &[&str] = &[
    ".azure-pipelines",
    ".buildkite",
    ".circleci",
    ".forgejo/workflows",
    ".gitea/workflows",
    ".github/actions",
    ".github/workflows",
    ".gitlab/ci",
    ".semaphore",
    ".teamcity",
    ".woodpecker",
];

/// In lower case, and `.yml` also means `.yaml`.
const FILES: &[&str] = &[
    ".appveyor.yml",
    ".cirrus.star",
    ".cirrus.yml",
    ".drone.jsonnet",
    ".drone.star",
    ".drone.yml",
    ".gitlab-ci.yml",
    ".gitmodules",
    ".travis.yml",
    ".woodpecker.yml",
    "appveyor.yml",
    "azure-pipelines.yml",
    "bitbucket-pipelines.yml",
    "buildspec.yml",
    "cloudbuild.yml",
    "jenkinsfile",
];

/// Whether a changed path is one of these. The case of letters does not matter: some systems that
/// check the repository out do not tell them apart.
pub fn is_flagged(path: &str) -> bool {
    let path = path.to_lowercase().replace(".yaml", ".yml");
    let under = |directory: &str| path.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/'));
    FILES.contains(&path.as_str()) || DIRECTORIES.iter().any(|directory| under(directory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_machines_run_is_flagged_and_nothing_else() {
        for path in [
            ".gitmodules",
            ".GitModules",
            ".github/workflows/test.yml",
            ".github/actions/a/action.yaml",
            ".gitlab-ci.yml",
            ".drone.yaml",
            "Jenkinsfile",
            ".circleci/config.yml",
            "cloudbuild.yaml",
        ] {
            assert!(is_flagged(path), "{path}");
        }
        for path in
            ["src/main.rs", ".github/CODEOWNERS", ".github/workflowsx", "vendor/.gitmodules", "a/Jenkinsfile", ""]
        {
            assert!(!is_flagged(path), "{path}");
        }
    }
}
