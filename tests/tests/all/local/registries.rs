//! Package registries that need a token: tools in a sandbox install from them, and the token stays outside.

use super::exposed_secrets::{find_files_containing, run_atoll};
use super::setup::{command_output, run_to_end, setup_output};
use atoll_tests::local::{LocalServer, report_skipped};
use atoll_tests::package_registry::{NPM_PATH, PackageRegistry, USER, package_text};
use atoll_tests::process;
use serde_json::{Value, json};
use tokio::task::block_in_place;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn npm_installs_from_a_registry_whose_token_stays_outside() {
    if !process::is_in_path("npm") {
        return report_skipped("npm with a company's registry", "npm is missing");
    }
    let token = format!("token-{}", uuid::Uuid::new_v4().simple());
    let registry = PackageRegistry::start(&token, &["tiny-private"]);
    let entry = json!({ "url": registry.url("npm"), "secret": "NPM_TOKEN" });
    let others = json!({ "npm": entry, "cargo": { "url": "https://crates.example/index" },
                         "maven": { "url": "https://maven.example/all" }, "go": { "url": "https://go.example" } });
    let server = LocalServer::start_with_config(&format!("registries: {others}\n"));
    let id = server.create_idle_sandbox(json!({ "network": { "policy": "packages" } })).await;
    let install = "npm install --no-audit --no-fund tiny-private 2>&1 && node -p \"require('tiny-private')\"";

    let without = server.run_shell(&id, install).await;
    assert_ne!(without.exit_code(), Some(0), "{without:?}");
    assert_eq!(registry.requests(), Vec::<String>::new(), "there is no token yet");
    let direct = server.run_shell(&id, &format!("curl -s --noproxy '*' {}/tiny-private", registry.url("npm"))).await;
    assert_ne!(direct.exit_code(), Some(0), "{direct:?}");

    let host = registry.address.to_string();
    let set = ["secret", "set", "NPM_TOKEN", "--upstream", &host];
    let (is_set, output) = block_in_place(|| run_atoll(&server, &set, &token));
    assert!(is_set, "{output}");
    let installed = server.run_shell(&id, install).await.expect_success();
    assert!(installed.ends_with("tiny-private from the registry\n"), "{installed}");
    let requests = registry.requests();
    // npm also asks for its own new versions.
    assert!(requests.iter().all(|request| request.starts_with("GET ") && !request.ends_with(" 401")), "{requests:?}");
    assert!(requests.iter().any(|request| request.contains("/-/tiny-private-1.0.0.tgz")), "{requests:?}");

    let lock = server.run_shell(&id, "cat package-lock.json").await.expect_success();
    assert!(lock.contains("node_modules/tiny-private") && !lock.contains("7709"), "the lock file is portable: {lock}");

    // A lock file of the public registry: npm replaces its host and drops the registry's path.
    let resolved = "https://registry.npmjs.org/tiny-private/-/tiny-private-1.0.0.tgz";
    let lock = json!({ "name": "workspace", "lockfileVersion": 3, "requires": true, "packages": {
        "": { "dependencies": { "tiny-private": "^1.0.0" } },
        "node_modules/tiny-private": { "version": "1.0.0", "resolved": resolved },
    } });
    let lock = format!(
        "echo '{lock}' > package-lock.json; rm -rf node_modules ~/.npm; npm ci --no-audit 2>&1 && ls node_modules"
    );
    let clean = server.run_shell(&id, &lock).await.expect_success();
    assert!(clean.ends_with("tiny-private\n"), "{clean}");

    // Only reads pass, and nothing outside of the registry's host.
    let base = format!("http://127.0.0.1:7709/registry/npm{NPM_PATH}");
    let status = |arguments: &str| format!("curl -s -o /dev/null -w '%{{http_code}}' {arguments}");
    let publish = server.run_shell(&id, &status(&format!("-X PUT -d '{{}}' {base}/tiny-private"))).await;
    assert_eq!(publish.expect_success(), "405");
    let above = server.run_shell(&id, &status(&format!("--path-as-is {base}/../../admin"))).await;
    assert_eq!(above.expect_success(), "400");

    // The token is nowhere inside, and each tool has its own form.
    let everywhere = format!("env | grep -c {token}; grep -rs {token} ~ /workspace /tmp | wc -l");
    assert_eq!(server.run_shell(&id, &everywhere).await.stdout, "0\n0\n");
    let forms = "cat ~/.cargo/config.toml ~/.m2/settings.xml ~/.gradle/init.d/atoll.gradle; echo $GOPROXY";
    let forms = server.run_shell(&id, forms).await.expect_success();
    for part in ["sparse+https://crates.example/index/", "<url>https://maven.example/all</url>", "https://go.example\n"]
    {
        assert!(forms.contains(part), "{part}: {forms}");
    }
    let stored = block_in_place(|| find_files_containing(&server.data_dir(), &[&token]));
    assert_eq!(stored, "", "the token is stored only sealed");

    // Set-up has the same registries, before the agent starts.
    let steps =
        "npm install --no-audit --no-fund tiny-private && cat ~/.cargo/config.toml && test -e ~/.m2/settings.xml";
    let body = json!({ "prompt": "run node -p \"require('tiny-private')\"", "setup": { "commands": [steps] } });
    let (row, events) = run_to_end(&server, body).await;
    assert_eq!(row["outcome"], "succeeded", "{events:#?}");
    assert!(setup_output(&events, "stdout").contains("sparse+https://crates.example/index/"), "{events:#?}");
    assert_eq!(command_output(&events), "tiny-private from the registry\n");

    // The network policy holds.
    server.admin.put(&format!("/sandboxes/{id}/network"), json!({ "policy": "none" })).await.expect_status(200);
    let refused = server.run_shell(&id, &format!("curl -s -w '%{{http_code}}' {base}/tiny-private")).await;
    assert!(refused.stdout.contains("network policy") && refused.stdout.ends_with("403"), "{refused:?}");
    server.stop_and_check().await;
}

/// A tool that installs a package from its configured registry.
struct Tool {
    /// The name of its registry.
    kind: &'static str,
    program: &'static str,
    /// Installs the package `$1` in an empty directory and prints its text.
    script: &'static str,
    uses_basic_authentication: bool,
}

const TOOLS: &[Tool] = &[
    Tool {
        kind: "npm",
        program: "npm",
        script: "npm install --no-audit --no-fund $1 && node -p \"require('$1')\"",
        uses_basic_authentication: false,
    },
    Tool {
        kind: "pip",
        program: "pip3",
        script: "pip3 install --quiet --target packages $1 && cat packages/*.py",
        uses_basic_authentication: true,
    },
    Tool {
        kind: "cargo",
        program: "cargo",
        script: "cargo init --quiet --vcs none --name app && cargo add --quiet $1 && cargo fetch --quiet && \
                 cat ~/.cache/packages/cargo/registry/src/*/$1-*/src/lib.rs",
        uses_basic_authentication: false,
    },
    Tool {
        kind: "go",
        program: "go",
        script: "export GONOSUMDB=modules.example; go mod init app && go get modules.example/$1 && \
                 cat $(go list -m -f '{{.Dir}}' modules.example/$1)/text.go",
        uses_basic_authentication: false,
    },
    Tool {
        kind: "maven",
        program: "mvn",
        script: "printf '<project><modelVersion>4.0.0</modelVersion><parent><groupId>example</groupId><artifactId>%s\
                 </artifactId><version>1.0.0</version><relativePath/></parent><artifactId>app</artifactId>\
                 <packaging>pom</packaging></project>' $1 > pom.xml && mvn -B validate && \
                 cat ~/.cache/packages/maven/example/$1/*/*.pom",
        uses_basic_authentication: true,
    },
];

/// Set-up installs one package and the agent another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_tool_installs_from_its_registry_in_set_up_and_by_the_agent() {
    let token = format!("token-{}", uuid::Uuid::new_v4().simple());
    let packages = ["tiny-first", "tiny-second"];
    let registry = PackageRegistry::start(&token, &packages);
    let entries = TOOLS.iter().map(|tool| {
        let mut entry = json!({ "url": registry.url(tool.kind), "secret": "REGISTRY_TOKEN" });
        if tool.uses_basic_authentication {
            entry["user"] = json!(USER);
        }
        (tool.kind.to_owned(), entry)
    });
    let entries = Value::Object(entries.collect());
    let server = LocalServer::start_with_config(&format!("registries: {entries}\n"));
    let host = registry.address.to_string();
    let set = ["secret", "set", "REGISTRY_TOKEN", "--upstream", &host];
    let (is_set, output) = block_in_place(|| run_atoll(&server, &set, &token));
    assert!(is_set, "{output}");
    for tool in TOOLS {
        let Tool { kind, program, script, .. } = tool;
        if !process::is_in_path(program) {
            report_skipped(kind, &format!("{program} is missing"));
            continue;
        }
        let install = |name: &str| format!("mkdir -p {name} && cd {name} && set -- {name} && {script}");
        let body = json!({ "network": { "policy": "packages" }, "setup": { "commands": [install(packages[0])] } });
        let id = server.create_idle_sandbox(body).await;
        let events = server.admin.all_events(&id).await;
        assert!(setup_output(&events, "stdout").contains(&package_text(packages[0])), "{kind}: {events:#?}");
        let message = json!({ "content": format!("run {}", install(packages[1])) });
        server.send_message(&id, message).await;
        let call = server.wait_for_event(&id, |event| event["type"] == "agent.tool_completed").await;
        assert!(call["data"]["output"].as_str().unwrap().contains(&package_text(packages[1])), "{kind}: {call:#}");
        let everywhere = format!("env | grep -c {token}; grep -rs {token} ~ /workspace /tmp | wc -l");
        assert_eq!(server.run_shell(&id, &everywhere).await.stdout, "0\n0\n", "{kind}");
        let requests = registry.requests();
        for name in packages {
            let read = format!("GET /repository/{kind}/");
            let is_read = |request: &&String| request.starts_with(&read) && request.contains(name);
            assert!(requests.iter().filter(is_read).any(|request| request.ends_with(" 200")), "{kind}: {requests:#?}");
        }
    }
    let requests = registry.requests();
    assert!(requests.iter().all(|request| !request.ends_with(" 401")), "{requests:#?}");
    let stored = block_in_place(|| find_files_containing(&server.data_dir(), &[&token]));
    assert_eq!(stored, "", "the token is stored only sealed");
    server.stop_and_check().await;
}
