//! What a sandbox leaves behind or hands out, and what it is not given.

use super::table::Table;
use atoll_tests::local::repository::Repository;
use atoll_tests::local::{Ground, PATIENCE, directory, has_ended, traces};
use atoll_tests::ordinary::own;
use serde_json::{Value, json};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Swaps a file of the workspace for a link to `$1` and back, as fast as it can.
const SWAP: &str = "while :; do ln -sfn $1 next && mv -T next calc.py; echo mine > next && mv -T next calc.py; done";

/// Whether a reader that follows links is led astray by the same game on the host.
fn a_careless_reader_is_fooled(canary: &Path) -> bool {
    let place = directory("atoll-swap-");
    let mut command = Command::new("sh");
    command.args(["-c", SWAP, "swap"]).arg(canary).current_dir(place.path()).stderr(Stdio::null());
    let mut swapping = command.spawn().unwrap();
    let wanted = std::fs::read(canary).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut fooled = false;
    while !fooled && Instant::now() < deadline {
        fooled = std::fs::read(place.path().join("calc.py")).is_ok_and(|bytes| bytes == wanted);
    }
    drop((swapping.kill(), swapping.wait()));
    fooled
}

/// One that belongs to whoever runs the server.
fn repository_of(user: Option<u32>) -> Repository {
    let repository = Repository::sample();
    if let Some(user) = user {
        own(repository.path(), user);
    }
    repository
}

/// Links that come and go under the eyes of whoever reads the workspace, and in what is taken out of it.
pub async fn swaps(ground: &Ground, table: &mut Table, canary: &Path, user: Option<u32>) {
    const GROUP: &str = "what comes out";
    let word = std::fs::read_to_string(canary).unwrap();
    assert!(a_careless_reader_is_fooled(canary), "the game works");
    let repository = repository_of(user);
    let before = repository.checkout();
    let id = ground.kept(json!({ "repo": { "path": repository.text() } })).await;
    let swap = format!("nohup sh -c '{SWAP}' swap {} >/dev/null 2>&1 &", canary.display());
    ground.shell(&id, &swap).await.well();
    let mut read = 0;
    for _ in 0..25 {
        let answer = ground.admin.get(&format!("/sandboxes/{id}/diff")).await;
        assert!(!answer.body.to_string().contains(&word), "{}", answer.body);
        read += usize::from(answer.status.as_u16() == 200);
    }
    assert!(read > 0, "the diff can be had meanwhile");
    table.held(
        GROUP,
        "links swapped under the diff",
        format!("{read} diffs without it"),
        "on the host, for a careless reader",
    );

    let stop = "kill $(grep -la 'swa[p]' /proc/[0-9]*/cmdline | cut -d/ -f3) 2>/dev/null; sleep 0.2; rm -f next";
    ground.shell(&id, &format!("{stop}; true")).await;
    let (row, written) = taken(ground, &id, LINKS).await;
    assert_eq!((row["results"].as_str(), written), (Some("taken"), 0), "links are taken as links: {row}");
    let name = row["branch"].as_str().map(str::to_owned);
    let name = name.unwrap_or_else(|| repository.git(&["branch", "--format=%(refname:short)", "--list", "atoll/*"]));
    let listed = repository.git(&["ls-tree", name.trim(), "out", "calc.py"]);
    assert!(listed.lines().all(|line| line.starts_with("120000")) && listed.lines().count() == 2, "{listed}");
    repository.is_untouched(&before, name.trim());
    table.held(GROUP, "links and hooks among the results", "taken as links, no hook ran".into(), CARELESS);

    let other = repository_of(user);
    let before = other.checkout();
    let id = ground.kept(json!({ "repo": { "path": other.text() } })).await;
    let (row, written) = taken(ground, &id, CLIMBING).await;
    assert_eq!((row["reason"]["code"].as_str(), written), (Some("results_failed"), 0), "{row}");
    assert_eq!(other.checkout(), before, "nothing was taken");
    let said: String = row["reason"]["detail"].as_str().unwrap().chars().take(80).collect();
    table.held(GROUP, "names that climb among the results", said, CARELESS);
}

const CARELESS: &str = "on the host, for a careless writer";

/// A link that leads to `$1`, one to a file of the host, a hook.
const LINKS: &str = "ln -s $1 out; ln -sfn /etc/passwd calc.py; mkdir -p .git/hooks; \
    printf '#!/bin/sh\\ntouch %s/hook\\n' $1 > .git/hooks/post-checkout; chmod +x .git/hooks/post-checkout";

/// A commit with a file whose name leads out of every directory.
const CLIMBING: &str = "blob=$(echo evil | git hash-object -w --stdin); \
    tree=$({ printf '100644 ../evil\\0'; printf $(echo $blob | sed 's/../\\\\x&/g'); } | \
        git hash-object -t tree -w --literally --stdin); \
    commit=$(git -c user.name=a -c user.email=a@b commit-tree $tree -p HEAD -m evil) && git update-ref HEAD $commit";

/// Lets a sandbox be hostile, takes its results, and counts what is then where its links lead.
async fn taken(ground: &Ground, id: &str, hostile: &str) -> (Value, usize) {
    let outside = directory("atoll-outside-");
    let script = format!("{hostile} && echo planted");
    let ran = ground.exec(id, json!({ "argv": ["bash", "-c", script, "plant", outside.path()] })).await;
    assert_eq!(ran.well(), "planted\n");
    ground.admin.post(&format!("/sandboxes/{id}/stop"), json!({ "results": "take" })).await.expect(200);
    let row = ground.until(id, has_ended).await;
    let written = std::fs::read_dir(outside.path()).unwrap().count();
    // Whoever writes out such a tree without looking is led there.
    let careless = directory("atoll-careless-");
    symlink(outside.path(), careless.path().join("out")).unwrap();
    std::fs::write(careless.path().join("out/evil"), "evil").unwrap();
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), written + 1, "a careless writer is led there");
    (row, written)
}

/// Daemons that hide from their sandbox's end.
pub async fn orphans(ground: &Ground, table: &mut Table) {
    const GROUP: &str = "after the end";
    let id = ground.kept(json!({})).await;
    let hide = "for i in 1 2 3; do (setsid nohup sh -c 'trap \"\" TERM HUP INT; (while :; do sleep 71; done) & wait' \
                >/dev/null 2>&1 &) ; done; sleep 0.3; echo hidden";
    assert_eq!(ground.shell(&id, hide).await.well(), "hidden\n");
    if traces::cgroups(&id).is_empty() {
        return table.skipped(GROUP, "orphans", "there are no cgroups to find them by");
    }
    let processes = traces::processes(&id);
    let hidden = processes.iter().filter(|process| process.file("cmdline").contains("sleep 71")).count();
    assert!(hidden >= 3 && processes.iter().all(traces::Process::is_alive), "they live: {processes:?}");
    ground.admin.delete(&format!("/sandboxes/{id}?force=true")).await.expect(200);
    ground.gone(&id).await;
    assert!(processes.iter().all(|process| process.ends_within(PATIENCE)), "{processes:?}");
    table.held(GROUP, "orphans", format!("{} processes ended", processes.len()), "until then: they were alive");
}

/// Looks for words everywhere that a sandbox can look: environments, command lines, files that are not tools.
const SEARCH: &str = r#"
for word in "$@"; do
    for file in environ cmdline comm status maps mountinfo; do
        grep -la -e "$word" /proc/[0-9]*/$file 2>/dev/null
    done
    find / \( -path /proc -o -path /usr -o -path /dev -o -name .rustup -o -name .pyenv -o -name .nvm \) -prune -o \
        -type f -size -256k -print0 2>/dev/null | xargs -0 -r grep -la -e "$word" 2>/dev/null
done
true
"#;

/// The places inside that hold one of the words. The script comes by its input, and the words in halves, so that the
/// search does not find itself.
pub async fn search(ground: &Ground, id: &str, words: &[String]) -> String {
    let mut argv = vec!["sh".to_owned(), "-s".to_owned()];
    argv.extend(words.iter().map(|word| format!("{}[{}]{}", &word[..4], &word[4..5], &word[5..])));
    ground.exec(id, json!({ "argv": argv, "stdin": SEARCH })).await.well()
}

/// Secrets that the server has are neither in an environment nor in a file of a sandbox.
pub async fn secrets(ground: &Ground, table: &mut Table, id: &str, in_environment: &str) {
    const GROUP: &str = "secrets";
    let token = ground.server.token();
    let environment = std::fs::read(format!("/proc/{}/environ", ground.server.pid())).unwrap();
    assert!(String::from_utf8_lossy(&environment).contains(in_environment), "the server has it");
    let words = [token.clone(), in_environment.to_owned()];
    assert_eq!(search(ground, id, &words).await, "", "no secret of the server is inside");
    // Nor in what is kept of it on the host, which is what a snapshot holds.
    let kept = ["layers", "sandboxes"].map(|name| ground.data().join(name));
    for word in [&token, in_environment] {
        let output =
            Command::new("grep").args(["-rla", "-e", word]).args(&kept).stderr(Stdio::null()).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "", "a secret is in a layer");
    }
    let output = Command::new("grep").args(["-la", "-e", &token, "admin-token"]).current_dir(ground.data()).output();
    assert_eq!(output.unwrap().stdout, b"admin-token\n", "the same search finds it where it is");
    ground.shell(id, &format!("echo {token} > /workspace/told")).await.well();
    assert_eq!(search(ground, id, &words).await, "/workspace/told\n", "the search finds what is there");
    table.held(
        GROUP,
        "the admin's token and the server's environment",
        "found nowhere".into(),
        "in the server's own /proc",
    );
}
