//! What is refused, in which words, and that all of it is said at once.

use super::*;
use proptest::prelude::*;

fn in_file(text: &str) -> Vec<String> {
    World::new().file("work/atoll.yaml", text).refused()
}

#[test]
fn every_problem_is_named_at_once() {
    let world = World::new()
        .file(
            "work/atoll.yaml",
            "\
sever:
  listen: 1
server:
  lisen: 127.0.0.1:1
  insecure_listen: 'true'
  hosts: atoll.example
  tls_cert: [a]
listen: 127.0.0.1:1
log: loud
limits:
  max_live_streams: 0
  max_live_streams: 5
sandbox:
  timeout: {keep: 3 weeks}
  cpu: -1
provider:
  default: daytona
providers:
  fake: {sed: 1}
agent:
  default: true
metrics.public: maybe
",
        )
        .file("work/broken.yaml", "a: [1\nb: 2\n")
        .config("atoll.yaml")
        .config("broken.yaml")
        .config("missing.yaml")
        .env("ATOLL_LOG_LEVL", "info")
        .env("ATOLL_SOMETHING_ELSE", "1")
        .env("SANDBOX_MEMORY_GB", "lots")
        .flag("server.listen", "localhost:80")
        .flag("log.format", "xml")
        .flag("log.format", "json")
        .flag("server.hosts", "a");
    insta::assert_snapshot!(world.refused().join("\n"));
    let error = load(&world.inputs).unwrap_err().to_string();
    assert!(error.starts_with("the configuration has 24 problems:\n  - /"), "{error}");
}

#[test]
fn an_open_address_needs_tls_or_a_word() {
    let open = || World::new().flag("server.listen", "0.0.0.0:7700");
    assert_eq!(
        open().refused(),
        ["server.listen (flag --listen): 0.0.0.0:7700 is reachable from other machines, and without TLS tokens would \
          travel in the clear: give `server.tls_cert` and `server.tls_key`, listen on 127.0.0.1, or allow it with \
          --insecure-listen"]
    );
    assert!(open().flag("server.insecure_listen", "true").load().config.server.insecure_listen);
    assert!(open().flag("server.tls_cert", "/c").flag("server.tls_key", "/k").load().config.server.tls.is_some());
    for loopback in ["127.0.0.2:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
        World::new().flag("server.listen", loopback).load();
    }
    assert_eq!(
        open().flag("server.tls_key", "/k").refused(),
        ["server.tls_key (flag --tls-key): needs `server.tls_cert` beside it"]
    );
}

#[test]
fn what_is_named_needs_its_key_and_what_is_not_named_does_not() {
    let on = || World::new().env("DAYTONA_SANDBOX_EXECUTION", "true");
    assert_eq!(
        on().refused(),
        ["daytona.enabled (environment DAYTONA_SANDBOX_EXECUTION): asks for Daytona, which needs its key: \
          set `daytona.api_key` or DAYTONA_API_KEY"]
    );
    on().env("DAYTONA_API_KEY", "dtn_1").load();
    assert!(World::new().env("DAYTONA_API_KEY", "dtn_1").load().warnings.is_empty());
}

#[test]
fn what_has_no_effect_is_said() {
    let loaded = World::new()
        .env("REDIS_URL", "redis://h")
        .env("ORCHESTRATOR_ENABLED", "false")
        .env("DAYTONA_SANDBOX_EXECUTION", "true")
        .env("DAYTONA_API_KEY", "dtn_1")
        .load();
    let warnings: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "redis_url (environment REDIS_URL) has no effect: this version does not use Redis; one server works without it",
            "daytona.enabled (environment DAYTONA_SANDBOX_EXECUTION) has no effect: this version has no `daytona` \
             provider; sandboxes go to `provider.default`",
        ]
    );
}

#[test]
fn files_that_are_no_settings() {
    for text in ["", "# nothing\n", "---\n", "~", "server:\n", "\u{feff}log: {level: info}\n"] {
        World::new().file("work/atoll.yaml", text).load();
    }
    for (text, expected) in [
        ("- a\n", "work/atoll.yaml:1: is not usable YAML: it does not hold keys with values"),
        ("log: {level: info}\n---\nlog: {level: info}\n", "work/atoll.yaml:2: is not usable YAML: a second document"),
        ("agent: {default: &a x}\nsandbox: {image: *a}\n", "work/atoll.yaml:2: is not usable YAML: aliases"),
        ("agent: {default: !x y}\n", "work/atoll.yaml:1: is not usable YAML: tags"),
        ("[a]: b\n", "work/atoll.yaml:1: is not usable YAML: a key must be a single word"),
        ("agent: {default: \"x\n", "work/atoll.yaml:"),
    ] {
        let problems = in_file(text);
        assert!(problems.len() == 1 && problems[0].starts_with(expected), "{text:?}: {problems:?}");
    }
    let deep = format!("providers: {{fake: {}{}}}", "[".repeat(100), "]".repeat(100));
    assert!(in_file(&deep)[0].contains("nested too deeply"));
    assert!(in_file(&" ".repeat(1024 * 1024 + 1))[0].contains("more than 1048576 bytes"));

    let bytes = World::new().file("work/atoll.yaml", "");
    std::fs::write(bytes.path("work/atoll.yaml"), b"log: \xff").unwrap();
    assert_eq!(bytes.refused(), ["work/atoll.yaml: is not usable YAML: it is not UTF-8"]);

    let directory = World::new().file("work/atoll.yaml/x", "");
    assert!(directory.refused()[0].starts_with("work/atoll.yaml: cannot be read: "));
}

#[test]
fn variables_of_other_parts_are_left_alone() {
    let mut world = World::new();
    for name in ["ATOLL_SERVER", "ATOLL_TOKEN", "ATOLL_LOG", "ATOLL_TEST_X", "ATOLLO", "PATH", "SANDBOX_ID"] {
        world = world.env(name, "x");
    }
    world.load();
}

#[test]
fn faults_are_checked() {
    for (given, expected) in [
        ("{seed: -1}", "invalid value"),
        ("{faults: [{at: lunch, kind: fail, rate: 1}]}", "unknown variant `lunch`"),
        ("{faults: [{at: ack, kind: fail, rate: 1.5}]}", "the rate 1.5 is not from 0 to 1"),
        ("{seed: 1, seed: 2}", "`seed` stands twice (line 1)"),
        ("seven", "invalid type"),
    ] {
        let problems = in_file(&format!("providers: {{fake: {given}}}"));
        assert!(problems.len() == 1 && problems[0].contains(expected), "{given}: {problems:?}");
    }
    let not_json = World::new().env("ATOLL_PROVIDERS_FAKE", "{seed: 1}").refused();
    assert!(
        not_json[0].starts_with("providers.fake (environment ATOLL_PROVIDERS_FAKE): `{seed: 1}` is refused: not JSON")
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let world = World::new().file("work/atoll.yaml", "");
        std::fs::write(world.path("work/atoll.yaml"), bytes).unwrap();
        let _ = load(&world.inputs).map_err(|error| error.to_string());
    }

    /// Nearer to YAML than any bytes: pieces of it in any order.
    #[test]
    fn any_yaml_is_read_or_refused(pieces in prop::collection::vec(prop::sample::select(PIECES), 0..60)) {
        let world = World::new().file("work/atoll.yaml", &pieces.concat());
        let _ = load(&world.inputs).map_err(|error| error.to_string());
    }
}

const PIECES: &[&str] = &[
    "server",
    "log",
    "level",
    "providers",
    "fake",
    "faults",
    ":",
    ": ",
    "- ",
    "\n",
    "\n  ",
    "\n    ",
    "[",
    "]",
    "{",
    "}",
    ",",
    "\"",
    "'",
    "&a ",
    "*a",
    "!!str ",
    "| ",
    "> ",
    "---\n",
    "...\n",
    "%YAML 1.2\n",
    "? ",
    "<<",
    "#",
    "\t",
    "é",
    "\0",
    "~",
    "1",
    "true",
    "30s",
    "\\u0041",
    "\u{feff}",
];
