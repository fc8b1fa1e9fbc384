//! Precedence of the layers, and the reported sources.

use super::*;
use crate::{Database, Level};
use std::time::Duration;

const KEY: &str = "log.level";

#[test]
fn flag_over_environment_over_file_over_default() {
    for layers in 0..8_u8 {
        let (in_file, in_env, in_flag) = (layers & 1 != 0, layers & 2 != 0, layers & 4 != 0);
        let mut fixture = Fixture::new();
        let path = fixture.path("work/atoll.yaml");
        let mut expected = (Level::Info, SettingSource::Default);
        if in_file {
            fixture = fixture.file("work/atoll.yaml", "\nlog:\n  level: warn\n");
            expected = (Level::Warn, file_source(&path, 3));
        }
        if in_env {
            fixture = fixture.env("ATOLL_LOG_LEVEL", "debug");
            expected = (Level::Debug, SettingSource::Env("ATOLL_LOG_LEVEL".to_owned()));
        }
        if in_flag {
            fixture = fixture.flag(KEY, "trace");
            expected = (Level::Trace, SettingSource::Flag("--log-level".to_owned()));
        }
        let loaded = fixture.load();
        assert_eq!((loaded.config.log.level, loaded.setting(KEY).source.clone()), expected, "{layers:03b}");
        assert_eq!(loaded.value(KEY), Some(expected.0.as_str()));
    }
}

#[test]
fn later_files_win_for_each_key() {
    let fixture = Fixture::new()
        .file("work/a.yaml", "log: {level: warn, format: json}\nagent: {default: one}")
        .file("etc/b.yaml", "log: {level: error}\nagent: {default: ~}")
        .file("work/atoll.yaml", "this is not read: [")
        .config("a.yaml")
        .config("../etc/b.yaml");
    let loaded = fixture.load();
    assert_eq!(loaded.value("log.level"), Some("error"));
    assert_eq!(loaded.value("log.format"), Some("json"));
    assert_eq!(loaded.value("agent.default"), None, "a null value resets the key to its default");
    assert_eq!(loaded.files, [fixture.path("work/a.yaml"), fixture.path("work/../etc/b.yaml")]);
}

#[test]
fn the_working_directory_wins_over_the_users_directory() {
    let user = Fixture::new().file("home/.config/atoll/atoll.yaml", "log: {level: warn}");
    assert_eq!(user.load().value(KEY), Some("warn"));
    let both = user.file("work/atoll.yaml", "log: {format: json}");
    assert_eq!(both.load().value(KEY), Some("info"), "only the first location applies");

    let fixture = Fixture::new().file("xdg/atoll/atoll.yaml", "log: {level: error}");
    let xdg = fixture.path("xdg").display().to_string();
    assert_eq!(fixture.env("XDG_CONFIG_HOME", &xdg).load().value(KEY), Some("error"));
}

#[test]
fn a_profile_wins_over_the_file_beside_it() {
    let fixture = Fixture::new()
        .file("work/atoll.yaml", "log: {level: warn, format: json}")
        .file("work/atoll.dev.yaml", "log: {level: debug}")
        .env("ATOLL_PROFILE", "dev");
    let loaded = fixture.load();
    assert_eq!((loaded.value("log.level"), loaded.value("log.format")), (Some("debug"), Some("json")));
    assert_eq!(loaded.setting(KEY).source, file_source(&fixture.path("work/atoll.dev.yaml"), 1));

    let named = fixture.file("work/b.yaml", "log: {level: error}").config("atoll.yaml").config("b.yaml");
    assert_eq!(named.load().value(KEY), Some("error"), "a later file wins over an earlier one's profile");
    assert_eq!(named.load().files.len(), 3);
}

#[test]
fn rejects_a_profile_without_a_file() {
    let fixture = Fixture::new().file("work/atoll.yaml", "").env("ATOLL_PROFILE", "dev");
    assert_eq!(fixture.problems(), ["ATOLL_PROFILE: no file for the profile `dev`; searched work/atoll.dev.yaml"]);
    let strange = Fixture::new().env("ATOLL_PROFILE", "../x");
    assert!(strange.problems()[0].contains("`../x` is not a profile name"));
    Fixture::new().env("ATOLL_PROFILE", "").load();
}

#[test]
fn environment_aliases_work_and_own_names_win() {
    let loaded = Fixture::new().env("SANDBOX_CPU", "3.5").env("SANDBOX_IMAGE", "debian").load();
    assert_eq!(loaded.config.sandbox.cpu, 3.5);
    assert_eq!(loaded.config.sandbox.image.as_deref(), Some("debian"));
    let both = Fixture::new().env("SANDBOX_CPU", "3").env("ATOLL_SANDBOX_CPU", "5").load();
    assert_eq!(both.setting("sandbox.cpu").source, SettingSource::Env("ATOLL_SANDBOX_CPU".to_owned()));
    assert_eq!(both.config.sandbox.cpu, 5.0);
    assert_eq!(Fixture::new().env("GITHUB_TOKEN", "").load().value("github.token"), None);
}

#[test]
fn the_daytona_section_holds_the_sandbox_sizes_too() {
    let text = "daytona:\n  snapshot: base\n  sandbox_memory_gb: 6\n  sandbox_cpu: 3\n  sandbox_disk_gb: 9\n";
    let sandbox = Fixture::new().file("work/atoll.yaml", text).load().config.sandbox;
    assert_eq!((sandbox.memory_gb, sandbox.cpu, sandbox.disk_gb), (6.0, 3.0, 9.0));
    assert_eq!(sandbox.snapshot.as_deref(), Some("base"));
    let twice = Fixture::new().file("work/atoll.yaml", &format!("{text}sandbox:\n  cpu: 4\n"));
    assert_eq!(twice.problems(), ["sandbox.cpu (work/atoll.yaml:7): already set (work/atoll.yaml:4); set it once"]);
}

#[test]
fn values_have_their_types() {
    let fixture = Fixture::new().file(
        "work/atoll.yaml",
        "data_dir: data\nserver: {hosts: [Atoll.Example, 'b:80'], tls_cert: ~/c.pem, tls_key: /k.pem, listen: 0.0.0.0:1}\n\
         limits: {writes_per_minute: 0}\nsandbox: {timeout: {when_done: never, keep: 7d}}\n\
         providers:\n  fake:\n    seed: 18446744073709551615\n    faults:\n      - {at: ack, kind: drop, rate: 0.25}\n",
    );
    let config = fixture.load().config;
    assert_eq!(config.data_dir, fixture.path("work/data"));
    assert!(matches!(config.database(), Database::Sqlite { path } if path == fixture.path("work/data/atoll.db")));
    assert_eq!(config.server.hosts, ["atoll.example", "b:80"]);
    assert_eq!(config.server.tls().unwrap().cert, fixture.path("home/c.pem"));
    assert_eq!(config.limits.writes_per_minute, None);
    assert_eq!(config.limits.messages_per_minute.map(|n| n.get()), Some(120));
    assert_eq!(config.sandbox.timeout.when_done, None);
    assert_eq!(config.sandbox.timeout.keep, Some(Duration::from_secs(7 * 86_400)));
    assert_eq!(config.providers.fake.seed, u64::MAX);
    assert_eq!(config.providers.fake.faults[0].rate, 0.25);

    let env = Fixture::new()
        .env("ATOLL_SERVER_HOSTS", "a, b.example:8080")
        .env("ATOLL_PROVIDERS_FAKE", r#"{"seed": 7}"#)
        .env("ATOLL_SERVER_INSECURE_LISTEN", "1")
        .env("DATABASE_URL", "sqlite:x/y.db");
    let config = env.load().config;
    assert_eq!(config.server.hosts, ["a", "b.example:8080"]);
    assert_eq!((config.providers.fake.seed, config.server.insecure_listen), (7, true));
    assert!(matches!(config.database(), Database::Sqlite { path } if path == env.path("work/x/y.db")));
}

#[test]
fn the_data_directory_defaults_to_the_users() {
    let fixture = Fixture::new();
    assert_eq!(fixture.load().config.data_dir, fixture.path("home/.local/share/atoll"));
    assert_eq!(Fixture::new().env("XDG_DATA_HOME", "/srv").load().config.data_dir, Path::new("/srv/atoll"));
    assert_eq!(fixture.env("XDG_DATA_HOME", "relative").load().config.data_dir.file_name().unwrap(), "atoll");
    let mut homeless = Fixture::new();
    homeless.inputs.home = None;
    assert!(homeless.problems()[0].starts_with("data_dir: has no value;"));
    let homeless = homeless.flag("data_dir", "/d");
    assert_eq!(homeless.load().config.data_dir, Path::new("/d"));
    assert_eq!(
        homeless.flag("database_url", "sqlite:~/x.db").problems(),
        [
            "database_url (flag --database-url): expected a URL that begins with postgres:// or postgresql:// or sqlite:, \
          with special characters percent-encoded (the value is not shown), found another value: there is no home directory"
        ]
    );
}
