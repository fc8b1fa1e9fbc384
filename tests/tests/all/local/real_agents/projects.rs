//! Ordinary projects: set-up installs their packages from the registries, services run beside the agent, and a real agent
//! changes the code until the project's own tests pass.

use super::agent_fixture::AgentFixture;
use crate::local::network::network_tools::{certificate_env, config_for, is_reachable};
use atoll_tests::local::repository::SampleRepository;
use atoll_tests::local::{event_data, report_skipped};
use atoll_tests::process::is_in_path;
use serde_json::{Value, json};
use std::path::Path;

const SCRIPTS: &str = r##"
scripts:
  - name: typescript
    steps:
      - write:
          file: src/farewell.ts
          content: |
            export const farewell = (name: string): string => `Goodbye, ${name}!`;
      - write:
          file: tests/farewell.test.ts
          content: |
            import { expect, test } from "vitest";
            import { farewell } from "../src/farewell";

            test("says goodbye by name", () => {
              expect(farewell("Ada")).toBe("Goodbye, Ada!");
            });
      - run: npm test
      - run: git add --all && git commit --quiet --message 'Say goodbye'
      - say: The function is there.
  - name: python
    steps:
      - write:
          file: tests/test_farewell.py
          content: |
            import pg8000.native


            def test_the_database_says_goodbye():
                with pg8000.native.Connection("postgres", host="127.0.0.1", database="postgres") as connection:
                    assert connection.run("SELECT 'Goodbye'")[0][0] == "Goodbye"
      - run: .venv/bin/pytest -q
      - run: git add --all && git commit --quiet --message 'Say goodbye'
      - say: The test is there.
  - name: rust
    steps:
      - write:
          file: tests/farewell.rs
          content: |
            #[test]
            fn greets_one_guest() {
                assert_eq!(greeting::greet(1), "Hello, 1 guests!");
            }
      - run: cargo test --offline
      - run: git add --all && git commit --quiet --message 'Say goodbye'
      - say: The test is there.
"##;

struct Project {
    name: &'static str,
    hosts: &'static [&'static str],
    /// The program of its set-up, if this machine may lack it.
    program: Option<&'static str>,
    /// The project's own tests.
    check: &'static str,
    /// The file that the agent adds.
    added: &'static str,
    /// A directory that set-up leaves, which must not be in the results.
    installed: &'static str,
    services: Value,
}

/// Runs the project twice: the second sandbox starts from the layer that the first one's set-up left.
async fn builds_and_tests(project: Project) {
    if let Some(program) = project.program.filter(|program| !is_in_path(program)) {
        return report_skipped(project.name, &format!("{program} is missing"));
    }
    for host in project.hosts {
        if !is_reachable(&format!("https://{host}/")) {
            return report_skipped(project.name, &format!("{host} cannot be reached from this machine"));
        }
    }
    let config = config_for(project.hosts);
    let fixture = AgentFixture::start_with_config("claude", "an ordinary project", SCRIPTS, &config).await;
    let Some(fixture) = fixture else { return };
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("projects").join(project.name);
    let repository = SampleRepository::copy_of(&sources);
    for is_second in [false, true] {
        let settings = json!({
            "approvals": "full", "repo": { "path": repository.path() }, "env": certificate_env(),
            "services": project.services, "continuous": { "checks": [project.check] },
        });
        let id = fixture.create_sandbox(&format!("add it #script:{}", project.name), settings).await;
        let row = fixture.server.wait_until_ended(&id).await;
        let events = fixture.server.admin.all_events(&id).await;
        assert_eq!(row["outcome"], "succeeded", "{row}\n{events:#?}");
        let completed = event_data(&events, "setup.completed");
        assert_eq!(completed.len(), 1, "{events:#?}");
        assert_eq!(completed[0]["cached"], is_second, "{completed:#?}");
        assert_eq!(event_data(&events, "setup.started").is_empty(), is_second, "{events:#?}");
        let branch = event_data(&events, "git.branch_created")[0]["branch"].as_str().unwrap();
        assert!(repository.file_at(branch, project.added).is_some(), "{branch} lacks {}", project.added);
        let exported = repository.run_git(&["ls-tree", "-r", "--name-only", branch]);
        assert!(!exported.lines().any(|file| file.starts_with(project.installed)), "{exported}");
    }
    fixture.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[cfg_attr(not(feature = "soak"), ignore = "`make soak` runs it")]
async fn a_typescript_project_with_npm_and_vitest() {
    builds_and_tests(Project {
        name: "typescript",
        hosts: &["registry.npmjs.org"],
        program: Some("npm"),
        check: "npm test",
        added: "src/farewell.ts",
        installed: "node_modules",
        services: json!([]),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_python_project_with_pip_pytest_and_postgresql() {
    let start = "PATH=$(echo /usr/lib/postgresql/*/bin):$PATH; export LC_ALL=C; \
                 [ -d ~/database ] || initdb -D ~/database -U postgres -A trust --no-sync; \
                 exec postgres -D ~/database -k /tmp -h 127.0.0.1";
    builds_and_tests(Project {
        name: "python",
        hosts: &["pypi.org", "files.pythonhosted.org"],
        program: Some("python3"),
        check: ".venv/bin/pytest -q",
        added: "tests/test_farewell.py",
        installed: ".venv",
        services: json!([{ "name": "postgresql", "command": start, "ready": { "port": 5432 } }]),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rust_project_with_cargo() {
    builds_and_tests(Project {
        name: "rust",
        hosts: &["index.crates.io", "static.crates.io"],
        program: None,
        check: "cargo test --offline",
        added: "tests/farewell.rs",
        installed: "target",
        services: json!([]),
    })
    .await;
}
