//! Problems and their messages.

use super::*;
use proptest::prelude::*;

fn problems_of_file(text: &str) -> Vec<String> {
    Fixture::new().file("work/atoll.yaml", text).problems()
}

#[test]
fn reports_every_problem_at_once() {
    let fixture = Fixture::new()
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
    insta::assert_snapshot!(fixture.problems().join("\n"));
    let error = load_config(&fixture.inputs).unwrap_err().to_string();
    assert!(error.starts_with("the configuration has 24 problems:\n  - /"), "{error}");
}

#[test]
fn a_public_address_requires_tls_or_a_flag() {
    let open = || Fixture::new().flag("server.listen", "0.0.0.0:7700");
    assert_eq!(
        open().problems(),
        ["server.listen (flag --listen): other machines can reach 0.0.0.0:7700, and without TLS tokens travel \
          unencrypted: set `server.tls_cert` and `server.tls_key`, listen on 127.0.0.1, or pass --insecure-listen"]
    );
    assert!(open().flag("server.insecure_listen", "true").load().config.server.insecure_listen);
    assert!(open().flag("server.tls_cert", "/c").flag("server.tls_key", "/k").load().config.server.tls().is_some());
    for loopback in ["127.0.0.2:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
        Fixture::new().flag("server.listen", loopback).load();
    }
    assert_eq!(
        open().flag("server.tls_key", "/k").problems(),
        ["server.tls_key (flag --tls-key): requires `server.tls_cert` too"]
    );
}

#[test]
fn the_domain_of_previews_holds_no_page() {
    let with = |domain: &str| Fixture::new().env("ATOLL_PREVIEW_DOMAIN", domain);
    with("previews.example.net:8443").flag("server.public_url", "https://atoll.example.org").load();
    for bad in ["localhost", "127.0.0.1", "https://previews.example.net", "a b.example"] {
        let problems = with(bad).problems();
        assert!(problems[0].contains("expected a domain with an optional port"), "{problems:?}");
    }
    for page in ["https://atoll.example.org", "https://example.org:8443/"] {
        let problems = with("Example.org").flag("server.public_url", page).problems();
        assert!(problems[0].contains("is in this domain"), "{problems:?}");
    }
    with("other.example.org").flag("server.public_url", "https://atoll.example.org").load();
}

#[test]
fn daytona_requires_its_key_only_if_enabled() {
    let on = || Fixture::new().env("DAYTONA_SANDBOX_EXECUTION", "true");
    assert_eq!(
        on().problems(),
        ["daytona.enabled (environment DAYTONA_SANDBOX_EXECUTION): requires a key: \
          set `daytona.api_key` or DAYTONA_API_KEY"]
    );
    on().env("DAYTONA_API_KEY", "dtn_1").load();
    Fixture::new().env("DAYTONA_API_KEY", "dtn_1").load();
}

#[test]
fn an_app_requires_its_key_and_tokens_require_encryption() {
    assert_eq!(
        Fixture::new().env("ATOLL_GITHUB_APP_ID", "1").problems(),
        ["github.app_id (environment ATOLL_GITHUB_APP_ID): requires `github.app_key` too"]
    );
    assert_eq!(
        Fixture::new().env("ATOLL_GITHUB_API_URL", "http://api.example.org").problems(),
        ["github.api_url (environment ATOLL_GITHUB_API_URL): http encrypts no tokens; use https"]
    );
    let both = Fixture::new().env("ATOLL_GITHUB_APP_ID", "1").env("ATOLL_GITHUB_APP_KEY", "/key.pem");
    both.env("ATOLL_GITHUB_URL", "http://127.0.0.1:80").load();
}

#[test]
fn warns_about_keys_without_effect() {
    let loaded = Fixture::new()
        .env("REDIS_URL", "redis://h")
        .env("DAYTONA_SANDBOX_EXECUTION", "true")
        .env("DAYTONA_API_KEY", "dtn_1")
        .load();
    let warnings: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "redis_url (environment REDIS_URL) has no effect: this version does not use Redis; a single server needs none",
            "daytona.enabled (environment DAYTONA_SANDBOX_EXECUTION) has no effect: this version has no `daytona` \
             provider; sandboxes use `provider.default`",
            "daytona.api_key (environment DAYTONA_API_KEY) has no effect: this version has no `daytona` provider; it \
             only redacts the key from logs and events",
        ]
    );
}

#[test]
fn rejects_malformed_files() {
    for text in ["", "# nothing\n", "---\n", "~", "server:\n", "\u{feff}log: {level: info}\n"] {
        Fixture::new().file("work/atoll.yaml", text).load();
    }
    for (text, expected) in [
        ("- a\n", "work/atoll.yaml:1: invalid YAML: expected keys with values"),
        ("log: {level: info}\n---\nlog: {level: info}\n", "work/atoll.yaml:2: invalid YAML: expected one document"),
        ("agent: {default: &a x}\nsandbox: {image: *a}\n", "work/atoll.yaml:2: invalid YAML: aliases"),
        ("agent: {default: !x y}\n", "work/atoll.yaml:1: invalid YAML: tags"),
        ("[a]: b\n", "work/atoll.yaml:1: invalid YAML: expected a single word as key"),
        ("agent: {default: \"x\n", "work/atoll.yaml:"),
    ] {
        let problems = problems_of_file(text);
        assert!(problems.len() == 1 && problems[0].starts_with(expected), "{text:?}: {problems:?}");
    }
    let deep = format!("providers: {{fake: {}{}}}", "[".repeat(100), "]".repeat(100));
    assert!(problems_of_file(&deep)[0].contains("nested too deeply"));
    assert!(problems_of_file(&" ".repeat(1024 * 1024 + 1))[0].contains("more than 1048576 bytes"));

    let bytes = Fixture::new().file("work/atoll.yaml", "");
    std::fs::write(bytes.path("work/atoll.yaml"), b"log: \xff").unwrap();
    assert_eq!(bytes.problems(), ["work/atoll.yaml: invalid YAML: it is not UTF-8"]);

    let directory = Fixture::new().file("work/atoll.yaml/x", "");
    assert!(directory.problems()[0].starts_with("work/atoll.yaml: cannot read the file: "));
}

#[test]
fn ignores_variables_of_other_components() {
    let mut fixture = Fixture::new();
    for name in ["ATOLL_SERVER", "ATOLL_TOKEN", "ATOLL_LOG", "ATOLL_TEST_X", "ATOLLO", "PATH", "SANDBOX_ID"] {
        fixture = fixture.env(name, "x");
    }
    fixture.load();
}

#[test]
fn checks_the_faults_of_the_fake_provider() {
    for (setting, expected) in [
        ("{seed: -1}", "invalid value"),
        ("{faults: [{at: lunch, kind: fail, rate: 1}]}", "unknown variant `lunch`"),
        ("{faults: [{at: ack, kind: fail, rate: 1.5}]}", "the rate 1.5 is not from 0 to 1"),
        ("{seed: 1, seed: 2}", "`seed` is set twice (line 1)"),
        ("seven", "invalid type"),
    ] {
        let problems = problems_of_file(&format!("providers: {{fake: {setting}}}"));
        assert!(problems.len() == 1 && problems[0].contains(expected), "{setting}: {problems:?}");
    }
    let not_json = Fixture::new().env("ATOLL_PROVIDERS_FAKE", "{seed: 1}").problems();
    assert!(
        not_json[0].ends_with("rate: 0 to 1}]}, found `{seed: 1}`: not JSON: key must be a string at line 1 column 2")
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_load_or_fail_cleanly(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let fixture = Fixture::new().file("work/atoll.yaml", "");
        std::fs::write(fixture.path("work/atoll.yaml"), bytes).unwrap();
        let _ = load_config(&fixture.inputs).map_err(|error| error.to_string());
    }

    /// Random sequences of YAML fragments.
    #[test]
    fn any_yaml_loads_or_fails_cleanly(pieces in prop::collection::vec(prop::sample::select(PIECES), 0..60)) {
        let fixture = Fixture::new().file("work/atoll.yaml", &pieces.concat());
        let _ = load_config(&fixture.inputs).map_err(|error| error.to_string());
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
