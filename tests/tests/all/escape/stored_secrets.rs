//! Searches for a stored secret's value in the sandbox that may use it, in its snapshots, and in the server's files, log
//! and responses. Each search also has to find a value that the test stored in clear text.

use super::attempt_table::AttemptTable;
use super::outgoing_data::search_sandbox;
use atoll_tests::local::LocalServer;
use atoll_tests::process;
use serde_json::json;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

const GROUP: &str = "stored secrets";
const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The word in clear text, in hexadecimal and in base64. Its length must be a multiple of three.
fn encoded_forms(word: &str) -> [String; 3] {
    let bytes = word.as_bytes();
    assert_eq!(bytes.len() % 3, 0);
    let digit = |three: u32, shift: u32| char::from(BASE64[(three >> shift & 63) as usize]);
    let base64 = bytes.chunks(3).flat_map(|three| {
        let three = three.iter().fold(0, |number, byte| number << 8 | u32::from(*byte));
        [18, 12, 6, 0].map(|shift| digit(three, shift))
    });
    [word.to_owned(), bytes.iter().map(|byte| format!("{byte:02x}")).collect(), base64.collect()]
}

fn set_secret(server: &LocalServer, name: &str, value: &str) {
    let mut command = process::program_command("atoll");
    command.args(["secret", "set", name, "--upstream", "api.example.org", "--data-dir"]).arg(server.data_dir());
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = process::spawn_process(command);
    child.stdin.take().unwrap().write_all(value.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Lists the files of the host that contain one of the words.
fn find_files_containing(paths: &[PathBuf], words: &[String]) -> String {
    let mut command = Command::new("grep");
    command.args(["-rlaF"]).args(words.iter().flat_map(|word| ["-e", word.as_str()])).args(paths);
    String::from_utf8(command.stderr(Stdio::null()).output().unwrap().stdout).unwrap()
}

/// The files of the server's data directory, except those of sandboxes.
fn server_files(server: &LocalServer) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(server.data_dir()).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| !path.ends_with("layers") && !path.ends_with("sandboxes")).collect()
}

pub async fn run_stored_secret_attempts(server: &LocalServer, table: &mut AttemptTable) {
    let word = format!("key-{}", uuid::Uuid::new_v4().simple());
    let other = format!("key-{}", uuid::Uuid::new_v4().simple());
    let (secret, clear) = (encoded_forms(&word), encoded_forms(&other));
    set_secret(server, "STORED", &word);
    let id = server.create_idle_sandbox(json!({ "secrets": ["STORED"] })).await;

    let found = search_sandbox(server, &id, &secret).await;
    assert_eq!(found, "", "a stored secret is in the sandbox");
    let plant = format!(
        "echo {} > /workspace/clear-text; CLEAR={} nohup sleep 60 >/dev/null 2>&1 & \
         nohup sh -c 'sleep 60; true' {} >/dev/null 2>&1 & sleep 0.2",
        clear[2], clear[0], clear[1]
    );
    let files = ["layers", "sandboxes"].map(|name| server.data_dir().join(name));
    check_snapshot(server, table, &id, &files, &secret, &clear, &plant).await;
    let found = search_sandbox(server, &id, &clear).await;
    for suffix in ["/environ", "/cmdline", "/workspace/clear-text"] {
        assert!(found.lines().any(|line| line.ends_with(suffix)), "the search misses it in {suffix}: {found}");
    }
    let inside = "in no variable, command line, file or /proc entry";
    table.record_refused(GROUP, "in the sandbox that uses it", inside.into(), "in the sandbox, for clear text");

    // The server stores messages and the names of secrets in clear text.
    let message = server.send_message(&id, json!({ "content": format!("say {other}") })).await;
    server.wait_until_acknowledged(&id, &message).await;
    let paths = server_files(server);
    assert_eq!(find_files_containing(&paths, &secret), "", "the server stores the secret in clear text");
    let database = find_files_containing(&paths, &clear);
    assert!(database.lines().any(|path| path.contains(".db") || path.contains("sqlite")), "in {database:?}");
    let keys = std::fs::metadata(server.data_dir().join("secret-keys")).unwrap().permissions().mode();
    assert_eq!(keys & 0o077, 0, "other users can read the key file");
    table.record_refused(GROUP, "in the database and the server's other files", "sealed".into(), "for a message");

    let log = server.process.stderr_text();
    assert!(log.contains("STORED"), "the log does not name the secret");
    assert!(secret.iter().all(|form| !log.contains(form.as_str())), "the log contains the secret's value");
    table.record_refused(GROUP, "in the server's log", "not found".into(), "for the secret's name");

    let (row, list) = (server.get_sandbox(&id).await, server.admin.get("/secrets").await.expect_status(200));
    let events = serde_json::to_string(&server.admin.all_events(&id).await).unwrap();
    let responses = format!("{row}{list}{events}");
    assert!(responses.contains(&other) && responses.contains("STORED"), "{responses}");
    assert!(secret.iter().all(|form| !responses.contains(form.as_str())), "a response contains the secret's value");
    table.record_refused(GROUP, "in the server's responses and events", "not found".into(), "for a message");
}

/// A snapshot contains no stored secret, but it contains a value that the sandbox wrote in clear text.
async fn check_snapshot(
    server: &LocalServer,
    table: &mut AttemptTable,
    id: &str,
    files: &[PathBuf],
    secret: &[String],
    clear: &[String],
    plant: &str,
) {
    const WHAT: &str = "in a snapshot's layer on the host";
    let snapshot = async |name: &str| {
        let answer = server.admin.post(&format!("/sandboxes/{id}/snapshot"), json!({ "name": name })).await;
        (answer.status.as_u16() == 201).then_some(()).ok_or(answer.body)
    };
    if let Err(why) = snapshot("before").await {
        server.run_shell(id, plant).await.expect_success();
        return table.record_skipped(GROUP, WHAT, &format!("no snapshots on this machine: {why}"));
    }
    assert_eq!(find_files_containing(files, secret), "", "a layer contains the secret");
    server.run_shell(id, &format!("echo {} > clear-text-in-layer", clear[0])).await.expect_success();
    snapshot("after").await.unwrap();
    let layers = find_files_containing(&files[..1], clear);
    assert!(layers.contains("/clear-text-in-layer"), "the search misses the clear text in a layer: {layers:?}");
    assert_eq!(find_files_containing(files, secret), "", "a layer contains the secret");
    // The snapshot ended the sandbox's processes, so plant them again.
    server.run_shell(id, plant).await.expect_success();
    for name in ["before", "after"] {
        server.admin.delete(&format!("/snapshots/{name}")).await.expect_status(200);
    }
    table.record_refused(GROUP, WHAT, "not found".into(), "in a layer, for clear text");
}
