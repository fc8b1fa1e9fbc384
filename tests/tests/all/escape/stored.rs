//! Secrets that are stored: looked for in a sandbox that may use one, in what is kept of it, and in what the server keeps
//! and says. Each search is shown to find what lies there in the clear.

use super::table::Table;
use super::traces::search;
use atoll_tests::local::Ground;
use atoll_tests::process;
use serde_json::json;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

const GROUP: &str = "stored secrets";
const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// A word as it is, in hexadecimal and in base64. Its length is a multiple of three.
fn forms(word: &str) -> [String; 3] {
    let bytes = word.as_bytes();
    assert_eq!(bytes.len() % 3, 0);
    let digit = |three: u32, shift: u32| char::from(BASE64[(three >> shift & 63) as usize]);
    let base64 = bytes.chunks(3).flat_map(|three| {
        let three = three.iter().fold(0, |number, byte| number << 8 | u32::from(*byte));
        [18, 12, 6, 0].map(|shift| digit(three, shift))
    });
    [word.to_owned(), bytes.iter().map(|byte| format!("{byte:02x}")).collect(), base64.collect()]
}

fn set(ground: &Ground, name: &str, value: &str) {
    let mut command = process::command("atoll");
    command.args(["secret", "set", name, "--upstream", "api.example.org", "--data-dir"]).arg(ground.data());
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = process::spawn(command);
    child.stdin.take().unwrap().write_all(value.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// The files of the host that hold one of the words.
fn holding(places: &[PathBuf], words: &[String]) -> String {
    let mut command = Command::new("grep");
    command.args(["-rlaF"]).args(words.iter().flat_map(|word| ["-e", word.as_str()])).args(places);
    String::from_utf8(command.stderr(Stdio::null()).output().unwrap().stdout).unwrap()
}

/// What the server keeps besides the files of sandboxes.
fn kept_by_the_server(ground: &Ground) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(ground.data()).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| !path.ends_with("layers") && !path.ends_with("sandboxes")).collect()
}

pub async fn attempts(ground: &Ground, table: &mut Table) {
    let word = format!("key-{}", uuid::Uuid::new_v4().simple());
    let other = format!("key-{}", uuid::Uuid::new_v4().simple());
    let (secret, clear) = (forms(&word), forms(&other));
    set(ground, "STORED", &word);
    let id = ground.kept(json!({ "secrets": ["STORED"] })).await;

    let found = search(ground, &id, &secret).await;
    assert_eq!(found, "", "a stored secret is inside");
    let plant = format!(
        "echo {} > /workspace/in-the-clear; CLEAR={} nohup sleep 60 >/dev/null 2>&1 & \
         nohup sh -c 'sleep 60; true' {} >/dev/null 2>&1 & sleep 0.2",
        clear[2], clear[0], clear[1]
    );
    let files = ["layers", "sandboxes"].map(|name| ground.data().join(name));
    in_a_snapshot(ground, table, &id, &files, &secret, &clear, &plant).await;
    let found = search(ground, &id, &clear).await;
    for place in ["/environ", "/cmdline", "/workspace/in-the-clear"] {
        assert!(found.lines().any(|line| line.ends_with(place)), "the search finds it in {place}: {found}");
    }
    let seen = "found in no variable, no command line, no file, nowhere in /proc";
    table.held(GROUP, "in the sandbox that names it", seen.into(), "inside, in the clear");

    // A message is stored in the clear; a name of a secret too.
    let message = ground.send(&id, json!({ "content": format!("say {other}") })).await;
    ground.delivered(&id, &message).await;
    let kept = kept_by_the_server(ground);
    assert_eq!(holding(&kept, &secret), "", "the server keeps it in the clear");
    let database = holding(&kept, &clear);
    assert!(database.lines().any(|path| path.contains(".db") || path.contains("sqlite")), "in {database:?}");
    let keys = std::fs::metadata(ground.data().join("secret-keys")).unwrap().permissions().mode();
    assert_eq!(keys & 0o077, 0, "the key is the server's alone");
    table.held(GROUP, "in the database and all else that is kept", "sealed".into(), "for a message");

    let said = ground.server.said();
    assert!(said.contains("STORED"), "the log tells of the secret");
    assert!(secret.iter().all(|form| !said.contains(form.as_str())), "the log says it");
    table.held(GROUP, "in the server's log", "not said".into(), "for the secret's name");

    let (row, list) = (ground.row(&id).await, ground.admin.get("/secrets").await.expect(200));
    let events = serde_json::to_string(&ground.admin.all_events(&id).await).unwrap();
    let told = format!("{row}{list}{events}");
    assert!(told.contains(&other) && told.contains("STORED"), "the answers tell of both: {told}");
    assert!(secret.iter().all(|form| !told.contains(form.as_str())), "an answer tells it");
    table.held(GROUP, "in what the server answers and logs of it", "not told".into(), "for a message");
}

/// Before and after something is planted in the clear: a snapshot has the second and not the first.
async fn in_a_snapshot(
    ground: &Ground,
    table: &mut Table,
    id: &str,
    files: &[PathBuf],
    secret: &[String],
    clear: &[String],
    plant: &str,
) {
    const WHAT: &str = "in a snapshot's layer on the host";
    let snapshot = async |name: &str| {
        let answer = ground.admin.post(&format!("/sandboxes/{id}/snapshot"), json!({ "name": name })).await;
        (answer.status.as_u16() == 201).then_some(()).ok_or(answer.body)
    };
    if let Err(why) = snapshot("before").await {
        ground.shell(id, plant).await.well();
        return table.skipped(GROUP, WHAT, &format!("no snapshot can be taken here: {why}"));
    }
    assert_eq!(holding(files, secret), "", "a layer has it");
    ground.shell(id, &format!("echo {} > kept-in-the-clear", clear[0])).await.well();
    snapshot("after").await.unwrap();
    let layers = holding(&files[..1], clear);
    assert!(layers.contains("/kept-in-the-clear"), "the search finds it in a layer: {layers:?}");
    assert_eq!(holding(files, secret), "", "a layer has it");
    // Whatever ran has ended for the snapshot.
    ground.shell(id, plant).await.well();
    for name in ["before", "after"] {
        ground.admin.delete(&format!("/snapshots/{name}")).await.expect(200);
    }
    table.held(GROUP, WHAT, "found in none".into(), "in a layer, in the clear");
}
