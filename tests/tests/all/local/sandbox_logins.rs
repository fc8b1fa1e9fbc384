//! A login file in a real sandbox: the server writes it before each prompt, without the refresh token, and keeps it out
//! of snapshots.

use super::exposed_secrets::{find_files_containing, run_atoll};
use atoll_tests::local::{LocalServer, event_data};
use serde_json::{Value, json};

const LOGIN_PATH: &str = ".local/share/demo/auth.json";

/// A login in which every token contains `word`.
fn login_json(word: &str) -> String {
    let first = json!({ "type": "oauth", "access": format!("access-{word}"), "refresh": format!("renew-{word}"),
        "expires": 1_900_000_000_000_u64, "refreshTokenExpiresAt": 1_900_000_000_000_u64 });
    json!({ "someone": first, "other": { "type": "api", "key": format!("key-{word}") } }).to_string()
}

/// The same login as the sandbox must see it.
fn login_without_refresh(word: &str) -> Value {
    let first = json!({ "type": "oauth", "access": format!("access-{word}"), "refresh": "",
        "expires": 1_900_000_000_000_u64, "refreshTokenExpiresAt": 0 });
    json!({ "someone": first, "other": { "type": "api", "key": format!("key-{word}") } })
}

async fn read_login(server: &LocalServer, id: &str) -> Value {
    let text = server.run_shell(id, &format!("cat ~/{LOGIN_PATH}")).await.expect_success();
    serde_json::from_str(&text).unwrap()
}

async fn has_login(server: &LocalServer, id: &str) -> bool {
    server.run_shell(id, &format!("test -e ~/{LOGIN_PATH}")).await.exit_code() == Some(0)
}

/// Checks that a viewer reads the workspace, but neither the login file nor the environment of processes, whatever the
/// path looks like. A member of the project reads them.
async fn check_viewer_reads_only_the_workspace(server: &LocalServer, id: &str, word: &str) {
    let user = server.admin.post("/users", json!({ "name": "visitor", "role": "viewer" })).await.expect_status(201);
    let token = json!({ "name": "visit", "user_id": user["id"] });
    let token = server.admin.post("/tokens", token).await.expect_status(201)["token"].clone();
    let viewer = server.admin.with_token(token.as_str().unwrap());
    let links = format!("echo shown > seen.txt; ln -s seen.txt inner; ln -s ~/{LOGIN_PATH} outer; ln -s / root");
    server.run_shell(id, &links).await.expect_success();
    let path = |rest: &str| format!("/sandboxes/{id}/files{rest}");
    for shown in ["seen.txt", "/workspace/seen.txt", "inner", "root/workspace/seen.txt"] {
        let read = viewer.get(&path(&format!("?path={shown}"))).await.expect_status(200);
        assert_eq!(read, "shown\n", "{shown}");
    }
    let listed = viewer.get(&path("/list")).await.expect_status(200).to_string();
    assert!(listed.contains("outer"), "{listed}");
    viewer.get(&path("/stat?path=outer")).await.expect_status(200);
    let login = format!("/home/agent/{LOGIN_PATH}");
    for hidden in [
        format!("?path={login}"),
        format!("?path=../{login}"),
        format!("?path=/workspace/../{login}"),
        format!("?path=/proc/self/root/{login}"),
        format!("?path=root/{login}"),
        "?path=outer".to_owned(),
        "?path=/proc/self/environ".to_owned(),
        "?path=/home/agent/there-is-none".to_owned(),
        "/list?path=/home/agent".to_owned(),
        "/list?path=root/home/agent".to_owned(),
        format!("/stat?path={login}"),
        format!("/stat?path=root/{login}"),
        "/tar?path=/home/agent".to_owned(),
        "/tar?path=outer".to_owned(),
        "/tar?path=root".to_owned(),
    ] {
        let refused = viewer.get(&path(&hidden)).await.expect_problem(403, "forbidden");
        assert!(!refused.to_string().contains(word), "{hidden}");
    }
    let range = viewer.request(reqwest::Method::GET, &path("?path=outer")).header("range", "bytes=-20");
    viewer.send(range).await.expect_problem(403, "forbidden");
    let read = server.admin.get(&path("?path=outer")).await.expect_status(200);
    assert_eq!(read, login_without_refresh(word));
    server.run_shell(id, "rm seen.txt inner outer root").await.expect_success();
}

/// Sends a prompt and waits until the agent has followed all its instructions.
async fn send_prompt_and_wait(server: &LocalServer, id: &str, lines: &str, last: &str) {
    server.send_message(id, json!({ "content": format!("{lines}\nsay {last}") })).await;
    server.wait_for_event(id, |event| event["type"] == "agent.message" && event["data"]["text"] == last).await;
    server.wait_until(id, |row| row["activity"] == "waiting_message").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_file_is_written_before_each_prompt_without_its_refresh_token() {
    let [word, later] = [(), ()].map(|()| uuid::Uuid::new_v4().simple().to_string());
    let server = LocalServer::start_with_flags("", &["--log-level", "trace"]);
    let set = ["secret", "set", "LOGIN", "--expose-file", LOGIN_PATH];
    let (success, output) = run_atoll(&server, &set, "access=plain-text");
    assert!(!success && output.contains("must be JSON") && !output.contains("plain-text"), "{output}");
    for bad in ["../auth.json", "/etc/auth.json", "a//b", ".codex/config.toml"] {
        let (success, output) = run_atoll(&server, &["secret", "set", "LOGIN", "--expose-file", bad], "{}");
        assert!(!success && output.contains("expose_file"), "{output}");
    }
    let (success, output) = run_atoll(&server, &set, &login_json(&word));
    assert!(success && output.contains(&format!("as ~/{LOGIN_PATH}")) && !output.contains(&word), "{output}");
    let (_, listed) = run_atoll(&server, &["secret", "ls"], "");
    assert!(listed.contains(&format!("as ~/{LOGIN_PATH}")) && !listed.contains(&word), "{listed}");

    let without = server.create_sandbox(json!({ "prompt": "say ready", "end": "keep" })).await;
    let prompt = format!(
        "run cat ~/{LOGIN_PATH}\nrun stat -c '%a %U' ~/{LOGIN_PATH}\nrun rm ~/{LOGIN_PATH}; echo mine > ~/{LOGIN_PATH}"
    );
    let id = server.create_sandbox(json!({ "prompt": prompt, "end": "keep", "secrets": ["LOGIN"] })).await;
    server.wait_until(&id, |row| row["activity"] == "waiting_message").await;
    let events = server.admin.all_events(&id).await;
    let outputs: Vec<&str> =
        event_data(&events, "agent.tool_completed").iter().map(|data| data["output"].as_str().unwrap()).collect();
    assert_eq!(outputs.len(), 3, "{events:#?}");
    // The agent read it, and the log redacts only the tokens.
    assert!(outputs[0].contains("[redacted]") && outputs[0].contains("oauth"), "{outputs:?}");
    assert_eq!(outputs[1].trim(), "600 agent");
    let exposed = event_data(&events, "secrets.exposed");
    assert_eq!(exposed.len(), 1);
    assert_eq!(exposed[0]["secrets"], json!([{ "name": "LOGIN", "file": LOGIN_PATH }]));
    assert!(!has_login(&server, &without).await, "a sandbox without the secret has no file");

    // The server replaces the agent's changes, and reports the same login only once.
    send_prompt_and_wait(&server, &id, "", "again").await;
    assert_eq!(read_login(&server, &id).await, login_without_refresh(&word));
    // A new login reaches a running sandbox with the next prompt.
    let (success, output) = run_atoll(&server, &set, &login_json(&later));
    assert!(success, "{output}");
    send_prompt_and_wait(&server, &id, &format!("run grep -o renew- ~/{LOGIN_PATH} || echo nothing renews"), "renewed")
        .await;
    assert_eq!(read_login(&server, &id).await, login_without_refresh(&later));
    let events = server.admin.all_events(&id).await;
    assert_eq!(event_data(&events, "secrets.exposed").len(), 2);
    let text = Value::from(events).to_string();
    assert!(text.contains("nothing renews") && !text.contains(&word) && !text.contains(&later), "{text}");
    let row = server.get_sandbox(&id).await;
    assert_eq!(row["exposed_secrets"], json!(["LOGIN"]));

    check_viewer_reads_only_the_workspace(&server, &id, &later).await;

    // A snapshot does not contain the file. The next prompt restores it.
    server.admin.post(&format!("/sandboxes/{id}/snapshot"), json!({ "name": "kept" })).await.expect_status(201);
    let copy = server.create_sandbox(json!({ "prompt": "say ready", "end": "keep", "snapshot": "kept" })).await;
    server.wait_until(&copy, |row| row["activity"] == "waiting_message").await;
    assert!(!has_login(&server, &copy).await && !has_login(&server, &id).await);
    send_prompt_and_wait(&server, &id, "", "back").await;
    assert_eq!(read_login(&server, &id).await, login_without_refresh(&later));
    // Deleting the secret removes the file.
    let (success, output) = run_atoll(&server, &["secret", "rm", "LOGIN", "--yes"], "");
    assert!(success, "{output}");
    send_prompt_and_wait(&server, &id, "", "without").await;
    assert!(!has_login(&server, &id).await);

    for id in [&id, &copy, &without] {
        server.admin.delete(&format!("/sandboxes/{id}?force=true")).await.expect_status(200);
        server.wait_until_removed(id).await;
    }
    assert_eq!(find_files_containing(&server.data_dir(), &[&word, &later]), "");
    let stderr = server.process.stderr_text();
    assert!(!stderr.contains(&word) && !stderr.contains(&later), "the server's log contains a token");
    server.stop_and_check().await;
}
