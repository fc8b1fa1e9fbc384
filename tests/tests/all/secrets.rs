//! Secrets go in and never come out again, on both databases.

use atoll_store::Location;
use atoll_tests::actor::Actor;
use atoll_tests::database::Kind;
use atoll_tests::on_both_databases;
use atoll_tests::server::TestServer;
use atoll_tests::worker::{HandWorker, event};
use reqwest::Method;
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

on_both_databases!(
    a_secret_is_set_listed_replaced_and_removed,
    what_is_no_secret_is_refused_and_not_repeated,
    an_exposed_one_reaches_the_worker_and_is_stored_nowhere,
    a_sandbox_names_only_what_there_is,
    everything_is_sealed_anew,
    a_lost_key_is_a_sentence,
    secrets_belong_to_their_projects,
    a_secret_of_one_project_is_a_word_in_another,
);

const VALUE: &str = "s3cr3t/Value+with=\"signs\" ä";

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

async fn project(admin: &Actor, name: &str) -> String {
    text(&admin.post("/projects", json!({ "name": name })).await.expect(201)["id"]).to_owned()
}

fn output(command: &mut Command, input: &str) -> Vec<u8> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap().stdout
}

/// Everything that the database holds, as bytes that can be searched.
fn contents(server: &TestServer) -> Vec<u8> {
    match &server.options.database {
        Location::Sqlite(path) => {
            // What stands in the log of changes counts too.
            let beside = |end: &str| std::fs::read(format!("{}{end}", path.display())).unwrap_or_default();
            [beside(""), beside("-wal")].concat()
        }
        Location::Postgres(url) => {
            let tables = ["secrets", "events", "messages", "sandboxes", "sessions", "idempotency", "meta", "blobs"];
            let sql: String = tables.iter().map(|table| format!("TABLE {table};")).collect();
            output(Command::new("psql").args(["-qAt", "-d", url.expose_secret()]), &sql)
        }
    }
}

fn holds(bytes: &[u8], word: &str) -> bool {
    bytes.windows(word.len()).any(|window| window == word.as_bytes())
}

/// A part that every plain form of it has.
const TELLING: &str = "s3cr3t";

async fn a_secret_is_set_listed_replaced_and_removed(kind: Kind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let body = json!({ "value": VALUE, "upstreams": ["api.example.org", "*.example.com:8443"] });
    let made = admin.put("/secrets/API_KEY", body).await.expect(201);
    assert_eq!(
        (text(&made["name"]), made["exposed"].as_bool(), &made["project_id"]),
        ("API_KEY", Some(false), &Value::Null)
    );
    let first = contents(&server);
    let again = admin.put("/secrets/API_KEY", json!({ "value": "another one", "expose": "KEY" })).await.expect(200);
    assert_eq!((&again["id"], &again["created_at"], text(&again["expose"])), (&made["id"], &made["created_at"], "KEY"));
    assert_eq!(again["upstreams"], json!([]));

    admin.put("/secrets/OTHER", json!({ "value": VALUE })).await.expect(201);
    let listed = admin.everything("/secrets", 1).await;
    assert_eq!(listed.iter().map(|row| text(&row["name"])).collect::<Vec<_>>(), ["API_KEY", "OTHER"]);
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
    admin.get("/secrets/OTHER").await.refused(405, "method_not_allowed");
    admin.delete("/secrets/OTHER").await.expect(200);
    admin.delete("/secrets/OTHER").await.refused(404, "not_found");
    for bytes in [first, contents(&server)] {
        assert!(holds(&bytes, "API_KEY"), "the search works");
        assert!(!holds(&bytes, TELLING) && !holds(&bytes, "another one"));
    }
    let mode = std::fs::metadata(server.data_dir().join("secret-keys")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    server.stop().await;
}

async fn what_is_no_secret_is_refused_and_not_repeated(kind: Kind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let long = |bytes: usize| TELLING.repeat(bytes / TELLING.len() + 1);
    let bad = [
        json!({}),
        json!({ "value": "" }),
        json!({ "value": null, "x": TELLING }),
        json!({ "value": [TELLING] }),
        json!({ "value": { TELLING: 1 } }),
        json!({ "value": format!("{TELLING}\0") }),
        json!({ "value": long(64 * 1024) }),
        json!({ "value": long(32 * 1024), "expose": "X" }),
        json!({ "value": TELLING, TELLING: true }),
        json!({ "value": TELLING, "upstreams": TELLING }),
        json!({ "value": TELLING, "upstreams": ["https://example.org"] }),
        json!({ "value": TELLING, "upstreams": ["*"] }),
        json!({ "value": TELLING, "expose": "PATH" }),
        json!({ "value": TELLING, "expose": "LD_PRELOAD" }),
        json!({ "value": TELLING, "expose": "lower" }),
        json!({ "value": TELLING, "expose": "" }),
        json!({ "value": TELLING, "expose_file": "auth.json" }),
        json!({ "value": "{}", "expose_file": "../auth.json" }),
        json!({ "value": "{}", "expose_file": "/auth.json" }),
        json!({ "value": "{}", "expose_file": "" }),
        json!({ "value": "{}", "expose_file": "auth.json", "expose": "X" }),
        json!({ "value": TELLING, "project_id": TELLING }),
    ];
    for body in bad {
        let refused = admin.put("/secrets/NAME", body.clone()).await.refused(422, "invalid");
        assert!(!refused.to_string().contains(TELLING), "{refused}");
    }
    for name in ["lower", "1X", "A-B", "%2e%2e", "A%00", "A%2FB", &"N".repeat(65), "%C3%84"] {
        let answer = admin.put(&format!("/secrets/{name}"), json!({ "value": TELLING })).await;
        assert!([404, 422].contains(&answer.status.as_u16()), "{name}: {}", answer.body);
        assert!(!answer.body.to_string().contains(TELLING));
    }
    for text in ["", "{", "[\"s3cr3t\"]", "\"s3cr3t\"", "{\"value\": s3cr3t}", "{\"value\": \"s3cr3t"] {
        let request = admin.request(Method::PUT, "/secrets/NAME").header("content-type", "application/json");
        let refused = admin.send(request.body(text)).await.refused(422, "invalid");
        assert!(!refused.to_string().contains(TELLING), "{refused}");
    }
    let plain = admin.request(Method::PUT, "/secrets/NAME").body("{\"value\": \"s3cr3t\"}");
    admin.send(plain).await.refused(415, "unsupported_media_type");
    admin
        .put("/secrets/NAME", json!({ "value": "x", "project_id": "prj_01k9z0000000000000000000p1" }))
        .await
        .refused(404, "not_found");
    // An Idempotency-Key leaves no trace of the request.
    let keyed = admin.request(Method::PUT, "/secrets/NAME").header("idempotency-key", "k-e-y");
    admin.send(keyed.json(&json!({ "value": "1234" }))).await.expect(201);
    assert!(!holds(&contents(&server), "k-e-y"));
    assert_eq!(admin.everything("/secrets", 50).await.len(), 1, "nothing of the rest was made");
    server.stop().await;
}

async fn an_exposed_one_reaches_the_worker_and_is_stored_nowhere(kind: Kind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    admin.put("/secrets/TOKEN", json!({ "value": VALUE, "expose": "MY_TOKEN" })).await.expect(201);
    admin.put("/secrets/KEPT", json!({ "value": "stays-outside-1" })).await.expect(201);
    let wanted = json!({ "secrets": ["TOKEN", "KEPT"], "prompt": format!("use {VALUE} please"), "agent": "mine" });
    let sandbox = admin.external(wanted).await;
    let path = format!("/sandboxes/{}", sandbox.id);
    let worker = HandWorker::new(&admin, &sandbox);
    let started = worker.heartbeat("starting").await.expect(200);
    assert_eq!(started["start"]["settings"]["env"], json!({ "MY_TOKEN": VALUE }));
    assert!(!started.to_string().contains("stays-outside-1"));
    // The value is in no message; the agent has it as a variable.
    assert_eq!(started["start"]["prompt"]["content"], "use [redacted] please");
    let row = admin.get(&path).await.expect(200);
    assert_eq!((&row["exposed_secrets"], &row["settings"]["secrets"]), (&json!(["TOKEN"]), &json!(["TOKEN", "KEPT"])));
    assert!(row["settings"].get("env").is_none_or(|env| env == &json!({})), "{row}");

    let base64 = "czNjcjN0L1ZhbHVlK3dpdGg9InNpZ25zIiDDpA==";
    let percent = "s3cr3t%2FValue%2Bwith%3D%22signs%22%20%C3%A4";
    let shown = [VALUE, base64, percent, "stays-outside-1"];
    let events =
        shown.iter().zip(1..).map(|(text, key)| event(key, "agent.message", json!({ "text": format!("<{text}>") })));
    worker.batch(events.collect()).await.expect(200);
    let told = admin.all_events(&sandbox.id).await;
    let said: Vec<&str> = told
        .iter()
        .filter(|event| event["type"] == "agent.message")
        .map(|event| text(&event["data"]["text"]))
        .collect();
    // The last characters of base64 depend on what would follow, and stay.
    assert_eq!(said.len(), 4);
    assert!(said.iter().all(|said| said.starts_with("<[redacted]") && said.len() < 17), "{said:?}");
    let exposed: Vec<&Value> = told.iter().filter(|event| event["type"] == "secrets.exposed").collect();
    assert_eq!(exposed.len(), 1);
    assert_eq!(exposed[0]["data"]["secrets"], json!([{ "name": "TOKEN", "variable": "MY_TOKEN" }]));

    a_blob_is_redacted(&server, &worker, &path).await;
    let sent =
        admin.post(&format!("{path}/messages"), json!({ "content": format!("again {VALUE}") })).await.expect(201);
    assert_eq!(sent["content"], "again [redacted]");
    let bytes = contents(&server);
    for word in [TELLING, "stays-outside", "czNjcjN0"] {
        assert!(!holds(&bytes, word), "{word}");
        assert_eq!(in_files(server.data_dir(), word), Vec::<String>::new());
    }
    // Replaced, and still known: the sandbox has the old one.
    admin.put("/secrets/TOKEN", json!({ "value": "a new value" })).await.expect(200);
    worker.batch(vec![event(5, "agent.message", json!({ "text": VALUE }))]).await.expect(200);
    assert!(!json!(admin.all_events(&sandbox.id).await).to_string().contains(TELLING));
    server.stop().await;
}

/// What is stored has other bytes than what was sent, under the name of what was sent.
async fn a_blob_is_redacted(server: &TestServer, worker: &HandWorker, path: &str) {
    let content = format!("{}\n{VALUE}\n{}", "before".repeat(20_000), "after".repeat(20_000));
    let hash = output(&mut Command::new("sha256sum"), &content);
    let hash = std::str::from_utf8(&hash[..64]).unwrap().to_owned();
    let blob = format!("{path}/blobs/{hash}");
    let stored = worker.actor.send(worker.actor.request(Method::PUT, &blob).body(content.clone())).await.expect(200);
    let read = server.admin().get(&blob).await;
    let expected = content.replace(VALUE, "[redacted]");
    assert_eq!(read.body.as_str(), Some(expected.as_str()));
    assert_eq!(stored["size"], expected.len());
    // Every file is what its name says: a backup checks that.
    let mut command = Command::new("sh");
    let script =
        r#"for file in "$1"/blobs/??/*; do echo "$(basename "$file")  $file"; done | sha256sum --check --quiet"#;
    let checked = command.args(["-c", script, "check"]).arg(server.data_dir()).status().unwrap();
    assert!(checked.success());
}

/// The files below that hold the word.
fn in_files(dir: &Path, word: &str) -> Vec<String> {
    let found = Command::new("grep").args(["-rlaF", "--", word]).arg(dir).output().unwrap().stdout;
    String::from_utf8(found).unwrap().lines().map(str::to_owned).collect()
}

async fn a_sandbox_names_only_what_there_is(kind: Kind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let make = async |body: Value| {
        let mut whole = json!({ "provider": "external" });
        whole.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        admin.post("/sandboxes", whole).await
    };
    let refused = make(json!({ "secrets": ["ABSENT"] })).await.refused(422, "invalid");
    assert!(text(&refused["detail"]).contains("`ABSENT`") && refused["secret"] == "ABSENT", "{refused}");
    make(json!({ "secrets": ["not a name"] })).await.refused(422, "invalid");
    admin.put("/secrets/A", json!({ "value": "value-a", "expose": "X" })).await.expect(201);
    admin.put("/secrets/B", json!({ "value": "value-b", "expose": "X" })).await.expect(201);
    make(json!({ "secrets": ["A", "B"] })).await.refused(422, "invalid");
    make(json!({ "secrets": ["A"], "env": { "X": "1" } })).await.refused(422, "invalid");
    let made = make(json!({ "secrets": ["A", "A"] })).await.expect(201);
    assert_eq!(made["exposed_secrets"], json!(["A"]));
    // Removed before it starts: it starts without, and says so.
    admin.delete("/secrets/A").await.expect(200);
    let worker = admin.with_token(text(&made["worker"]["token"]));
    let beat = json!({ "stream": uuid::Uuid::now_v7(), "at": "2026-01-01T00:00:00Z", "activity": "starting" });
    let started = worker.post(&format!("/sandboxes/{}/heartbeat", text(&made["id"])), beat).await.expect(200);
    assert_eq!(started["start"]["settings"].get("env"), None);
    let row = admin.get(&format!("/sandboxes/{}", text(&made["id"]))).await.expect(200);
    assert_eq!(row["exposed_secrets"], json!([]));
    let events = admin.all_events(text(&made["id"])).await;
    let notice = events.iter().find(|event| event["type"] == "sandbox.notice").unwrap();
    assert!(text(&notice["data"]["text"]).contains("`A` was removed"), "{notice}");
    server.stop().await;
}

async fn everything_is_sealed_anew(kind: Kind) {
    let mut server = TestServer::start(kind).await;
    let admin = server.admin();
    for n in 0..120 {
        let body = json!({ "value": format!("value-number-{n}"), "expose": format!("V{n}") });
        admin.put(&format!("/secrets/S{n}"), body).await.expect(201);
    }
    let keys = server.data_dir().join("secret-keys");
    let before = std::fs::read_to_string(&keys).unwrap();
    let done = admin.post("/secrets/rotate", json!({})).await.expect(200);
    assert_eq!((done["sealed"].as_u64(), &done["left"]), (Some(120), &json!([])));
    let after = std::fs::read_to_string(&keys).unwrap();
    assert!(after.starts_with(&before) && after.lines().count() == before.lines().count() + 1);
    // The old key alone opens nothing any more, the new one all.
    let new_only: String =
        after.lines().filter(|line| !before.contains(*line)).map(|line| format!("{line}\n")).collect();
    std::fs::write(&keys, new_only).unwrap();
    server.restart().await;
    let admin = server.admin();
    let sandbox = admin.external(json!({ "secrets": ["S0", "S119"] })).await;
    let started = HandWorker::new(&admin, &sandbox).heartbeat("starting").await.expect(200);
    let env = json!({ "V0": "value-number-0", "V119": "value-number-119" });
    assert_eq!(started["start"]["settings"]["env"], env);
    // After the start each value is known without anybody having used it.
    let worker = HandWorker::new(&admin, &sandbox);
    worker.batch(vec![event(1, "agent.message", json!({ "text": "it is value-number-77" }))]).await.expect(200);
    let events = admin.all_events(&sandbox.id).await;
    assert_eq!(events.last().unwrap()["data"]["text"], "it is [redacted]");
    server.stop().await;
}

async fn a_lost_key_is_a_sentence(kind: Kind) {
    let mut server = TestServer::start(kind).await;
    let admin = server.admin();
    admin.put("/secrets/OLD", json!({ "value": VALUE, "expose": "OLD" })).await.expect(201);
    let keys = server.data_dir().join("secret-keys");
    let kept = std::fs::read_to_string(&keys).unwrap();
    std::fs::remove_file(&keys).unwrap();
    server.restart().await;
    let admin = server.admin();
    let wanted = json!({ "provider": "external", "secrets": ["OLD"] });
    let refused = admin.post("/sandboxes", wanted.clone()).await.refused(409, "secret_key_unusable");
    assert!(text(&refused["detail"]).contains("`OLD`"), "{refused}");
    // What is new gets a new key; what can't be opened is named and stays.
    admin.put("/secrets/NEW", json!({ "value": "new-value" })).await.expect(201);
    let done = admin.post("/secrets/rotate", json!({})).await.expect(200);
    assert_eq!((done["sealed"].as_u64(), text(&done["left"][0]["name"])), (Some(1), "OLD"));
    // With the old key back beside the new ones everything opens, and nobody starts the server again.
    let both = std::fs::read_to_string(&keys).unwrap();
    std::fs::write(&keys, format!("{kept}{both}")).unwrap();
    admin.post("/sandboxes", wanted.clone()).await.expect(201);

    std::fs::set_permissions(&keys, PermissionsExt::from_mode(0o644)).unwrap();
    for answer in [
        admin.put("/secrets/NEW", json!({ "value": VALUE })).await,
        admin.post("/sandboxes", wanted.clone()).await,
        admin.post("/secrets/rotate", json!({})).await,
    ] {
        let refused = answer.refused(409, "secret_key_unusable");
        assert!(text(&refused["detail"]).contains("chmod 600") && !refused.to_string().contains(TELLING), "{refused}");
    }
    std::fs::write(&keys, "garbage").unwrap();
    server.restart().await;
    server.admin().get("/secrets").await.expect(200);
    server.stop().await;
}

async fn secrets_belong_to_their_projects(kind: Kind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let (ours, theirs) = (project(&admin, "ours").await, project(&admin, "theirs").await);
    for (owner, value) in [(Some(&ours), "value-ours"), (Some(&theirs), "value-theirs"), (None, "value-common")] {
        let body = json!({ "value": value, "project_id": owner, "expose": "SAME" });
        admin.put("/secrets/SAME", body).await.expect(201);
    }
    admin.put("/secrets/THEIRS", json!({ "value": "x", "project_id": theirs })).await.expect(201);
    let environment = async |project: Option<&str>| {
        let sandbox = admin.external(json!({ "project_id": project, "secrets": ["SAME"] })).await;
        let started = HandWorker::new(&admin, &sandbox).heartbeat("starting").await.expect(200);
        started["start"]["settings"]["env"]["SAME"].as_str().unwrap().to_owned()
    };
    assert_eq!(environment(Some(&ours)).await, "value-ours");
    assert_eq!(environment(None).await, "value-common");
    let foreign = json!({ "provider": "external", "project_id": ours, "secrets": ["THEIRS"] });
    admin.post("/sandboxes", foreign).await.refused(422, "invalid");

    let robot = json!({ "name": "robot", "kind": "service", "role": "admin", "project_id": ours });
    let robot = admin.with_token(text(&admin.post("/tokens", robot).await.expect(201)["token"]));
    let seen = robot.everything("/secrets", 50).await;
    assert_eq!(seen.len(), 2, "its own and the deployment's: {seen:?}");
    robot.put("/secrets/MINE", json!({ "value": "x", "project_id": ours })).await.expect(201);
    robot.put("/secrets/MINE", json!({ "value": "x", "project_id": theirs })).await.refused(404, "not_found");
    robot.put("/secrets/MINE", json!({ "value": "x" })).await.refused(403, "forbidden");
    robot.get(&format!("/secrets?project_id={theirs}")).await.refused(404, "not_found");
    robot.delete(&format!("/secrets/THEIRS?project_id={theirs}")).await.refused(404, "not_found");
    robot.post("/secrets/rotate", json!({})).await.refused(403, "forbidden");
    let of_theirs = admin.get(&format!("/secrets?project_id={theirs}")).await.expect(200);
    assert_eq!(of_theirs["items"].as_array().unwrap().len(), 3);

    // As many as there may be, and with the project they go.
    for n in 0..198 {
        let body = json!({ "value": "x", "project_id": theirs });
        admin.put(&format!("/secrets/N{n}"), body).await.expect(201);
    }
    let one_more = admin.put("/secrets/ONE_MORE", json!({ "value": "x", "project_id": theirs })).await;
    assert!(text(&one_more.refused(422, "invalid")["detail"]).contains("200"));
    admin.put("/secrets/N0", json!({ "value": "y", "project_id": theirs })).await.expect(200);
    admin.delete(&format!("/projects/{theirs}")).await.expect(200);
    let left: Vec<String> =
        admin.everything("/secrets", 200).await.iter().map(|row| text(&row["name"]).to_owned()).collect();
    assert_eq!(left, ["SAME", "SAME", "MINE"]);
    server.stop().await;
}

async fn a_secret_of_one_project_is_a_word_in_another(kind: Kind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let (ours, theirs) = (project(&admin, "ours").await, project(&admin, "theirs").await);
    admin.put("/secrets/DB_USER", json!({ "value": "postgres", "project_id": ours })).await.expect(201);
    let prompt = "connect as postgres";
    for (project, expected) in [(&ours, "connect as [redacted]"), (&theirs, prompt)] {
        let sandbox = admin.external(json!({ "project_id": project, "prompt": prompt })).await;
        let worker = HandWorker::new(&admin, &sandbox);
        let started = worker.heartbeat("starting").await.expect(200);
        assert_eq!(started["start"]["prompt"]["content"], expected);
        worker.batch(vec![event(1, "agent.message", json!({ "text": prompt }))]).await.expect(200);
        let events = admin.all_events(&sandbox.id).await;
        assert_eq!(events.last().unwrap()["data"]["text"], expected);
        let session = admin.get(&format!("/sessions/{}", sandbox.session)).await.expect(200);
        assert_eq!(session["title"], expected);
    }
    server.stop().await;
}
