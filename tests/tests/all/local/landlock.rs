//! Every program that an agent starts runs under Landlock.

use atoll_tests::local::{LocalServer, report_skipped};
use serde_json::json;
use std::process::Command;

/// Counts the further Landlock layers that a process can add. The kernel allows sixteen in all.
const COUNT_LAYERS_SCRIPT: &str = "
import ctypes, struct
kernel = ctypes.CDLL(None, use_errno=True)
kernel.prctl(38, 1, 0, 0, 0)
more = 0
while True:
    ruleset = kernel.syscall(444, struct.pack('Q', 2), 8, 0)
    if ruleset < 0 or kernel.syscall(446, ruleset, 0) != 0:
        break
    more += 1
print(more)
";

fn parse_number(text: &str) -> u32 {
    text.trim().parse().unwrap_or_else(|_| panic!("not a number: {text}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_of_the_agent_runs_under_exactly_one_landlock_layer() {
    let outside = match Command::new("/usr/bin/python3").args(["-c", COUNT_LAYERS_SCRIPT]).output() {
        Ok(output) if output.status.success() => parse_number(&String::from_utf8_lossy(&output.stdout)),
        _ => return report_skipped("Landlock", "there is no /usr/bin/python3 to look with"),
    };
    if outside == 0 {
        return report_skipped("Landlock", "this kernel has none");
    }
    let server = LocalServer::start();
    let id = server.create_idle_sandbox(json!({})).await;
    let ran = server.run_exec(&id, json!({ "argv": ["/usr/bin/python3", "-c", COUNT_LAYERS_SCRIPT] })).await;
    assert_eq!(parse_number(&ran.expect_success()), outside - 1);
    // Landlock does not restrict normal file operations.
    let file_operations = "cd /workspace && mkdir a b && echo x >a/f && mv a/f b/g && ln b/g a/h && : >b/g && mv b a/ && rm -r a && echo fine";
    assert_eq!(server.run_shell(&id, file_operations).await.expect_success(), "fine\n");
    server.stop_and_check().await;
}
