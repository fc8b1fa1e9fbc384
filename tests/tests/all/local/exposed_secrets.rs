//! An exposed secret in a real sandbox: the agent can read it, and it appears nowhere else.

use atoll_tests::local::{LocalServer, event_data};
use atoll_tests::process;
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs `atoll` with this standard input. Returns its success, and stdout and stderr together.
pub(super) fn run_atoll(server: &LocalServer, arguments: &[&str], input: &str) -> (bool, String) {
    let mut command = process::program_command("atoll");
    command.args(arguments).arg("--data-dir").arg(server.data_dir());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = process::spawn_process(command);
    // A program that fails early may not read its input.
    drop(child.stdin.take().unwrap().write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    (output.status.success(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}

/// Lists the files below `dir` that contain one of the words, except files of sandboxes.
pub(super) fn find_files_containing(dir: &Path, words: &[&str]) -> String {
    let mut command = Command::new("grep");
    command.args(["-rlaF", "--exclude-dir=sandboxes"]);
    command.args(words.iter().flat_map(|word| ["-e", word]));
    String::from_utf8(command.arg(dir).output().unwrap().stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exposed_secret_is_readable_in_the_sandbox_and_nowhere_else() {
    let word = uuid::Uuid::new_v4().simple().to_string();
    let (inside, outside) = (format!("inside-{word}"), format!("outside-{word}"));
    let server = LocalServer::start_with_flags("", &["--log-level", "trace"]);
    let (success, output) = run_atoll(&server, &["secret", "set", "INSIDE", "--expose"], &format!("{inside}\n"));
    assert!(success && output.contains("exposed") && !output.contains(&word), "{output}");
    let upstream = ["secret", "set", "OUTSIDE", "--upstream", "api.example.org"];
    let (success, output) = run_atoll(&server, &upstream, &outside);
    assert!(success && !output.contains(&word), "{output}");
    let (_, listed) = run_atoll(&server, &["secret", "ls"], "");
    assert!(listed.contains("as INSIDE") && listed.contains("api.example.org") && !listed.contains(&word), "{listed}");

    let prompt = "run env\nrun echo $INSIDE | base64\nrun echo $INSIDE > /workspace/kept; cat /workspace/kept";
    let id = server.create_sandbox(json!({ "prompt": prompt, "end": "keep", "secrets": ["INSIDE", "OUTSIDE"] })).await;
    server.wait_until(&id, |row| row["activity"] == "waiting_message").await;
    // The agent printed it in several forms; the log has none of them.
    let events = server.admin.all_events(&id).await;
    let outputs: Vec<String> =
        event_data(&events, "agent.tool_completed").iter().map(|data| data.to_string()).collect();
    assert_eq!(outputs.len(), 3, "{events:#?}");
    assert!(outputs.iter().all(|output| output.contains("[redacted]")), "{outputs:?}");
    assert!(outputs[0].contains("INSIDE=[redacted]") && !outputs[0].contains("OUTSIDE"), "{}", outputs[0]);
    assert!(!Value::from(events).to_string().contains(&word));
    // A command has it too, and its caller may read the output.
    let env = server.run_shell(&id, "env").await.expect_success();
    assert!(env.contains(&format!("INSIDE={inside}\n")) && !env.contains(&outside), "{env}");
    let matches = server.run_shell(&id, &format!("cat /proc/*/environ | tr '\\0' '\\n' | grep -c {outside}")).await;
    assert_eq!(matches.stdout.trim(), "0");
    let (_, sandbox_text) = run_atoll(&server, &["sandbox", "show", &id], "");
    assert!(sandbox_text.contains("exposed secrets") && !sandbox_text.contains(&word), "{sandbox_text}");

    let (success, output) = run_atoll(&server, &["secret", "rotate"], "");
    assert!(success && output.contains("2 secrets are sealed"), "{output}");
    let copy = server.root_dir().join("copy");
    let (success, output) = run_atoll(&server, &["backup", copy.to_str().unwrap()], "");
    assert!(success, "{output}");
    server.admin.delete(&format!("/sandboxes/{id}?force=true")).await.expect_status(200);
    server.wait_until_removed(&id).await;
    for dir in [server.data_dir(), copy] {
        assert_eq!(find_files_containing(&dir, &[&word]), "", "in {}", dir.display());
        assert_ne!(find_files_containing(&dir, &["INSIDE"]), "", "the search must find names");
    }
    assert!(!server.process.stderr_text().contains(&word), "the server's log contains the secret");
    for arguments in [
        &["secret", "set", "lower"][..],
        &["secret", "set", "X", "--expose=PATH"],
        &["secret", "set", "X", "--upstream", "*"],
    ] {
        let (success, output) = run_atoll(&server, arguments, &inside);
        assert!(!success && !output.contains(&word), "{output}");
    }
    let (success, output) = run_atoll(&server, &["secret", "rm", "INSIDE", "--yes"], "");
    assert!(success, "{output}");
    server.stop_and_check().await;
}
