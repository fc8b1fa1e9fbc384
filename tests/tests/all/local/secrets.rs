//! A secret in a real sandbox: what the agent can see, and where else it is not.

use atoll_tests::local::{Ground, told};
use atoll_tests::process;
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs `atoll` with this on its standard input; the two outputs together.
pub(super) fn atoll(ground: &Ground, arguments: &[&str], input: &str) -> (bool, String) {
    let mut command = process::command("atoll");
    command.args(arguments).arg("--data-dir").arg(ground.data());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = process::spawn(command);
    // One that refuses early may not read it.
    drop(child.stdin.take().unwrap().write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    (output.status.success(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}

/// The files below that hold one of the words, but for those of sandboxes themselves.
pub(super) fn holding(dir: &Path, words: &[&str]) -> String {
    let mut command = Command::new("grep");
    command.args(["-rlaF", "--exclude-dir=sandboxes"]);
    command.args(words.iter().flat_map(|word| ["-e", word]));
    String::from_utf8(command.arg(dir).output().unwrap().stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exposed_secret_is_inside_and_nowhere_else() {
    let word = uuid::Uuid::new_v4().simple().to_string();
    let (inside, outside) = (format!("inside-{word}"), format!("outside-{word}"));
    let ground = Ground::start_as("", &["--log-level", "trace"]);
    let (well, said) = atoll(&ground, &["secret", "set", "INSIDE", "--expose"], &format!("{inside}\n"));
    assert!(well && said.contains("exposed") && !said.contains(&word), "{said}");
    let upstream = ["secret", "set", "OUTSIDE", "--upstream", "api.example.org"];
    let (well, said) = atoll(&ground, &upstream, &outside);
    assert!(well && !said.contains(&word), "{said}");
    let (_, listed) = atoll(&ground, &["secret", "ls"], "");
    assert!(listed.contains("as INSIDE") && listed.contains("api.example.org") && !listed.contains(&word), "{listed}");

    let prompt = "run env\nrun echo $INSIDE | base64\nrun echo $INSIDE > /workspace/kept; cat /workspace/kept";
    let id = ground.make(json!({ "prompt": prompt, "end": "keep", "secrets": ["INSIDE", "OUTSIDE"] })).await;
    ground.until(&id, |row| row["activity"] == "waiting_message").await;
    // The agent had it, in every form, and the log has none.
    let events = ground.admin.all_events(&id).await;
    let outputs: Vec<String> = told(&events, "agent.tool_completed").iter().map(|data| data.to_string()).collect();
    assert_eq!(outputs.len(), 3, "{events:#?}");
    assert!(outputs.iter().all(|output| output.contains("[redacted]")), "{outputs:?}");
    assert!(outputs[0].contains("INSIDE=[redacted]") && !outputs[0].contains("OUTSIDE"), "{}", outputs[0]);
    assert!(!Value::from(events).to_string().contains(&word));
    // A command has it too; its caller may see what is inside.
    let seen = ground.shell(&id, "env").await.well();
    assert!(seen.contains(&format!("INSIDE={inside}\n")) && !seen.contains(&outside), "{seen}");
    let nowhere = ground.shell(&id, &format!("cat /proc/*/environ | tr '\\0' '\\n' | grep -c {outside}")).await;
    assert_eq!(nowhere.stdout.trim(), "0");
    let (_, shown) = atoll(&ground, &["sandbox", "show", &id], "");
    assert!(shown.contains("exposed secrets") && !shown.contains(&word), "{shown}");

    let (well, said) = atoll(&ground, &["secret", "rotate"], "");
    assert!(well && said.contains("2 secrets are sealed"), "{said}");
    let copy = ground.path().join("copy");
    let (well, said) = atoll(&ground, &["backup", copy.to_str().unwrap()], "");
    assert!(well, "{said}");
    ground.admin.delete(&format!("/sandboxes/{id}?force=true")).await.expect(200);
    ground.gone(&id).await;
    for dir in [ground.data(), copy] {
        assert_eq!(holding(&dir, &[&word]), "", "in {}", dir.display());
        assert_ne!(holding(&dir, &["INSIDE"]), "", "the search works");
    }
    assert!(!ground.server.said().contains(&word), "the server's log says it");
    for arguments in [
        &["secret", "set", "lower"][..],
        &["secret", "set", "X", "--expose=PATH"],
        &["secret", "set", "X", "--upstream", "*"],
    ] {
        let (well, said) = atoll(&ground, arguments, &inside);
        assert!(!well && !said.contains(&word), "{said}");
    }
    let (well, said) = atoll(&ground, &["secret", "rm", "INSIDE"], "");
    assert!(well, "{said}");
    ground.leave().await;
}
