//! World-readable canary files in every hidden directory of the host must not be visible in a sandbox.

use atoll_tests::local::repository::SampleRepository;
use atoll_tests::local::{LocalServer, create_temp_dir, event_data};
use atoll_tests::process;
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// Directories of the host that no sandbox shows. The test skips the ones that it cannot write.
const HIDDEN_DIRS: &[&str] = &[
    "/tmp", "/var/tmp", "/var/lib", "/var/log", "/run", "/srv", "/mnt", "/media", "/opt", "/home", "/root", "/boot",
    "/etc",
];
/// Directories of a home that hold secrets.
const SECRET_HOME_DIRS: &[&str] =
    &[".ssh", ".config", ".aws", ".docker", ".kube", ".gnupg", ".cargo", ".local/share", "work"];

/// Searches all files by name, and all but the large tool trees by content. `$1` is the word, the rest are directories.
const SEARCH_SCRIPT: &str = r#"
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
    dirs: Vec<TempDir>,
    home: TempDir,
    files: Vec<PathBuf>,
}

impl Canaries {
    fn create() -> Self {
        let word = format!("canary{}", uuid::Uuid::new_v4().simple());
        let home = create_temp_dir("atoll-home-");
        let mut canaries = Self { word, dirs: Vec::new(), home, files: Vec::new() };
        for hidden in HIDDEN_DIRS {
            if let Ok(dir) = tempfile::Builder::new().prefix("atoll-hidden-").tempdir_in(hidden) {
                canaries.write_canary(dir.path());
                canaries.dirs.push(dir);
            }
        }
        for secret in SECRET_HOME_DIRS {
            let dir = canaries.home.path().join(secret);
            std::fs::create_dir_all(&dir).unwrap();
            canaries.write_canary(&dir);
        }
        let home = canaries.home.path().to_owned();
        canaries.write_canary(&home);
        canaries
    }

    fn write_canary(&mut self, dir: &Path) {
        std::fs::set_permissions(dir, PermissionsExt::from_mode(0o755)).unwrap();
        let file = dir.join(format!("{}.txt", self.word));
        std::fs::write(&file, format!("{}\n", self.word)).unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
        self.files.push(file);
    }

    /// Asserts that the same search on the host finds every canary.
    fn assert_found_on_host(&self) {
        let mut dirs: Vec<&Path> = self.dirs.iter().map(TempDir::path).collect();
        dirs.push(self.home.path());
        let output = Command::new("sh").args(["-c", SEARCH_SCRIPT, "search", &self.word]).args(dirs).output().unwrap();
        let found = String::from_utf8(output.stdout).unwrap();
        for file in &self.files {
            let times = found.lines().filter(|line| Path::new(line) == file).count();
            assert_eq!(times, 2, "one match by name and one by content: {}", file.display());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_canary_is_visible_in_a_sandbox() {
    let server = LocalServer::start();
    let mut canaries = Canaries::create();
    canaries.write_canary(&server.data_dir());
    let id = server.create_idle_sandbox(json!({})).await;
    let home = server.sandbox_dir(&id);
    let hidden: Vec<PathBuf> =
        ["spool", "link"].iter().map(|name| home.join(name)).filter(|dir| dir.is_dir()).collect();
    hidden.iter().for_each(|dir| canaries.write_canary(dir));
    let around: Vec<_> = canaries.files.iter().map(|file| file.parent().unwrap().to_owned()).collect();
    assert!(around.len() > 6, "too few directories to test: {around:?}");
    let ran = server.run_exec(&id, json!({ "argv": ["sh", "-c", SEARCH_SCRIPT, "search", canaries.word, "/"] })).await;
    assert_eq!(ran.expect_success(), "");
    // Counter-check: the search finds canaries that exist in the workspace, in the home and in the temporary directory.
    let planted = format!("for d in /workspace /tmp $HOME; do echo {0} > $d/{0}.txt; done", canaries.word);
    server.run_shell(&id, &planted).await.expect_success();
    let ran = server.run_exec(&id, json!({ "argv": ["sh", "-c", SEARCH_SCRIPT, "search", canaries.word, "/"] })).await;
    assert_eq!(ran.expect_success().lines().count(), 6, "the search must work in the sandbox");
    for dir in around.iter().filter(|dir| dir.starts_with(server.data_dir())) {
        canaries.files.retain(|file| file.parent() != Some(dir));
    }
    canaries.assert_found_on_host();
    server.stop_and_check().await;
}

/// The agent searches in a sandbox of a server whose user has a home full of secrets.
#[test]
fn no_secret_of_a_home_directory_is_visible_in_a_sandbox() {
    let canaries = Canaries::create();
    let home = canaries.home.path();
    // The sandbox shows tool directories of the home, and nothing else of it.
    let tools = home.join(".local/bin");
    std::fs::create_dir_all(&tools).unwrap();
    std::fs::set_permissions(home.join(".local"), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&tools, PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::write(tools.join("a-tool"), "#!/bin/sh\necho tool\n").unwrap();
    std::fs::set_permissions(tools.join("a-tool"), PermissionsExt::from_mode(0o755)).unwrap();
    canaries.assert_found_on_host();

    // Pass the word in two halves, so that neither the prompt nor the files contain it.
    let repository = SampleRepository::create();
    let (first, second) = canaries.word.split_at(12);
    for (name, text) in [("search.sh", SEARCH_SCRIPT), ("first", first), ("second", second)] {
        repository.write(name, text);
    }
    repository.run_git(&["add", "-A"]);
    repository.run_git(&["commit", "-qm", "Search"]);
    let prompt = "run word=$(cat first second); echo $word > here.txt; sh search.sh $word /; echo searched";
    let data = create_temp_dir("atoll-data-");
    let mut command = process::program_command("atoll");
    command.args(["run", prompt, "--agent", "demo", "--provider", "local", "--json", "--repo", repository.path_str()]);
    command.arg("--data-dir").arg(data.path()).env("HOME", home).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = process::spawn_process(command).wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    let events: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let ran = event_data(&events, "agent.tool_completed");
    assert_eq!(ran.len(), 1, "{text}");
    let lines: Vec<&str> = ran[0]["output"].as_str().unwrap().lines().collect();
    assert_eq!(lines, ["/workspace/here.txt", "searched"], "only the file that the agent made");
}
