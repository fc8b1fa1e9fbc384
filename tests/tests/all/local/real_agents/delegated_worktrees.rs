//! `atoll code` with a real agent: its work comes back, and the second call continues the conversation.

use super::agent_fixture::AgentFixture;
use crate::local::worktrees::code_call::{run_code, stop_all};
use atoll_tests::local::repository::SampleRepository;
use std::fs;

const SCRIPTS: &str = r#"
scripts:
  - name: work
    steps:
      - run: cat mine.txt
      - expect: {text: BY-THE-USER, new: true}
      - write: {file: notes.txt, content: "hello\n"}
      - run: rm old.txt
      - say: I have seen it, PAPAYA.
  - name: again
    steps:
      - run: cat notes.txt
      - expect: {text: EDITED-BY-HAND, new: true}
      - say: I went on.
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn works_in_a_worktree() {
    let Some(fixture) = AgentFixture::start("claude", "a delegated worktree", SCRIPTS).await else { return };
    let repository = SampleRepository::create();
    let root = repository.path();
    repository.write("mine.txt", "BY-THE-USER\n");
    let settings = ["--agent", "claude", "--provider", "local", "--network", "none"];
    let first = run_code(&fixture.server, root, &[&["remember PINEAPPLE #script:work"][..], &settings].concat());
    assert_eq!(first.exit, Some(0), "{:#?}", first.lines);
    assert_eq!(fs::read_to_string(root.join("notes.txt")).unwrap(), "hello\n");
    assert!(!root.join("old.txt").exists() && root.join("mine.txt").exists());
    repository.write("notes.txt", "EDITED-BY-HAND\n");
    let second = run_code(&fixture.server, root, &["#script:again"]);
    assert_eq!((second.exit, second.sandbox()), (Some(0), first.sandbox()), "{:#?}", second.lines);
    let last = format!("{:?}", fixture.model.requests().last().unwrap().body);
    assert!(last.contains("remember PINEAPPLE") && last.contains("PAPAYA"), "the agent remembers");
    assert_eq!(fs::read_to_string(root.join("notes.txt")).unwrap(), "EDITED-BY-HAND\n");
    stop_all(fixture.server, &[&first.sandbox()]).await;
}
