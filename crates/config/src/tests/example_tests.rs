//! The key declarations, and the example file that comes from them.

use super::*;
use crate::env;
use crate::key::KEYS;
use std::collections::BTreeSet;

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../atoll.example.yaml");

fn uncommented() -> String {
    let text = std::fs::read_to_string(EXAMPLE).unwrap();
    text.lines()
        .filter(|line| !line.starts_with("##"))
        .map(|line| line.trim_start_matches('#').to_owned() + "\n")
        .collect()
}

/// `ATOLL_TEST_WRITE=1 cargo test -p atoll-config` regenerates the file.
#[test]
fn the_example_file_is_up_to_date() {
    let expected = crate::example_file();
    if std::env::var_os("ATOLL_TEST_WRITE").is_some() {
        std::fs::write(EXAMPLE, &expected).unwrap();
    }
    assert_eq!(std::fs::read_to_string(EXAMPLE).unwrap(), expected, "regenerate it with ATOLL_TEST_WRITE=1");
}

#[test]
fn the_example_sets_every_key_to_its_default() {
    let fixture = Fixture::new().file("work/atoll.yaml", &uncommented());
    let (loaded, defaults) = (fixture.load(), Fixture::new());
    let defaults = load_config(&Inputs { home: fixture.inputs.home.clone(), ..defaults.inputs.clone() }).unwrap();
    for (key, (setting, default)) in KEYS.iter().zip(loaded.settings.iter().zip(&defaults.settings)) {
        assert!(matches!(setting.source, SettingSource::File(..)), "{} is not in the example", key.name);
        if key.sample.is_some() {
            assert_eq!(default.value, None, "{}", key.name);
        } else {
            assert_eq!(setting.value, default.value, "{}", key.name);
        }
    }
}

#[test]
fn the_defaults_cause_no_warnings() {
    let loaded = Fixture::new().load();
    assert!(loaded.warnings.is_empty() && loaded.files.is_empty());
    assert!(loaded.settings.iter().all(|setting| setting.source == SettingSource::Default));
}

#[test]
fn each_variable_sets_one_key() {
    let names = env::variable_names();
    let distinct: BTreeSet<&str> = names.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(distinct.len(), names.len(), "two keys share a variable");
    assert!(distinct.contains("ATOLL_SANDBOX_CREATE_TIMEOUT_LOCAL") && distinct.contains("DATABASE_URL"));
}

#[test]
fn the_declarations_are_consistent() {
    let names: BTreeSet<&str> = KEYS.iter().map(|key| key.name).collect();
    assert_eq!(names.len(), KEYS.len(), "a key is declared twice");
    let flags: Vec<&str> = KEYS.iter().filter_map(|key| key.flag).collect();
    assert_eq!(flags.iter().collect::<BTreeSet<_>>().len(), flags.len(), "two keys share a flag");
    for key in KEYS.iter() {
        assert!(!key.help.ends_with('.') && key.help.len() > 15, "{}: help without a final period", key.name);
        let prefix = format!("{}.", key.name);
        assert!(!KEYS.iter().any(|other| other.name.starts_with(&prefix)), "{} is a section", key.name);
        assert!(key.file_aliases.iter().all(|alias| !names.contains(alias)), "{}", key.name);
    }
    // A section that is declared in two places would appear twice in the example file.
    let mut sections: Vec<&str> = KEYS.iter().filter_map(|key| Some(key.name.split_once('.')?.0)).collect();
    sections.dedup();
    assert_eq!(sections.iter().collect::<BTreeSet<_>>().len(), sections.len(), "a section is in two places");
}
