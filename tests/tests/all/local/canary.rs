//! A file that everybody may read stands in each place that is to be hidden, and is not found inside.

use atoll_tests::local::repository::Repository;
use atoll_tests::local::{Ground, directory, told};
use atoll_tests::process;
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// Places of a machine that no sandbox shows. Where these tests may not write, there is nothing to look for.
const HIDDEN: &[&str] = &[
    "/tmp", "/var/tmp", "/var/lib", "/var/log", "/run", "/srv", "/mnt", "/media", "/opt", "/home", "/root", "/boot",
    "/etc",
];
/// Places of a home that hold secrets.
const SECRET: &[&str] = &[".ssh", ".config", ".aws", ".docker", ".kube", ".gnupg", ".cargo", ".local/share", "work"];

/// Looks through all files by name, and through all but the large trees of tools by content; `$1` is
/// the word, the rest are the places.
const SEARCH: &str = r#"
word=$1; shift
find "$@" -name "*$word*" 2>/dev/null
find "$@" \( -path /proc -o -path /dev -o -path /usr -o -name .rustup -o -name .pyenv -o -name .nvm \) -prune -o \
    -type f -size -64k -print0 2>/dev/null |
    xargs -0 -r grep -ls "$word" 2>/dev/null
env | grep "$word"
true
"#;

struct Canaries {
    word: String,
    places: Vec<TempDir>,
    home: TempDir,
    files: Vec<PathBuf>,
}

impl Canaries {
    fn plant() -> Self {
        let word = format!("canary{}", uuid::Uuid::new_v4().simple());
        let home = directory("atoll-home-");
        let mut canaries = Self { word, places: Vec::new(), home, files: Vec::new() };
        for hidden in HIDDEN {
            if let Ok(place) = tempfile::Builder::new().prefix("atoll-hidden-").tempdir_in(hidden) {
                canaries.put(place.path());
                canaries.places.push(place);
            }
        }
        for secret in SECRET {
            let place = canaries.home.path().join(secret);
            std::fs::create_dir_all(&place).unwrap();
            canaries.put(&place);
        }
        let home = canaries.home.path().to_owned();
        canaries.put(&home);
        canaries
    }

    fn put(&mut self, dir: &Path) {
        std::fs::set_permissions(dir, PermissionsExt::from_mode(0o755)).unwrap();
        let file = dir.join(format!("{}.txt", self.word));
        std::fs::write(&file, format!("{}\n", self.word)).unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
        self.files.push(file);
    }

    /// The same search on the host, in the places themselves, finds every one of them.
    fn are_found_outside(&self) {
        let mut places: Vec<&Path> = self.places.iter().map(TempDir::path).collect();
        places.push(self.home.path());
        let output = Command::new("sh").args(["-c", SEARCH, "search", &self.word]).args(places).output().unwrap();
        let found = String::from_utf8(output.stdout).unwrap();
        for file in &self.files {
            let times = found.lines().filter(|line| Path::new(line) == file).count();
            assert_eq!(times, 2, "by its name and by its content: {}", file.display());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_canary_is_seen_from_a_sandbox() {
    let ground = Ground::start();
    let mut canaries = Canaries::plant();
    canaries.put(&ground.data());
    let id = ground.kept(json!({})).await;
    let home = ground.home_of(&id);
    let hidden: Vec<PathBuf> =
        ["spool", "link"].iter().map(|name| home.join(name)).filter(|dir| dir.is_dir()).collect();
    hidden.iter().for_each(|dir| canaries.put(dir));
    let around: Vec<_> = canaries.files.iter().map(|file| file.parent().unwrap().to_owned()).collect();
    assert!(around.len() > 6, "there are places to look for: {around:?}");
    let ran = ground.exec(&id, json!({ "argv": ["sh", "-c", SEARCH, "search", canaries.word, "/"] })).await;
    assert_eq!(ran.well(), "");
    // One that is there is found: in the workspace, at home, among the temporary files.
    let planted = format!("for d in /workspace /tmp $HOME; do echo {0} > $d/{0}.txt; done", canaries.word);
    ground.shell(&id, &planted).await.well();
    let ran = ground.exec(&id, json!({ "argv": ["sh", "-c", SEARCH, "search", canaries.word, "/"] })).await;
    assert_eq!(ran.well().lines().count(), 6, "the search works inside as well");
    for dir in around.iter().filter(|dir| dir.starts_with(ground.data())) {
        canaries.files.retain(|file| file.parent() != Some(dir));
    }
    canaries.are_found_outside();
    ground.leave().await;
}

/// The agent's own search, under a server that belongs to somebody with a home full of secrets.
#[test]
fn no_secret_of_a_home_is_seen_from_a_sandbox() {
    let canaries = Canaries::plant();
    let home = canaries.home.path();
    // Tools are shown, and only they.
    let tools = home.join(".local/bin");
    std::fs::create_dir_all(&tools).unwrap();
    std::fs::set_permissions(home.join(".local"), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&tools, PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::write(tools.join("a-tool"), "#!/bin/sh\necho tool\n").unwrap();
    std::fs::set_permissions(tools.join("a-tool"), PermissionsExt::from_mode(0o755)).unwrap();
    canaries.are_found_outside();

    // The word goes in as two halves, so that neither prompt nor files hold it.
    let repository = Repository::sample();
    let (first, second) = canaries.word.split_at(12);
    for (name, text) in [("search.sh", SEARCH), ("first", first), ("second", second)] {
        repository.write(name, text);
    }
    repository.git(&["add", "-A"]);
    repository.git(&["commit", "-qm", "Search"]);
    let prompt = "run word=$(cat first second); echo $word > here.txt; sh search.sh $word /; echo searched";
    let data = directory("atoll-data-");
    let mut command = process::command("atoll");
    command.args(["run", prompt, "--agent", "demo", "--provider", "local", "--json", "--repo", repository.text()]);
    command.arg("--data-dir").arg(data.path()).env("HOME", home).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = process::spawn(command).wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    let events: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let ran = told(&events, "agent.tool_completed");
    assert_eq!(ran.len(), 1, "{text}");
    let lines: Vec<&str> = ran[0]["output"].as_str().unwrap().lines().collect();
    assert_eq!(lines, ["/workspace/here.txt", "searched"], "the one that it made itself, and no other");
}
