//! npm, pnpm, yarn and bun.

use super::{DetectedProject, ProjectDirectory};
use serde_json::Value;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PackageManager {
    Npm,
    Pnpm,
    YarnClassic,
    /// Yarn 2 and newer.
    YarnBerry,
    Bun,
}

impl PackageManager {
    const fn program(self) -> &'static str {
        match self {
            Self::Npm => "npm",
            Self::Pnpm => "pnpm",
            Self::YarnClassic | Self::YarnBerry => "yarn",
            Self::Bun => "bun",
        }
    }

    const fn lock_files(self) -> &'static [&'static str] {
        match self {
            Self::Npm => &["package-lock.json", "npm-shrinkwrap.json"],
            Self::Pnpm => &["pnpm-lock.yaml"],
            Self::YarnClassic | Self::YarnBerry => &["yarn.lock"],
            Self::Bun => &["bun.lock", "bun.lockb"],
        }
    }

    const fn locked_command(self) -> &'static [&'static str] {
        match self {
            Self::Npm => &["npm", "ci"],
            Self::Pnpm => &["pnpm", "install", "--frozen-lockfile"],
            Self::YarnClassic => &["yarn", "install", "--frozen-lockfile"],
            Self::YarnBerry => &["yarn", "install", "--immutable"],
            Self::Bun => &["bun", "install", "--frozen-lockfile"],
        }
    }

    /// Installs without writing a lock file, where the program can.
    const fn unlocked_command(self) -> Option<&'static [&'static str]> {
        match self {
            Self::Npm => Some(&["npm", "install", "--no-package-lock"]),
            Self::Pnpm => Some(&["pnpm", "install", "--no-lockfile"]),
            Self::YarnClassic => Some(&["yarn", "install", "--no-lockfile"]),
            Self::YarnBerry => None,
            Self::Bun => Some(&["bun", "install", "--no-save"]),
        }
    }

    const fn tools(self) -> &'static [&'static str] {
        match self {
            Self::Npm => &["node", "npm"],
            Self::Pnpm => &["node", "pnpm"],
            Self::YarnClassic | Self::YarnBerry => &["node", "yarn"],
            Self::Bun => &["bun"],
        }
    }
}

/// In order of precedence: a stray package-lock.json is the most common leftover.
const BY_LOCK_FILE: &[PackageManager] =
    &[PackageManager::Pnpm, PackageManager::YarnClassic, PackageManager::Bun, PackageManager::Npm];

pub(super) fn detect_javascript(project: &ProjectDirectory<'_>) -> Option<DetectedProject> {
    let manifest_path = project.path("package.json");
    if !project.has("package.json") {
        return None;
    }
    let manifest: Value =
        project.text("package.json").and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let mut notes = Vec::new();
    if !manifest.is_object() {
        notes.push(format!("{manifest_path} is not a valid JSON object."));
    }
    let field = manifest.get("packageManager").and_then(Value::as_str).unwrap_or_default();
    let named = parse_package_manager(field);
    let locked: Vec<_> =
        BY_LOCK_FILE.iter().copied().filter(|it| project.find_first(it.lock_files()).is_some()).collect();
    let is_berry =
        project.has(".yarnrc.yml") || project.text("yarn.lock").is_some_and(|lock| lock.contains("__metadata:"));
    let by_lock = locked.first().copied().map(|manager| {
        if manager == PackageManager::YarnClassic && is_berry { PackageManager::YarnBerry } else { manager }
    });
    let manager = named.or(by_lock).unwrap_or(PackageManager::Npm);
    if named.is_none() && locked.len() > 1 {
        let others = locked.iter().skip(1).map(|manager| manager.program()).collect::<Vec<_>>().join(" and ");
        notes.push(format!(
            "{manifest_path} has lock files of {} and of {others}; set-up uses {}. Name one in `packageManager`.",
            manager.program(),
            manager.program()
        ));
    }
    let because = if named.is_some() { format!("`packageManager` in {manifest_path}") } else { String::new() };
    if let Some(lock) = project.find_first(manager.lock_files()) {
        let lock = project.path(lock);
        let reason = if because.is_empty() { lock } else { format!("{because}; {lock}") };
        return DetectedProject::with_lock(project.step(manager.locked_command(), reason, manager.tools()), notes);
    }
    if !has_packages(&manifest) {
        return None;
    }
    let Some(command) = manager.unlocked_command() else {
        return DetectedProject::without_steps(format!(
            "{manifest_path} has no yarn.lock, so set-up does not install its packages: run `yarn install` and commit yarn.lock."
        ));
    };
    notes.push(format!(
        "{manifest_path} has no lock file of {}, so the versions of its packages can change: commit one.",
        manager.program()
    ));
    let reason = if because.is_empty() { manifest_path } else { because };
    DetectedProject::without_lock(project.step(command, reason, manager.tools()), notes)
}

/// Parses `name@version+hash`.
fn parse_package_manager(field: &str) -> Option<PackageManager> {
    let (name, version) = field.split_once('@').unwrap_or((field, ""));
    match name {
        "npm" => Some(PackageManager::Npm),
        "pnpm" => Some(PackageManager::Pnpm),
        "bun" => Some(PackageManager::Bun),
        "yarn" if version.starts_with("1.") || version == "1" => Some(PackageManager::YarnClassic),
        "yarn" => Some(PackageManager::YarnBerry),
        _ => None,
    }
}

fn has_packages(manifest: &Value) -> bool {
    let is_filled = |value: &Value| match value {
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    };
    let fields = ["dependencies", "devDependencies", "optionalDependencies", "workspaces"];
    fields.iter().any(|field| manifest.get(field).is_some_and(is_filled))
}
