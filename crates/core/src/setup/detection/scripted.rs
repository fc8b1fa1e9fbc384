//! bundler and composer.

use super::{DetectedProject, ProjectDirectory};

pub(super) fn detect_ruby(project: &ProjectDirectory<'_>) -> Option<DetectedProject> {
    detect_by_lock(project, ["Gemfile", "Gemfile.lock"], &["bundle", "install"], &["bundle", "ruby"])
}

pub(super) fn detect_php(project: &ProjectDirectory<'_>) -> Option<DetectedProject> {
    detect_by_lock(project, ["composer.json", "composer.lock"], &["composer", "install", "-n"], &["composer", "php"])
}

/// Without a lock file the command would write one into the workspace, so there is no step.
fn detect_by_lock(
    project: &ProjectDirectory<'_>,
    [manifest, lock]: [&str; 2],
    command: &[&str],
    tools: &[&str],
) -> Option<DetectedProject> {
    if !project.has(manifest) {
        return None;
    }
    if !project.has(lock) {
        let (manifest, command) = (project.path(manifest), command.join(" "));
        return DetectedProject::without_steps(format!(
            "{manifest} has no {lock}, so set-up does not install its packages: run `{command}` and commit {lock}."
        ));
    }
    DetectedProject::with_lock(project.step(command, project.path(lock), tools), Vec::new())
}
