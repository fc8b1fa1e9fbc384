//! Data that leaves a sandbox, processes that outlive it, and secrets of the server.

use super::attempt_table::AttemptTable;
use atoll_tests::local::repository::SampleRepository;
use atoll_tests::local::{LocalServer, create_temp_dir, has_ended, host_state};
use atoll_tests::unprivileged_user::chown_tree;
use serde_json::{Value, json};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Swaps a file of the workspace for a symlink to `$1` and back in a tight loop.
const SWAP_SCRIPT: &str =
    "while :; do ln -sfn $1 next && mv -T next calc.py; echo mine > next && mv -T next calc.py; done";

/// True if a reader that follows symlinks reads the canary while the same script swaps it on the host.
fn swap_misleads_plain_reader(canary: &Path) -> bool {
    let dir = create_temp_dir("atoll-swap-");
    let mut command = Command::new("sh");
    command.args(["-c", SWAP_SCRIPT, "swap"]).arg(canary).current_dir(dir.path()).stderr(Stdio::null());
    let mut swapping = command.spawn().unwrap();
    let canary_bytes = std::fs::read(canary).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut fooled = false;
    while !fooled && Instant::now() < deadline {
        fooled = std::fs::read(dir.path().join("calc.py")).is_ok_and(|bytes| bytes == canary_bytes);
    }
    drop((swapping.kill(), swapping.wait()));
    fooled
}

/// A repository that belongs to the server's user.
fn create_repository(user: Option<u32>) -> SampleRepository {
    let repository = SampleRepository::create();
    if let Some(user) = user {
        chown_tree(repository.path(), user);
    }
    repository
}

/// Symlinks swapped while the server reads the workspace, and hostile content in exported results.
pub async fn run_swap_attempts(server: &LocalServer, table: &mut AttemptTable, canary: &Path, user: Option<u32>) {
    const GROUP: &str = "diffs and results";
    let word = std::fs::read_to_string(canary).unwrap();
    assert!(swap_misleads_plain_reader(canary), "the swap script does not mislead a plain reader");
    let repository = create_repository(user);
    let before = repository.checkout_state();
    let id = server.create_idle_sandbox(json!({ "repo": { "path": repository.path_str() } })).await;
    let swap = format!("nohup sh -c '{SWAP_SCRIPT}' swap {} >/dev/null 2>&1 &", canary.display());
    server.run_shell(&id, &swap).await.expect_success();
    let mut read = 0;
    for _ in 0..25 {
        let answer = server.admin.get(&format!("/sandboxes/{id}/diff")).await;
        assert!(!answer.body.to_string().contains(&word), "{}", answer.body);
        read += usize::from(answer.status.as_u16() == 200);
    }
    assert!(read > 0, "no diff request succeeded");
    table.record_refused(
        GROUP,
        "symlinks swapped during a diff",
        format!("{read} diffs without the canary"),
        "on the host, for a reader that follows symlinks",
    );

    let stop = "kill $(grep -la 'swa[p]' /proc/[0-9]*/cmdline | cut -d/ -f3) 2>/dev/null; sleep 0.2; rm -f next";
    server.run_shell(&id, &format!("{stop}; true")).await;
    let (row, written) = take_results(server, &id, LINK_SCRIPT).await;
    assert_eq!((row["results"].as_str(), written), (Some("taken"), 0), "{row}");
    let name = row["branch"].as_str().map(str::to_owned);
    let name =
        name.unwrap_or_else(|| repository.run_git(&["branch", "--format=%(refname:short)", "--list", "atoll/*"]));
    let listed = repository.run_git(&["ls-tree", name.trim(), "out", "calc.py"]);
    assert!(listed.lines().all(|line| line.starts_with("120000")) && listed.lines().count() == 2, "{listed}");
    repository.assert_untouched(&before, name.trim());
    table.record_refused(
        GROUP,
        "symlinks and hooks in the results",
        "exported as symlinks, no hook ran".into(),
        PLAIN_WRITER_PROOF,
    );

    let other = create_repository(user);
    let before = other.checkout_state();
    let id = server.create_idle_sandbox(json!({ "repo": { "path": other.path_str() } })).await;
    let (row, written) = take_results(server, &id, PATH_TRAVERSAL_SCRIPT).await;
    assert_eq!((row["reason"]["code"].as_str(), written), (Some("results_failed"), 0), "{row}");
    assert_eq!(other.checkout_state(), before, "the import changed the repository");
    let detail: String = row["reason"]["detail"].as_str().unwrap().chars().take(80).collect();
    table.record_refused(GROUP, "names with .. in the results", detail, PLAIN_WRITER_PROOF);
}

const PLAIN_WRITER_PROOF: &str = "on the host, for a writer that follows symlinks";

/// Creates a symlink to `$1`, one to a file of the host, and a git hook.
const LINK_SCRIPT: &str = "ln -s $1 out; ln -sfn /etc/passwd calc.py; mkdir -p .git/hooks; \
    printf '#!/bin/sh\\ntouch %s/hook\\n' $1 > .git/hooks/post-checkout; chmod +x .git/hooks/post-checkout";

/// Commits a file named `../evil`.
const PATH_TRAVERSAL_SCRIPT: &str = "blob=$(echo evil | git hash-object -w --stdin); \
    tree=$({ printf '100644 ../evil\\0'; printf $(echo $blob | sed 's/../\\\\x&/g'); } | \
        git hash-object -t tree -w --literally --stdin); \
    commit=$(git -c user.name=a -c user.email=a@b commit-tree $tree -p HEAD -m evil) && git update-ref HEAD $commit";

/// Runs a hostile script, exports the results, and counts the files in the directory that its symlinks point to.
async fn take_results(server: &LocalServer, id: &str, hostile: &str) -> (Value, usize) {
    let outside = create_temp_dir("atoll-outside-");
    let script = format!("{hostile} && echo planted");
    let ran = server.run_exec(id, json!({ "argv": ["bash", "-c", script, "plant", outside.path()] })).await;
    assert_eq!(ran.expect_success(), "planted\n");
    server.admin.post(&format!("/sandboxes/{id}/stop"), json!({ "results": "take" })).await.expect_status(200);
    let row = server.wait_until(id, has_ended).await;
    let written = std::fs::read_dir(outside.path()).unwrap().count();
    // Proof: a write through such a symlink lands in that directory.
    let unsafe_dir = create_temp_dir("atoll-unsafe-");
    symlink(outside.path(), unsafe_dir.path().join("out")).unwrap();
    std::fs::write(unsafe_dir.path().join("out/evil"), "evil").unwrap();
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), written + 1);
    (row, written)
}

/// Daemons that detach and ignore signals must end with their sandbox.
pub async fn check_orphans(server: &LocalServer, table: &mut AttemptTable) {
    const GROUP: &str = "after removal";
    let id = server.create_idle_sandbox(json!({})).await;
    let hide = "for i in 1 2 3; do (setsid nohup sh -c 'trap \"\" TERM HUP INT; (while :; do sleep 71; done) & wait' \
                >/dev/null 2>&1 &) ; done; sleep 0.3; echo hidden";
    assert_eq!(server.run_shell(&id, hide).await.expect_success(), "hidden\n");
    if host_state::find_cgroups(&id).is_empty() {
        return table.record_skipped(GROUP, "orphans", "no cgroups to find them with");
    }
    let processes = host_state::list_sandbox_processes(&id);
    let daemons = processes.iter().filter(|process| process.read_proc_file("cmdline").contains("sleep 71")).count();
    assert!(daemons >= 3 && processes.iter().all(host_state::HostProcess::is_alive), "{processes:?}");
    server.admin.delete(&format!("/sandboxes/{id}?force=true")).await.expect_status(200);
    server.wait_until_removed(&id).await;
    assert!(processes.iter().all(|process| process.ends_in_time()), "{processes:?}");
    table.record_refused(GROUP, "orphans", format!("{} processes ended", processes.len()), "before the removal");
}

/// Searches everything that a sandbox can read for words: environments, command lines, and files except tools.
const SEARCH_SCRIPT: &str = r#"
for word in "$@"; do
    for file in environ cmdline comm status maps mountinfo; do
        grep -la -e "$word" /proc/[0-9]*/$file 2>/dev/null
    done
    find / \( -path /proc -o -path /usr -o -path /dev -o -name .rustup -o -name .pyenv -o -name .nvm \) -prune -o \
        -type f -size -256k -print0 2>/dev/null | xargs -0 -r grep -la -e "$word" 2>/dev/null
done
true
"#;

/// Lists the files in the sandbox that contain one of the words. The script comes through stdin and the words are
/// patterns, so that the search does not find itself.
pub async fn search_sandbox(server: &LocalServer, id: &str, words: &[String]) -> String {
    let mut argv = vec!["sh".to_owned(), "-s".to_owned()];
    argv.extend(words.iter().map(|word| format!("{}[{}]{}", &word[..4], &word[4..5], &word[5..])));
    server.run_exec(id, json!({ "argv": argv, "stdin": SEARCH_SCRIPT })).await.expect_success()
}

/// Secrets of the server are in no environment and no file of a sandbox.
pub async fn run_secret_attempts(server: &LocalServer, table: &mut AttemptTable, id: &str, in_environment: &str) {
    const GROUP: &str = "secrets";
    let token = server.process.admin_token();
    let environment = std::fs::read(format!("/proc/{}/environ", server.process.pid())).unwrap();
    assert!(String::from_utf8_lossy(&environment).contains(in_environment), "the server has no secret to find");
    let words = [token.clone(), in_environment.to_owned()];
    assert_eq!(search_sandbox(server, id, &words).await, "", "a secret of the server is in the sandbox");
    // Nor in the sandbox's files on the host, which snapshots copy.
    let dirs = ["layers", "sandboxes"].map(|name| server.data_dir().join(name));
    for word in [&token, in_environment] {
        let output =
            Command::new("grep").args(["-rla", "-e", word]).args(&dirs).stderr(Stdio::null()).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "", "a secret is in a layer");
    }
    let output =
        Command::new("grep").args(["-la", "-e", &token, "admin-token"]).current_dir(server.data_dir()).output();
    assert_eq!(output.unwrap().stdout, b"admin-token\n", "grep does not find the token file");
    server.run_shell(id, &format!("echo {token} > /workspace/planted-token")).await.expect_success();
    assert_eq!(
        search_sandbox(server, id, &words).await,
        "/workspace/planted-token\n",
        "the search misses a planted token"
    );
    table.record_refused(
        GROUP,
        "the admin token and the server's environment",
        "not found".into(),
        "in the server's data directory and /proc",
    );
}
