//! A package registry that needs a token: npm in a sandbox installs from it, and the token stays outside.

use super::exposed_secrets::{find_files_containing, run_atoll};
use super::setup::{command_output, run_to_end, setup_output};
use atoll_tests::local::{LocalServer, report_skipped};
use atoll_tests::npm_registry::{BASE_PATH, NpmRegistry};
use serde_json::json;
use tokio::task::block_in_place;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn npm_installs_from_a_registry_whose_token_stays_outside() {
    if !std::path::Path::new("/usr/bin/npm").exists() {
        return report_skipped("npm with a company's registry", "npm is not in /usr/bin");
    }
    let token = format!("token-{}", uuid::Uuid::new_v4().simple());
    let registry = NpmRegistry::start(&token, "tiny-private", "module.exports = 'from the registry'");
    let entry = json!({ "url": registry.url(), "secret": "NPM_TOKEN" });
    let others = json!({ "npm": entry, "cargo": { "url": "https://crates.example/index" },
                         "maven": { "url": "https://maven.example/all" }, "go": { "url": "https://go.example" } });
    let server = LocalServer::start_with_config(&format!("registries: {others}\n"));
    let id = server.create_idle_sandbox(json!({ "network": { "policy": "packages" } })).await;
    let install = "npm install --no-audit --no-fund tiny-private 2>&1 && node -p \"require('tiny-private')\"";

    let without = server.run_shell(&id, install).await;
    assert_ne!(without.exit_code(), Some(0), "{without:?}");
    assert_eq!(registry.requests(), Vec::<String>::new(), "there is no token yet");
    let direct = server.run_shell(&id, &format!("curl -s --noproxy '*' {}/tiny-private", registry.url())).await;
    assert_ne!(direct.exit_code(), Some(0), "{direct:?}");

    let host = registry.address.to_string();
    let set = ["secret", "set", "NPM_TOKEN", "--upstream", &host];
    let (is_set, output) = block_in_place(|| run_atoll(&server, &set, &token));
    assert!(is_set, "{output}");
    let installed = server.run_shell(&id, install).await.expect_success();
    assert!(installed.ends_with("from the registry\n"), "{installed}");
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
    let base = format!("http://127.0.0.1:7709/registry/npm{BASE_PATH}");
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
    assert_eq!(command_output(&events), "from the registry\n");

    // The network policy holds.
    server.admin.put(&format!("/sandboxes/{id}/network"), json!({ "policy": "none" })).await.expect_status(200);
    let refused = server.run_shell(&id, &format!("curl -s -w '%{{http_code}}' {base}/tiny-private")).await;
    assert!(refused.stdout.contains("network policy") && refused.stdout.ends_with("403"), "{refused:?}");
    server.stop_and_check().await;
}
