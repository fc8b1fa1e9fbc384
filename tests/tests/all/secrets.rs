//! Secrets are write-only for clients, on both databases.

use atoll_store::DatabaseLocation;
use atoll_tests::actor::Actor;
use atoll_tests::database::DatabaseKind;
use atoll_tests::manual_worker::{ManualWorker, build_event};
use atoll_tests::on_both_databases;
use atoll_tests::server::TestServer;
use reqwest::Method;
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

on_both_databases!(
    a_secret_is_set_listed_replaced_and_removed,
    an_invalid_secret_is_refused_and_not_echoed,
    an_exposed_secret_reaches_the_worker_and_is_never_stored_in_plain_text,
    a_sandbox_can_only_use_existing_secrets,
    rotation_reseals_every_secret,
    a_lost_key_is_reported_with_the_secrets_name,
    secrets_are_scoped_to_their_project,
    a_projects_secret_is_not_redacted_in_another_project,
);

const SECRET_VALUE: &str = "s3cr3t/Value+with=\"signs\" ä";

fn str_value(value: &Value) -> &str {
    value.as_str().unwrap()
}

async fn create_project(admin: &Actor, name: &str) -> String {
    str_value(&admin.post("/projects", json!({ "name": name })).await.expect_status(201)["id"]).to_owned()
}

fn run_with_input(command: &mut Command, input: &str) -> Vec<u8> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap().stdout
}

/// Reads the whole content of the database as bytes, to search it.
fn database_bytes(server: &TestServer) -> Vec<u8> {
    match &server.options.store_location() {
        DatabaseLocation::Sqlite(path) => {
            // Include the write-ahead log.
            let read = |suffix: &str| std::fs::read(format!("{}{suffix}", path.display())).unwrap_or_default();
            [read(""), read("-wal")].concat()
        }
        DatabaseLocation::Postgres(url) => {
            let tables = ["secrets", "events", "messages", "sandboxes", "sessions", "idempotency", "meta", "blobs"];
            let sql: String = tables.iter().map(|table| format!("TABLE {table};")).collect();
            run_with_input(Command::new("psql").args(["-qAt", "-d", url.expose_secret()]), &sql)
        }
    }
}

fn contains_bytes(bytes: &[u8], word: &str) -> bool {
    bytes.windows(word.len()).any(|window| window == word.as_bytes())
}

/// A part of `SECRET_VALUE` that needs no escaping, so that every plain form contains it.
const SECRET_FRAGMENT: &str = "s3cr3t";

async fn a_secret_is_set_listed_replaced_and_removed(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let body = json!({ "value": SECRET_VALUE, "upstreams": ["api.example.org", "*.example.com:8443"] });
    let created = admin.put("/secrets/API_KEY", body).await.expect_status(201);
    assert_eq!(
        (str_value(&created["name"]), created["exposed"].as_bool(), &created["project_id"]),
        ("API_KEY", Some(false), &Value::Null)
    );
    let first = database_bytes(&server);
    let again =
        admin.put("/secrets/API_KEY", json!({ "value": "another one", "expose": "KEY" })).await.expect_status(200);
    assert_eq!(
        (&again["id"], &again["created_at"], str_value(&again["expose"])),
        (&created["id"], &created["created_at"], "KEY")
    );
    assert_eq!(again["upstreams"], json!([]));

    admin.put("/secrets/OTHER", json!({ "value": SECRET_VALUE })).await.expect_status(201);
    let listed = admin.list_all("/secrets", 1).await;
    assert_eq!(listed.iter().map(|row| str_value(&row["name"])).collect::<Vec<_>>(), ["API_KEY", "OTHER"]);
    for row in &listed {
        let fields: Vec<&String> = row.as_object().unwrap().keys().collect();
        let known = [
            "id",
            "name",
            "project_id",
            "upstreams",
            "exposed",
            "expose",
            "expose_file",
            "created_by",
            "created_at",
            "updated_at",
        ];
        assert!(fields.iter().all(|field| known.contains(&field.as_str())), "{fields:?}");
    }
    admin.get("/secrets/OTHER").await.expect_problem(405, "method_not_allowed");
    admin.delete("/secrets/OTHER").await.expect_status(200);
    admin.delete("/secrets/OTHER").await.expect_problem(404, "not_found");
    for bytes in [first, database_bytes(&server)] {
        assert!(contains_bytes(&bytes, "API_KEY"), "the search finds nothing");
        assert!(!contains_bytes(&bytes, SECRET_FRAGMENT) && !contains_bytes(&bytes, "another one"));
    }
    let mode = std::fs::metadata(server.data_dir().join("secret-keys")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    server.stop().await;
}

async fn an_invalid_secret_is_refused_and_not_echoed(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let long = |bytes: usize| SECRET_FRAGMENT.repeat(bytes / SECRET_FRAGMENT.len() + 1);
    let bad = [
        json!({}),
        json!({ "value": "" }),
        json!({ "value": null, "x": SECRET_FRAGMENT }),
        json!({ "value": [SECRET_FRAGMENT] }),
        json!({ "value": { SECRET_FRAGMENT: 1 } }),
        json!({ "value": format!("{SECRET_FRAGMENT}\0") }),
        json!({ "value": long(64 * 1024) }),
        json!({ "value": long(32 * 1024), "expose": "X" }),
        json!({ "value": SECRET_FRAGMENT, SECRET_FRAGMENT: true }),
        json!({ "value": SECRET_FRAGMENT, "upstreams": SECRET_FRAGMENT }),
        json!({ "value": SECRET_FRAGMENT, "upstreams": ["https://example.org"] }),
        json!({ "value": SECRET_FRAGMENT, "upstreams": ["*"] }),
        json!({ "value": SECRET_FRAGMENT, "expose": "PATH" }),
        json!({ "value": SECRET_FRAGMENT, "expose": "LD_PRELOAD" }),
        json!({ "value": SECRET_FRAGMENT, "expose": "lower" }),
        json!({ "value": SECRET_FRAGMENT, "expose": "" }),
        json!({ "value": SECRET_FRAGMENT, "expose_file": "auth.json" }),
        json!({ "value": "{}", "expose_file": "../auth.json" }),
        json!({ "value": "{}", "expose_file": "/auth.json" }),
        json!({ "value": "{}", "expose_file": "" }),
        json!({ "value": "{}", "expose_file": "auth.json", "expose": "X" }),
        json!({ "value": SECRET_FRAGMENT, "project_id": SECRET_FRAGMENT }),
    ];
    for body in bad {
        let refused = admin.put("/secrets/NAME", body.clone()).await.expect_problem(422, "invalid");
        assert!(!refused.to_string().contains(SECRET_FRAGMENT), "{refused}");
    }
    for name in ["lower", "1X", "A-B", "%2e%2e", "A%00", "A%2FB", &"N".repeat(65), "%C3%84"] {
        let answer = admin.put(&format!("/secrets/{name}"), json!({ "value": SECRET_FRAGMENT })).await;
        assert!([404, 422].contains(&answer.status.as_u16()), "{name}: {}", answer.body);
        assert!(!answer.body.to_string().contains(SECRET_FRAGMENT));
    }
    for text in ["", "{", "[\"s3cr3t\"]", "\"s3cr3t\"", "{\"value\": s3cr3t}", "{\"value\": \"s3cr3t"] {
        let request = admin.request(Method::PUT, "/secrets/NAME").header("content-type", "application/json");
        let refused = admin.send(request.body(text)).await.expect_problem(422, "invalid");
        assert!(!refused.to_string().contains(SECRET_FRAGMENT), "{refused}");
    }
    let plain = admin.request(Method::PUT, "/secrets/NAME").body("{\"value\": \"s3cr3t\"}");
    admin.send(plain).await.expect_problem(415, "unsupported_media_type");
    admin
        .put("/secrets/NAME", json!({ "value": "x", "project_id": "prj_01k9z0000000000000000000p1" }))
        .await
        .expect_problem(404, "not_found");
    // The server stores no idempotency record for this route.
    let keyed = admin.request(Method::PUT, "/secrets/NAME").header("idempotency-key", "k-e-y");
    admin.send(keyed.json(&json!({ "value": "1234" }))).await.expect_status(201);
    assert!(!contains_bytes(&database_bytes(&server), "k-e-y"));
    assert_eq!(admin.list_all("/secrets", 50).await.len(), 1, "a refused request created a secret");
    server.stop().await;
}

async fn an_exposed_secret_reaches_the_worker_and_is_never_stored_in_plain_text(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    admin.put("/secrets/TOKEN", json!({ "value": SECRET_VALUE, "expose": "MY_TOKEN" })).await.expect_status(201);
    admin.put("/secrets/KEPT", json!({ "value": "stays-outside-1" })).await.expect_status(201);
    let settings =
        json!({ "secrets": ["TOKEN", "KEPT"], "prompt": format!("use {SECRET_VALUE} please"), "agent": "mine" });
    let sandbox = admin.create_external_sandbox(settings).await;
    let path = format!("/sandboxes/{}", sandbox.id);
    let worker = ManualWorker::new(&admin, &sandbox);
    let started = worker.send_heartbeat("starting").await.expect_status(200);
    assert_eq!(started["start"]["settings"]["env"], json!({ "MY_TOKEN": SECRET_VALUE }));
    assert!(!started.to_string().contains("stays-outside-1"));
    // The server redacts the value in messages. The agent has it as a variable.
    assert_eq!(started["start"]["prompt"]["content"], "use [redacted] please");
    let row = admin.get(&path).await.expect_status(200);
    assert_eq!((&row["exposed_secrets"], &row["settings"]["secrets"]), (&json!(["TOKEN"]), &json!(["TOKEN", "KEPT"])));
    assert!(row["settings"].get("env").is_none_or(|env| env == &json!({})), "{row}");

    let base64 = "czNjcjN0L1ZhbHVlK3dpdGg9InNpZ25zIiDDpA==";
    let percent = "s3cr3t%2FValue%2Bwith%3D%22signs%22%20%C3%A4";
    let texts = [SECRET_VALUE, base64, percent, "stays-outside-1"];
    let events = texts
        .iter()
        .zip(1..)
        .map(|(text, key)| build_event(key, "agent.message", json!({ "text": format!("<{text}>") })));
    worker.send_batch(events.collect()).await.expect_status(200);
    let log = admin.all_events(&sandbox.id).await;
    let stored: Vec<&str> = log
        .iter()
        .filter(|event| event["type"] == "agent.message")
        .map(|event| str_value(&event["data"]["text"]))
        .collect();
    // The redactor leaves the last characters of Base64, which depend on the bytes that follow the secret.
    assert_eq!(stored.len(), 4);
    assert!(stored.iter().all(|text| text.starts_with("<[redacted]") && text.len() < 17), "{stored:?}");
    let exposed: Vec<&Value> = log.iter().filter(|event| event["type"] == "secrets.exposed").collect();
    assert_eq!(exposed.len(), 1);
    assert_eq!(exposed[0]["data"]["secrets"], json!([{ "name": "TOKEN", "variable": "MY_TOKEN" }]));

    check_blob_is_redacted(&server, &worker, &path).await;
    let sent = admin
        .post(&format!("{path}/messages"), json!({ "content": format!("again {SECRET_VALUE}") }))
        .await
        .expect_status(201);
    assert_eq!(sent["content"], "again [redacted]");
    let bytes = database_bytes(&server);
    for word in [SECRET_FRAGMENT, "stays-outside", "czNjcjN0"] {
        assert!(!contains_bytes(&bytes, word), "{word}");
        assert_eq!(find_files_containing(server.data_dir(), word), Vec::<String>::new());
    }
    // The server still redacts a replaced value, because the sandbox has it.
    admin.put("/secrets/TOKEN", json!({ "value": "a new value" })).await.expect_status(200);
    worker.send_batch(vec![build_event(5, "agent.message", json!({ "text": SECRET_VALUE }))]).await.expect_status(200);
    assert!(!json!(admin.all_events(&sandbox.id).await).to_string().contains(SECRET_FRAGMENT));
    server.stop().await;
}

/// Checks that the stored blob is redacted and readable under the hash of the uploaded bytes.
async fn check_blob_is_redacted(server: &TestServer, worker: &ManualWorker, path: &str) {
    let content = format!("{}\n{SECRET_VALUE}\n{}", "before".repeat(20_000), "after".repeat(20_000));
    let hash = run_with_input(&mut Command::new("sha256sum"), &content);
    let hash = std::str::from_utf8(&hash[..64]).unwrap().to_owned();
    let blob = format!("{path}/blobs/{hash}");
    let stored =
        worker.actor.send(worker.actor.request(Method::PUT, &blob).body(content.clone())).await.expect_status(200);
    let read = server.admin().get(&blob).await;
    let expected = content.replace(SECRET_VALUE, "[redacted]");
    assert_eq!(read.body.as_str(), Some(expected.as_str()));
    assert_eq!(stored["size"], expected.len());
    // Each file's name is the hash of its content: a backup checks that.
    let mut command = Command::new("sh");
    let script =
        r#"for file in "$1"/blobs/??/*; do echo "$(basename "$file")  $file"; done | sha256sum --check --quiet"#;
    let checked = command.args(["-c", script, "check"]).arg(server.data_dir()).status().unwrap();
    assert!(checked.success());
}

/// Lists the files under `dir` that contain the word.
fn find_files_containing(dir: &Path, word: &str) -> Vec<String> {
    let found = Command::new("grep").args(["-rlaF", "--", word]).arg(dir).output().unwrap().stdout;
    String::from_utf8(found).unwrap().lines().map(str::to_owned).collect()
}

async fn a_sandbox_can_only_use_existing_secrets(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let create = async |settings: Value| {
        let mut body = json!({ "provider": "external" });
        body.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
        admin.post("/sandboxes", body).await
    };
    let refused = create(json!({ "secrets": ["ABSENT"] })).await.expect_problem(422, "invalid");
    assert!(str_value(&refused["detail"]).contains("`ABSENT`") && refused["secret"] == "ABSENT", "{refused}");
    create(json!({ "secrets": ["not a name"] })).await.expect_problem(422, "invalid");
    admin.put("/secrets/A", json!({ "value": "value-a", "expose": "X" })).await.expect_status(201);
    admin.put("/secrets/B", json!({ "value": "value-b", "expose": "X" })).await.expect_status(201);
    create(json!({ "secrets": ["A", "B"] })).await.expect_problem(422, "invalid");
    create(json!({ "secrets": ["A"], "env": { "X": "1" } })).await.expect_problem(422, "invalid");
    let created = create(json!({ "secrets": ["A", "A"] })).await.expect_status(201);
    assert_eq!(created["exposed_secrets"], json!(["A"]));
    // A sandbox starts without a secret that was removed meanwhile, and emits a notice.
    admin.delete("/secrets/A").await.expect_status(200);
    let worker = admin.with_token(str_value(&created["worker"]["token"]));
    let heartbeat = json!({ "stream": uuid::Uuid::now_v7(), "at": "2026-01-01T00:00:00Z", "activity": "starting" });
    let started =
        worker.post(&format!("/sandboxes/{}/heartbeat", str_value(&created["id"])), heartbeat).await.expect_status(200);
    assert_eq!(started["start"]["settings"].get("env"), None);
    let row = admin.get(&format!("/sandboxes/{}", str_value(&created["id"]))).await.expect_status(200);
    assert_eq!(row["exposed_secrets"], json!([]));
    let events = admin.all_events(str_value(&created["id"])).await;
    let notice = events.iter().find(|event| event["type"] == "sandbox.notice").unwrap();
    assert!(str_value(&notice["data"]["text"]).contains("`A` was removed"), "{notice}");
    server.stop().await;
}

async fn rotation_reseals_every_secret(kind: DatabaseKind) {
    let mut server = TestServer::start(kind).await;
    let admin = server.admin();
    for n in 0..120 {
        let body = json!({ "value": format!("value-number-{n}"), "expose": format!("V{n}") });
        admin.put(&format!("/secrets/S{n}"), body).await.expect_status(201);
    }
    let keys = server.data_dir().join("secret-keys");
    let before = std::fs::read_to_string(&keys).unwrap();
    let done = admin.post("/secrets/rotate", json!({})).await.expect_status(200);
    assert_eq!((done["sealed"].as_u64(), &done["left"]), (Some(120), &json!([])));
    let after = std::fs::read_to_string(&keys).unwrap();
    assert!(after.starts_with(&before) && after.lines().count() == before.lines().count() + 1);
    // The new key alone opens every secret.
    let new_only: String =
        after.lines().filter(|line| !before.contains(*line)).map(|line| format!("{line}\n")).collect();
    std::fs::write(&keys, new_only).unwrap();
    server.restart().await;
    let admin = server.admin();
    let sandbox = admin.create_external_sandbox(json!({ "secrets": ["S0", "S119"] })).await;
    let started = ManualWorker::new(&admin, &sandbox).send_heartbeat("starting").await.expect_status(200);
    let env = json!({ "V0": "value-number-0", "V119": "value-number-119" });
    assert_eq!(started["start"]["settings"]["env"], env);
    // A restarted server redacts every secret, also those that no sandbox has used.
    let worker = ManualWorker::new(&admin, &sandbox);
    worker
        .send_batch(vec![build_event(1, "agent.message", json!({ "text": "it is value-number-77" }))])
        .await
        .expect_status(200);
    let events = admin.all_events(&sandbox.id).await;
    assert_eq!(events.last().unwrap()["data"]["text"], "it is [redacted]");
    server.stop().await;
}

async fn a_lost_key_is_reported_with_the_secrets_name(kind: DatabaseKind) {
    let mut server = TestServer::start(kind).await;
    let admin = server.admin();
    admin.put("/secrets/OLD", json!({ "value": SECRET_VALUE, "expose": "OLD" })).await.expect_status(201);
    let keys = server.data_dir().join("secret-keys");
    let old_keys = std::fs::read_to_string(&keys).unwrap();
    std::fs::remove_file(&keys).unwrap();
    server.restart().await;
    let admin = server.admin();
    let request = json!({ "provider": "external", "secrets": ["OLD"] });
    let refused = admin.post("/sandboxes", request.clone()).await.expect_problem(409, "secret_key_unusable");
    assert!(str_value(&refused["detail"]).contains("`OLD`"), "{refused}");
    // New secrets get a new key. A rotation lists the secrets that it cannot open and leaves them.
    admin.put("/secrets/NEW", json!({ "value": "new-value" })).await.expect_status(201);
    let done = admin.post("/secrets/rotate", json!({})).await.expect_status(200);
    assert_eq!((done["sealed"].as_u64(), str_value(&done["left"][0]["name"])), (Some(1), "OLD"));
    // With the old keys restored beside the new ones, every secret opens without a restart.
    let new_keys = std::fs::read_to_string(&keys).unwrap();
    std::fs::write(&keys, format!("{old_keys}{new_keys}")).unwrap();
    admin.post("/sandboxes", request.clone()).await.expect_status(201);

    std::fs::set_permissions(&keys, PermissionsExt::from_mode(0o644)).unwrap();
    for answer in [
        admin.put("/secrets/NEW", json!({ "value": SECRET_VALUE })).await,
        admin.post("/sandboxes", request.clone()).await,
        admin.post("/secrets/rotate", json!({})).await,
    ] {
        let refused = answer.expect_problem(409, "secret_key_unusable");
        assert!(
            str_value(&refused["detail"]).contains("chmod 600") && !refused.to_string().contains(SECRET_FRAGMENT),
            "{refused}"
        );
    }
    std::fs::write(&keys, "garbage").unwrap();
    server.restart().await;
    server.admin().get("/secrets").await.expect_status(200);
    server.stop().await;
}

async fn secrets_are_scoped_to_their_project(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let (own_project, other_project) = (create_project(&admin, "ours").await, create_project(&admin, "theirs").await);
    for (owner, value) in
        [(Some(&own_project), "value-ours"), (Some(&other_project), "value-theirs"), (None, "value-common")]
    {
        let body = json!({ "value": value, "project_id": owner, "expose": "SAME" });
        admin.put("/secrets/SAME", body).await.expect_status(201);
    }
    admin.put("/secrets/THEIRS", json!({ "value": "x", "project_id": other_project })).await.expect_status(201);
    let environment = async |project: Option<&str>| {
        let sandbox = admin.create_external_sandbox(json!({ "project_id": project, "secrets": ["SAME"] })).await;
        let started = ManualWorker::new(&admin, &sandbox).send_heartbeat("starting").await.expect_status(200);
        started["start"]["settings"]["env"]["SAME"].as_str().unwrap().to_owned()
    };
    assert_eq!(environment(Some(&own_project)).await, "value-ours");
    assert_eq!(environment(None).await, "value-common");
    let foreign = json!({ "provider": "external", "project_id": own_project, "secrets": ["THEIRS"] });
    admin.post("/sandboxes", foreign).await.expect_problem(422, "invalid");

    let robot = json!({ "name": "robot", "kind": "service", "role": "admin", "project_id": own_project });
    let robot = admin.with_token(str_value(&admin.post("/tokens", robot).await.expect_status(201)["token"]));
    let listed = robot.list_all("/secrets", 50).await;
    assert_eq!(listed.len(), 2, "expected the project's and the deployment's secrets: {listed:?}");
    robot.put("/secrets/MINE", json!({ "value": "x", "project_id": own_project })).await.expect_status(201);
    robot
        .put("/secrets/MINE", json!({ "value": "x", "project_id": other_project }))
        .await
        .expect_problem(404, "not_found");
    robot.put("/secrets/MINE", json!({ "value": "x" })).await.expect_problem(403, "forbidden");
    robot.get(&format!("/secrets?project_id={other_project}")).await.expect_problem(404, "not_found");
    robot.delete(&format!("/secrets/THEIRS?project_id={other_project}")).await.expect_problem(404, "not_found");
    robot.post("/secrets/rotate", json!({})).await.expect_problem(403, "forbidden");
    let of_theirs = admin.get(&format!("/secrets?project_id={other_project}")).await.expect_status(200);
    assert_eq!(of_theirs["items"].as_array().unwrap().len(), 3);

    // A project has at most 200 secrets, and deleting the project deletes them.
    for n in 0..198 {
        let body = json!({ "value": "x", "project_id": other_project });
        admin.put(&format!("/secrets/N{n}"), body).await.expect_status(201);
    }
    let one_more = admin.put("/secrets/ONE_MORE", json!({ "value": "x", "project_id": other_project })).await;
    assert!(str_value(&one_more.expect_problem(422, "invalid")["detail"]).contains("200"));
    admin.put("/secrets/N0", json!({ "value": "y", "project_id": other_project })).await.expect_status(200);
    admin.delete(&format!("/projects/{other_project}")).await.expect_status(200);
    let left: Vec<String> =
        admin.list_all("/secrets", 200).await.iter().map(|row| str_value(&row["name"]).to_owned()).collect();
    assert_eq!(left, ["SAME", "SAME", "MINE"]);
    server.stop().await;
}

async fn a_projects_secret_is_not_redacted_in_another_project(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let (own_project, other_project) = (create_project(&admin, "ours").await, create_project(&admin, "theirs").await);
    admin.put("/secrets/DB_USER", json!({ "value": "postgres", "project_id": own_project })).await.expect_status(201);
    let prompt = "connect as postgres";
    for (project, expected) in [(&own_project, "connect as [redacted]"), (&other_project, prompt)] {
        let sandbox = admin.create_external_sandbox(json!({ "project_id": project, "prompt": prompt })).await;
        let worker = ManualWorker::new(&admin, &sandbox);
        let started = worker.send_heartbeat("starting").await.expect_status(200);
        assert_eq!(started["start"]["prompt"]["content"], expected);
        worker.send_batch(vec![build_event(1, "agent.message", json!({ "text": prompt }))]).await.expect_status(200);
        let events = admin.all_events(&sandbox.id).await;
        assert_eq!(events.last().unwrap()["data"]["text"], expected);
        let session = admin.get(&format!("/sessions/{}", sandbox.session)).await.expect_status(200);
        assert_eq!(session["title"], expected);
    }
    server.stop().await;
}
