//! Checks of the crates' dependencies and of the files' sizes.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// The workspace crates that each crate may depend on.
const ALLOWED_DEPENDENCIES: &[(&str, &[&str])] = &[
    ("atoll-core", &[]),
    ("atoll-jail", &[]),
    ("atoll-forge", &["atoll-core", "atoll-trees"]),
    ("atoll-forges", &["atoll-core"]),
    ("atoll-test-wait", &[]),
    ("atoll-trees", &[]),
    ("atoll-watch", &[]),
    ("atoll-agents", &["atoll-core", "atoll-trees"]),
    ("atoll-api", &["atoll-core"]),
    ("atoll-client", &["atoll-api", "atoll-core"]),
    ("atoll-protocol", &["atoll-core"]),
    ("atoll-config", &["atoll-core"]),
    ("atoll-drivers", &["atoll-api", "atoll-core", "atoll-protocol"]),
    ("atoll-spool", &["atoll-core", "atoll-protocol"]),
    ("atoll-dispatcher", &["atoll-api", "atoll-core", "atoll-drivers", "atoll-protocol", "atoll-spool"]),
    ("atoll-store", &["atoll-core"]),
    ("atoll-model-script", &["atoll-config"]),
    (
        "atoll-providers",
        &[
            "atoll-api",
            "atoll-core",
            "atoll-dispatcher",
            "atoll-drivers",
            "atoll-jail",
            "atoll-protocol",
            "atoll-spool",
        ],
    ),
    (
        "atoll-worker",
        &[
            "atoll-api",
            "atoll-core",
            "atoll-dispatcher",
            "atoll-drivers",
            "atoll-forge",
            "atoll-jail",
            "atoll-protocol",
            "atoll-spool",
            "atoll-trees",
            "atoll-watch",
        ],
    ),
    (
        "atoll-server",
        &[
            "atoll-agents",
            "atoll-api",
            "atoll-config",
            "atoll-core",
            "atoll-drivers",
            "atoll-forge",
            "atoll-forges",
            "atoll-jail",
            "atoll-protocol",
            "atoll-providers",
            "atoll-spool",
            "atoll-store",
        ],
    ),
    (
        "atoll",
        &[
            "atoll-agents",
            "atoll-api",
            "atoll-client",
            "atoll-config",
            "atoll-core",
            "atoll-forge",
            "atoll-jail",
            "atoll-model-script",
            "atoll-protocol",
            "atoll-providers",
            "atoll-server",
            "atoll-store",
            "atoll-trees",
        ],
    ),
];

/// External crates that only the listed crates may use: HTTP servers and SQL.
const RESTRICTED_CRATES: &[(&str, &[&str])] = &[
    ("axum", &["atoll-model-script", "atoll-server"]),
    ("utoipa-axum", &["atoll-server"]),
    ("sqlx", &["atoll-store"]),
    ("rusqlite", &["atoll-store"]),
];

/// Crates without an async runtime and without I/O.
const PURE_CRATES: &[&str] = &["atoll-api", "atoll-core", "atoll-drivers", "atoll-protocol"];
const FORBIDDEN_IN_PURE: &[&str] = &["tokio", "hyper", "reqwest", "axum", "rusqlite", "sqlx", "rustix"];

/// Reads the dependencies of each workspace crate, without dev-dependencies.
fn read_dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let output = std::process::Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let named = packages.iter().map(|package| {
        let dependencies = package["dependencies"].as_array().unwrap().iter();
        let dependencies =
            dependencies.filter(|dependency| dependency["kind"].is_null() || dependency["kind"] == "build");
        let names = dependencies.map(|dependency| dependency["name"].as_str().unwrap().to_owned()).collect();
        (package["name"].as_str().unwrap().to_owned(), names)
    });
    // Tests and benches may use everything.
    named.filter(|(name, _)| name != "atoll-tests" && name != "atoll-bench").collect()
}

#[test]
fn crates_use_only_allowed_dependencies() {
    let found = read_dependencies();
    let known: BTreeSet<&str> = ALLOWED_DEPENDENCIES.iter().map(|(name, _)| *name).collect();
    assert_eq!(
        found.keys().map(String::as_str).collect::<BTreeSet<_>>(),
        known,
        "ALLOWED_DEPENDENCIES must list every crate"
    );
    for (name, allowed) in ALLOWED_DEPENDENCIES {
        for used in found[*name].iter().filter(|used| known.contains(used.as_str())) {
            assert!(allowed.contains(&used.as_str()), "{name} must not use {used}");
        }
    }
    for (external, allowed) in RESTRICTED_CRATES {
        for (name, used) in &found {
            assert!(!used.contains(*external) || allowed.contains(&name.as_str()), "{name} must not use {external}");
        }
    }
    for (name, external) in
        PURE_CRATES.iter().flat_map(|name| FORBIDDEN_IN_PURE.iter().map(move |external| (*name, *external)))
    {
        assert!(!found[name].contains(external), "{name} must not use {external}");
    }
}

/// Handlers only parse and respond. Rules and transactions belong to the application layer.
#[test]
fn handlers_do_not_use_the_store() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let listed =
        std::process::Command::new("git").args(["ls-files", "crates/server/src/api"]).current_dir(root).output();
    let files = String::from_utf8(listed.unwrap().stdout).unwrap();
    assert!(files.lines().count() > 10, "the handlers are not in crates/server/src/api");
    for file in files.lines() {
        let text = std::fs::read_to_string(root.join(file)).unwrap_or_default();
        for forbidden in ["atoll_store", "app.read(", "app.write", "require_"] {
            let uses = text.lines().filter(|line| line.contains(forbidden) && !line.contains("require_json"));
            assert_eq!(uses.collect::<Vec<_>>(), Vec::<&str>::new(), "{file} uses `{forbidden}`");
        }
    }
}

/// Code outside the providers asks what a provider can do (`capabilities_of`), so that a new provider changes few files.
#[test]
fn only_providers_are_compared_by_name() {
    /// The definition, the providers, the default of the configuration, and the factory.
    const MAY_NAME_PROVIDERS: &[&str] =
        &["crates/core/src/sandbox.rs", "crates/providers/", "crates/config/", "crates/server/src/providers.rs"];
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let listed = std::process::Command::new("git").args(["ls-files", "crates/*.rs"]).current_dir(root).output();
    let files = String::from_utf8(listed.unwrap().stdout).unwrap();
    assert!(files.lines().count() > 100, "the sources are not in crates");
    for file in files.lines().filter(|file| !MAY_NAME_PROVIDERS.iter().any(|allowed| file.starts_with(allowed))) {
        let text = std::fs::read_to_string(root.join(file)).unwrap_or_default();
        // A variant's second letter is lower-case, unlike that of the constant `ALL`.
        let names = text.split("ProviderKind::").skip(1).filter(|rest| {
            let mut letters = rest.chars();
            letters.next().is_some_and(char::is_uppercase) && letters.next().is_some_and(char::is_lowercase)
        });
        assert_eq!(names.count(), 0, "{file} names a provider: use `capabilities_of`");
    }
}

#[test]
fn no_file_exceeds_600_lines() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let output = std::process::Command::new("git").args(["ls-files", "*.rs"]).current_dir(root).output().unwrap();
    for file in String::from_utf8(output.stdout).unwrap().lines() {
        let lines = std::fs::read_to_string(root.join(file)).map(|text| text.lines().count()).unwrap_or(0);
        assert!(lines <= 600, "{file} has {lines} lines: split it");
    }
}

/// Every test that `docs/failures.md` names exists.
#[test]
fn every_failure_names_existing_tests() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let table = std::fs::read_to_string(root.join("docs/failures.md")).unwrap();
    let rows: Vec<_> = table.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| where")).collect();
    assert!(rows.len() > 15, "the table has its rows");
    let listed = std::process::Command::new("git").args(["ls-files", "*.rs"]).current_dir(root).output();
    let files = String::from_utf8(listed.unwrap().stdout).unwrap();
    let sources: String =
        files.lines().map(|file| std::fs::read_to_string(root.join(file)).unwrap_or_default()).collect();
    for row in rows {
        let names: Vec<_> = row.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "a failure without a test: {row}");
        for name in names {
            assert!(sources.contains(&format!("fn {name}(")), "there is no test {name}");
        }
    }
}
