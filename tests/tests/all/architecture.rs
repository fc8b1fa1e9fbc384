//! Who may use whom, read from the workspace itself.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// What each crate of the workspace may use of the others.
const ALLOWED: &[(&str, &[&str])] = &[
    ("atoll-core", &[]),
    ("atoll-jail", &[]),
    ("atoll-forge", &[]),
    ("atoll-trees", &[]),
    ("atoll-agents", &["atoll-core", "atoll-trees"]),
    ("atoll-protocol", &["atoll-core"]),
    ("atoll-config", &["atoll-core"]),
    ("atoll-store", &["atoll-core"]),
    ("atoll-model-script", &["atoll-config"]),
    ("atoll-providers", &["atoll-core", "atoll-jail", "atoll-protocol"]),
    ("atoll-worker", &["atoll-core", "atoll-forge", "atoll-jail", "atoll-protocol", "atoll-trees"]),
    (
        "atoll-server",
        &[
            "atoll-agents",
            "atoll-core",
            "atoll-forge",
            "atoll-jail",
            "atoll-protocol",
            "atoll-providers",
            "atoll-store",
            "atoll-worker",
        ],
    ),
    (
        "atoll",
        &[
            "atoll-agents",
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

/// Crates that only one of ours may name: HTTP stands in the server (the scripted model is one too), SQL in the store.
const ONLY_IN: &[(&str, &[&str])] = &[
    ("axum", &["atoll-model-script", "atoll-server"]),
    ("utoipa-axum", &["atoll-server"]),
    ("sqlx", &["atoll-store"]),
    ("rusqlite", &["atoll-store"]),
];

/// The rules have no runtime and do no I/O.
const NOT_IN_CORE: &[&str] = &["tokio", "hyper", "reqwest", "axum", "rusqlite", "sqlx", "rustix"];

/// Our crates with what they depend on, less what only tests need.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let output = std::process::Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let named = packages.iter().map(|package| {
        let needed = package["dependencies"].as_array().unwrap().iter();
        let needed = needed.filter(|dependency| dependency["kind"].is_null() || dependency["kind"] == "build");
        let names = needed.map(|dependency| dependency["name"].as_str().unwrap().to_owned()).collect();
        (package["name"].as_str().unwrap().to_owned(), names)
    });
    // Tests and benches stand outside and may use everything.
    named.filter(|(name, _)| name != "atoll-tests" && name != "atoll-bench").collect()
}

#[test]
fn crates_use_only_what_they_may() {
    let found = dependencies();
    let known: BTreeSet<&str> = ALLOWED.iter().map(|(name, _)| *name).collect();
    assert_eq!(found.keys().map(String::as_str).collect::<BTreeSet<_>>(), known, "every crate has its line");
    for (name, allowed) in ALLOWED {
        for used in found[*name].iter().filter(|used| known.contains(used.as_str())) {
            assert!(allowed.contains(&used.as_str()), "{name} must not use {used}");
        }
    }
    for (outside, homes) in ONLY_IN {
        for (name, used) in &found {
            assert!(!used.contains(*outside) || homes.contains(&name.as_str()), "{name} must not use {outside}");
        }
    }
    for outside in NOT_IN_CORE {
        assert!(!found["atoll-core"].contains(*outside), "atoll-core must not use {outside}");
    }
}

#[test]
fn files_stay_small_enough_to_hold_one_thing() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let output = std::process::Command::new("git").args(["ls-files", "*.rs"]).current_dir(root).output().unwrap();
    for file in String::from_utf8(output.stdout).unwrap().lines() {
        let lines = std::fs::read_to_string(root.join(file)).map(|text| text.lines().count()).unwrap_or(0);
        assert!(lines <= 600, "{file} has {lines} lines: it holds two things");
    }
}
