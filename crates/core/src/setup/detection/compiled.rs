//! cargo, go, maven and gradle.

use super::{DetectedProject, LockFile, ProjectDirectory};

pub(super) fn detect_rust(project: &ProjectDirectory<'_>) -> Option<DetectedProject> {
    let (manifest, tools) = (project.has("Cargo.toml").then(|| project.path("Cargo.toml"))?, ["cargo", "rustc"]);
    if project.has("Cargo.lock") {
        let step = project.step(&["cargo", "fetch", "--locked"], project.path("Cargo.lock"), &tools);
        return DetectedProject::with_lock(step, Vec::new());
    }
    let note = format!("{manifest} has no Cargo.lock, so the versions of its packages can change: cargo writes one.");
    DetectedProject::without_lock(project.step(&["cargo", "fetch"], manifest, &tools), vec![note])
}

/// A module without go.sum has no dependencies.
pub(super) fn detect_go(project: &ProjectDirectory<'_>) -> Option<DetectedProject> {
    if !(project.has("go.mod") && project.has("go.sum")) {
        return None;
    }
    DetectedProject::with_lock(project.step(&["go", "mod", "download"], project.path("go.sum"), &["go"]), Vec::new())
}

/// Maven and Gradle fetch all their plugins only when they build.
pub(super) fn detect_java(project: &ProjectDirectory<'_>) -> Option<DetectedProject> {
    const GRADLE: &[&str] = &["build.gradle", "build.gradle.kts", "settings.gradle", "settings.gradle.kts"];
    let (manifest, [wrapper, program], arguments): (_, _, &[&str]) = if project.has("pom.xml") {
        ("pom.xml", ["./mvnw", "mvn"], &["-B", "-DskipTests", "verify"])
    } else {
        (project.find_first(GRADLE)?, ["./gradlew", "gradle"], &["--no-daemon", "testClasses"])
    };
    // By `sh`, because the project's wrapper may lack its executable bit.
    let (mut command, tools) = if project.has(wrapper.trim_start_matches("./")) {
        (vec!["sh", wrapper], vec!["java"])
    } else {
        (vec![program], vec!["java", program])
    };
    command.extend(arguments);
    let steps = vec![project.step(&command, project.path(manifest), &tools)];
    let lock = if project.has("gradle.lockfile") { LockFile::Present } else { LockFile::NotUsed };
    Some(DetectedProject { steps, lock, has_fixed_versions: true, notes: Vec::new() })
}
