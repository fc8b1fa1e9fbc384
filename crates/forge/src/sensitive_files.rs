//! Sensitive files: they decide what machines run or where more code comes from, so a user should review their changes
//! before a push.

/// Directories in which every file is sensitive.
const SENSITIVE_DIRECTORIES: &[&str] = &[
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

/// Lower case; `.yml` also matches `.yaml`.
const SENSITIVE_FILES: &[&str] = &[
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

/// True if the path is sensitive. Ignores case, because some file systems do.
pub fn is_sensitive(path: &str) -> bool {
    let path = path.to_lowercase().replace(".yaml", ".yml");
    let under = |directory: &str| path.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/'));
    SENSITIVE_FILES.contains(&path.as_str()) || SENSITIVE_DIRECTORIES.iter().any(|directory| under(directory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_that_machines_run_are_sensitive() {
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
            assert!(is_sensitive(path), "{path}");
        }
        for path in
            ["src/main.rs", ".github/CODEOWNERS", ".github/workflowsx", "vendor/.gitmodules", "a/Jenkinsfile", ""]
        {
            assert!(!is_sensitive(path), "{path}");
        }
    }
}
