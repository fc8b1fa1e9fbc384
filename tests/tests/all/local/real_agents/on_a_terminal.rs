//! `atoll run` with a real agent on a narrow terminal.

use super::agent_fixture::AgentFixture;
use crate::local::shell::CommandTerminal;
use atoll_tests::local::{agent_messages, event_data};
use std::fmt::Write;
use tokio::task::block_in_place;

/// Columns of the terminal.
const COLUMNS: u16 = 40;
/// Pieces of the text that never ends: one comes each half second.
const PIECES: usize = 1000;

fn scripts() -> String {
    let mut scripts = "scripts:\n  - name: terminal\n    steps:\n      - run: echo approved > approved.txt\n      \
                       - slow:\n          pause: 0.5\n          pieces:\n            - The file is **there**\n"
        .to_owned();
    for number in 0..PIECES {
        writeln!(scripts, "            - \" piece {number}\"").unwrap();
    }
    scripts
}

/// The text streams: it is on the terminal before its message ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_key_approves_a_real_agents_command_and_its_text_streams() {
    let Some(fixture) = AgentFixture::start("claude", "a terminal", &scripts()).await else { return };
    let server = &fixture.server;
    let arguments = "run 'go #script:terminal' --agent claude --approvals ask --no-repo";
    let mut screen = block_in_place(|| {
        let mut screen = CommandTerminal::start(server, COLUMNS, arguments);
        screen.wait_for_text("y approves");
        screen.send_keys("y");
        // The Markdown of a message has styles only when the message has ended.
        screen.wait_for_text("The file is **there**");
        screen.wait_for_text("piece 2");
        screen
    });
    let listed = server.admin.get("/sandboxes").await.expect_status(200);
    let id = listed["items"][0]["id"].as_str().unwrap().to_owned();
    server.track_sandbox(&id);
    let events = server.admin.all_events(&id).await;
    assert_eq!(event_data(&events, "approval.resolved")[0]["decision"], "allow", "{events:#?}");
    assert_eq!(agent_messages(&events), Vec::<String>::new(), "the message has not ended");
    let files = server.run_shell(&id, "ls /workspace").await.expect_success();
    assert_eq!(files, "approved.txt\n");
    block_in_place(|| {
        screen.send_keys("\x03");
        screen.wait_for_text("the agent was interrupted");
        screen.send_keys("\x03");
        screen.wait_for_text("restored\r\ncode=130");
    });
    fixture.stop_and_check().await;
}
