//! The command line in a directory of a repository: the default of `--repo`, references by branch, and the commit.

use atoll_tests::local::create_temp_dir;
use atoll_tests::local::repository::SampleRepository;
use atoll_tests::process;
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Output, Stdio};

fn run_atoll(data_dir: &Path, directory: &Path, arguments: &[&str]) -> Output {
    let mut command = process::program_command("atoll");
    command.args(arguments).env("ATOLL_DATA_DIR", data_dir).current_dir(directory);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = process::spawn_process(command).wait_with_output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn last_object(output: &Output) -> Value {
    serde_json::from_str(text(output).lines().last().unwrap()).unwrap()
}

#[test]
fn a_run_works_on_the_repository_of_the_current_directory() {
    let (data, repository) = (create_temp_dir("atoll-data-"), SampleRepository::create());
    repository.run_git(&["config", "user.name", "Ann Lee"]);
    repository.run_git(&["config", "user.email", "ann@example.org"]);
    let inside = repository.path().join("src");
    std::fs::create_dir_all(&inside).unwrap();
    let run = ["run", "edit done.txt yes", "--agent", "demo", "--provider", "local"];
    let done = last_object(&run_atoll(data.path(), &inside, &[&run[..], &["--json", "--title", "Fix it"]].concat()));
    let branch = done["branch"].as_str().unwrap_or_else(|| panic!("a branch in {done}"));
    assert_eq!(repository.file_at(branch, "done.txt").as_deref(), Some("yes\n"));
    let message = repository.run_git(&["log", "-1", "--format=%B", branch]);
    assert_eq!(message.trim(), "Fix it\n\nCo-Authored-By: demo <atoll@localhost>");
    let author = repository.run_git(&["log", "-1", "--format=%an <%ae>", branch]);
    assert_eq!(author.trim(), "Ann Lee <ann@example.org>", "the author is the user of the repository");

    // No server runs any more.
    let shown = run_atoll(data.path(), &inside, &["sandbox", "show", branch, "--json"]);
    assert_eq!(last_object(&shown)["branch"], branch);
    let short = branch.rsplit('/').next().unwrap();
    let diff = text(&run_atoll(data.path(), &inside, &["sandbox", "diff", short]));
    assert!(diff.contains("+++ b/done.txt") && diff.contains("+yes"), "{diff}");
    let files = last_object(&run_atoll(data.path(), &inside, &["sandbox", "diff", short, "--json"]));
    assert_eq!((&files["files"][0]["path"], &files["files"][0]["added"]), (&json!("done.txt"), &json!(1)), "{files}");

    let none = last_object(&run_atoll(data.path(), &inside, &[&run[..], &["--json", "--no-repo"]].concat()));
    assert_eq!(none.get("branch"), None, "{none}");
}
