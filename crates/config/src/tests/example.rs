//! The table itself, and what is made from it.

use super::*;
use crate::env;
use crate::keys::{Default, KEYS};
use std::collections::BTreeSet;

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../atoll.example.yaml");

fn uncommented() -> String {
    let text = std::fs::read_to_string(EXAMPLE).unwrap();
    text.lines()
        .filter(|line| !line.starts_with("##"))
        .map(|line| line.trim_start_matches('#').to_owned() + "\n")
        .collect()
}

/// `ATOLL_TEST_WRITE=1 cargo test -p atoll-config` writes it anew.
#[test]
fn the_example_file_is_the_table() {
    let expected = crate::example();
    if std::env::var_os("ATOLL_TEST_WRITE").is_some() {
        std::fs::write(EXAMPLE, &expected).unwrap();
    }
    assert_eq!(std::fs::read_to_string(EXAMPLE).unwrap(), expected, "write it anew with ATOLL_TEST_WRITE=1");
}

#[test]
fn the_example_names_every_key_and_loads_to_the_defaults() {
    let world = World::new().file("work/atoll.yaml", &uncommented());
    let (loaded, defaults) = (world.load(), World::new());
    let defaults = load(&Inputs { home: world.inputs.home.clone(), ..defaults.inputs.clone() }).unwrap();
    for (key, (shown, default)) in KEYS.iter().zip(loaded.shown.iter().zip(&defaults.shown)) {
        assert!(matches!(shown.source, Source::File(..)), "{} is not in the example", key.name);
        if key.default == Default::None {
            assert_eq!(default.value, None, "{}", key.name);
        } else {
            assert_eq!(shown.value, default.value, "{}", key.name);
        }
    }
}

#[test]
fn the_listing_with_defaults() {
    let home = Some(PathBuf::from("/home/ada"));
    let loaded = load(&Inputs { home, cwd: World::new().inputs.cwd, ..Inputs::default() }).unwrap();
    assert!(loaded.warnings.is_empty() && loaded.files.is_empty());
    let lines = loaded.shown.iter().map(|shown| {
        format!("{} = {} ({})\n    {}", shown.key, shown.value.as_deref().unwrap_or("-"), shown.source, shown.doc)
    });
    insta::assert_snapshot!(lines.collect::<Vec<_>>().join("\n"));
}

#[test]
fn the_environment_names() {
    let names = env::names();
    let distinct: BTreeSet<&str> = names.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(distinct.len(), names.len(), "two keys share a name");
    let lines: Vec<String> = names.iter().map(|(name, key)| format!("{name} -> {key}")).collect();
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn the_table_is_in_order() {
    let names: BTreeSet<&str> = KEYS.iter().map(|key| key.name).collect();
    assert_eq!(names.len(), KEYS.len(), "a key stands twice");
    let flags: Vec<&str> = KEYS.iter().filter_map(|key| key.flag).collect();
    assert_eq!(flags.iter().collect::<BTreeSet<_>>().len(), flags.len(), "two keys share a flag");
    for key in KEYS {
        assert!(key.doc.ends_with('.') && key.doc.len() > 20, "{}: a sentence", key.name);
        assert!(
            !KEYS.iter().any(|other| other.name.starts_with(&format!("{}.", key.name))),
            "{} is a section",
            key.name
        );
        assert!(key.file_aliases.iter().all(|alias| !names.contains(alias)), "{}", key.name);
        assert_eq!(key.sample.is_some(), key.default == Default::None, "{}", key.name);
    }
    // A section that is left and entered again would stand twice in the example file.
    let mut sections: Vec<&str> = KEYS.iter().filter_map(|key| Some(key.name.split_once('.')?.0)).collect();
    sections.dedup();
    assert_eq!(sections.iter().collect::<BTreeSet<_>>().len(), sections.len(), "a section is in two places");
}
