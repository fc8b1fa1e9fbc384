//! The second lock on the files is on all that an agent starts.

use atoll_tests::local::{Ground, skipped};
use serde_json::json;
use std::process::Command;

/// How many more such locks a process can put on itself: the kernel takes sixteen in all.
const MORE: &str = "
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

fn number(text: &str) -> u32 {
    text.trim().parse().unwrap_or_else(|_| panic!("not a number: {text}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_agent_starts_is_locked_once() {
    let outside = match Command::new("/usr/bin/python3").args(["-c", MORE]).output() {
        Ok(output) if output.status.success() => number(&String::from_utf8_lossy(&output.stdout)),
        _ => return skipped("Landlock", "there is no /usr/bin/python3 to look with"),
    };
    if outside == 0 {
        return skipped("Landlock", "this kernel has none");
    }
    let ground = Ground::start();
    let id = ground.kept(json!({})).await;
    let ran = ground.exec(&id, json!({ "argv": ["/usr/bin/python3", "-c", MORE] })).await;
    assert_eq!(number(&ran.well()), outside - 1);
    // It is in nobody's way.
    let moves = "cd /workspace && mkdir a b && echo x >a/f && mv a/f b/g && ln b/g a/h && : >b/g && mv b a/ && rm -r a && echo fine";
    assert_eq!(ground.shell(&id, moves).await.well(), "fine\n");
    ground.leave().await;
}
