//! The command line, for root and for an ordinary user: the same task, from start to end.

use super::worker::{HANDS, LOOK, open_doors};
use atoll_tests::local::repository::{Repository, git};
use atoll_tests::local::{directory, is_root, skipped, told, traces};
use atoll_tests::ordinary::{self, Ids, own};
use atoll_tests::process::{self, program};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

const USER: u32 = 61_234;

/// Somebody else, who has a range of ids besides.
const USER_WITH_RANGE: u32 = 61_235;

/// Whoever types the commands, with a home and programs that they may use.
struct Person {
    dir: TempDir,
    uid: Option<u32>,
    ids: Ids,
}

impl Person {
    fn root() -> Self {
        let dir = directory("atoll-person-");
        std::fs::create_dir(dir.path().join("home")).unwrap();
        Self { dir, uid: None, ids: Ids::Own }
    }

    /// Somebody without any privilege.
    fn ordinary(uid: u32, ids: Ids) -> Self {
        let person = Self { uid: Some(uid), ids, ..Self::root() };
        std::fs::set_permissions(person.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        for name in ["atoll", "atoll-worker"] {
            ordinary::install(&program(name), &person.dir.path().join(name));
        }
        own(&person.home(), uid);
        person
    }

    fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    fn data(&self) -> PathBuf {
        self.home().join("data")
    }

    fn atoll(&self, arguments: &[&str]) -> Output {
        let mut command = match self.uid {
            None => process::command("atoll"),
            Some(uid) => ordinary::command(uid, self.ids, self.dir.path(), &self.dir.path().join("atoll")),
        };
        command.args(arguments).env("HOME", self.home()).env("ATOLL_DATA_DIR", self.data()).current_dir(self.home());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        process::spawn(command).wait_with_output().unwrap()
    }
}

fn text(output: &Output) -> String {
    format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn lines(output: &Output) -> Vec<Value> {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("not JSON: {line}"))).collect()
}

/// `atoll run` on a repository: everything that is promised of it.
fn one_task_from_start_to_end(person: &Person) -> Vec<Value> {
    let repository = Repository::sample();
    if let Some(uid) = person.uid {
        own(repository.path(), uid);
    }
    let before = repository.checkout();
    let prompt = "say hello\nedit done.txt yes\nrun cat done.txt; id -u";
    let output = person.atoll(&["run", prompt, "--repo", repository.text(), "--agent", "demo", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let events = lines(&output);
    let done = events.last().unwrap();
    assert_eq!((done["type"].as_str(), done["state"].as_str()), (Some("done"), Some("completed")), "{done}");
    let branch = done["branch"].as_str().unwrap_or_else(|| panic!("a branch in {done}"));
    assert_eq!(repository.show(branch, "done.txt").as_deref(), Some("yes\n"));
    repository.is_untouched(&before, branch);
    let ran = told(&events, "agent.tool_completed");
    assert!(ran.iter().any(|data| data["output"] == "yes\n1000\n"), "{ran:?}");
    assert_eq!(told(&events, "agent.file_edited").len(), 1);
    events
}

fn nothing_is_left(person: &Person) {
    let sandboxes = person.data().join("sandboxes");
    let left: Vec<_> =
        std::fs::read_dir(sandboxes).into_iter().flatten().flatten().map(|entry| entry.file_name()).collect();
    let left: Vec<_> = left.iter().filter(|name| name.to_string_lossy().starts_with("sbx_")).collect();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(traces::mounts_under(person.dir.path()), Vec::<String>::new());
    if let Some(uid) = person.uid {
        let processes = traces::of_user(uid);
        assert!(
            processes.iter().all(|process| process.ends_within(std::time::Duration::from_secs(5))),
            "{processes:?}"
        );
    }
}

#[test]
fn a_task_from_start_to_end_as_root() {
    if !is_root() {
        return skipped("a task as root", "these tests do not run as root");
    }
    let person = Person::root();
    one_task_from_start_to_end(&person);
    nothing_is_left(&person);
}

/// One after the other in one test: the user is the same, and so is what they leave behind.
#[test]
fn a_task_from_start_to_end_as_an_ordinary_user() {
    if let Some(why) = ordinary::missing(USER, Ids::Own) {
        return skipped("an ordinary user", why);
    }
    let person = Person::ordinary(USER, Ids::Own);
    let doctor = person.atoll(&["doctor"]);
    let said = text(&doctor);
    let tier = ["strong", "standard"].into_iter().find(|tier| said.contains(tier));
    let tier = tier.unwrap_or_else(|| panic!("doctor names no tier: {said}"));

    let events = one_task_from_start_to_end(&person);
    let notices: Vec<&str> = told(&events, "sandbox.notice").iter().filter_map(|data| data["text"].as_str()).collect();
    if tier == "standard" {
        assert!(notices.iter().any(|text| text.contains("memory") || text.contains("limit")), "{notices:?}");
        assert!(said.contains("memory"), "doctor says what is missing: {said}");
    }
    let verified = person.atoll(&["verify"]);
    assert_eq!(verified.status.code(), Some(0), "{}", text(&verified));
    the_agent_is_kept_apart(&person);
    nothing_is_left(&person);
    memory_is_bounded(&person);
}

/// Also where the agent, the worker and whoever runs them have one id on the host.
fn the_agent_is_kept_apart(person: &Person) {
    let repository = Repository::sample();
    repository.write("look.py", LOOK);
    repository.write("hands.sh", HANDS);
    repository.git(&["add", "-A"]);
    repository.git(&["commit", "-qm", "Look"]);
    own(repository.path(), person.uid.unwrap());
    let prompt = "run /usr/bin/python3 look.py 1
run /usr/bin/python3 look.py $(sh hands.sh)
run kill -KILL 1; kill -TERM 1; kill -STOP 1; echo tried
run grep -E 'Cap|NoNewPrivs|Seccomp:' /proc/self/status; ls /proc | grep -c '^[0-9]'";
    let output = person.atoll(&["run", prompt, "--repo", repository.text(), "--agent", "demo", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let events = lines(&output);
    let ran = told(&events, "agent.tool_completed");
    let said: Vec<&str> = ran.iter().map(|data| data["output"].as_str().unwrap()).collect();
    assert_eq!(said.len(), 4, "{said:?}");
    assert_eq!(open_doors(said[0]), Vec::<String>::new(), "into the worker");
    assert_eq!(open_doors(said[1]), Vec::<String>::new(), "into its hands");
    assert!(said[2].contains("tried"), "{said:?}");
    let held = said[3].lines().filter(|line| line.starts_with("Cap")).all(|line| line.ends_with("0000000000000000"));
    assert!(held && said[3].contains("NoNewPrivs:\t1") && said[3].contains("Seccomp:\t2"), "{said:?}");
    let processes: usize = said[3].lines().last().unwrap().parse().unwrap();
    assert!(processes < 10, "{said:?}");
}

/// Without a cgroup each process has a bound of its own, and its end is not told as what nobody can know.
fn memory_is_bounded(person: &Person) {
    let output = person.atoll(&["run", "say a\noom", "--agent", "demo", "--memory", "0.1", "--json"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    let events = lines(&output);
    let code = events.last().unwrap()["reason"]["code"].as_str().unwrap().to_owned();
    if code != "out_of_memory" {
        assert_eq!(code, "agent_crashed", "{events:#?}");
        skipped("out_of_memory for an ordinary user", "no cgroup is writable for them");
    }
    let processes = person.uid.map(traces::of_user).unwrap_or_default();
    assert!(processes.iter().all(|process| process.ends_within(std::time::Duration::from_secs(5))), "{processes:?}");
}

/// Doctor says what does not hold for them, and the demonstration of the README works.
#[test]
fn with_a_range_of_ids_an_ordinary_user_has_worker_and_agent_apart() {
    if let Some(why) = ordinary::missing(USER_WITH_RANGE, Ids::Range) {
        return skipped("an ordinary user with a range of ids", why);
    }
    let person = Person::ordinary(USER_WITH_RANGE, Ids::Range);
    let said = text(&person.atoll(&["doctor"]));
    let limits = said.lines().find(|line| line.contains("limits")).unwrap_or_else(|| panic!("no limits in {said}"));
    assert!(limits.contains("memory") && limits.contains("cpu") && limits.contains("disk"), "{limits}");
    assert!(!said.contains("under this user's own id"), "{said}");
    let events = one_task_from_start_to_end(&person);
    let notices: Vec<&str> = told(&events, "sandbox.notice").iter().filter_map(|data| data["text"].as_str()).collect();
    assert!(!notices.iter().any(|text| text.contains("same user id")), "worker and agent are two: {notices:?}");
    the_agent_is_kept_apart(&person);
    demonstration(&person);
    nothing_is_left(&person);
}

/// What `make run` does once everything is built.
fn demonstration(person: &Person) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let place = person.home().join("demo");
    let copy = |from: &str| {
        let to = place.join(from);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        let done = Command::new("cp").arg("-r").arg(root.join(from)).arg(&to).status().unwrap();
        assert!(done.success());
    };
    copy("scripts/demo");
    copy("examples/greeting");
    std::fs::create_dir_all(place.join("target/debug")).unwrap();
    for name in ["atoll", "atoll-worker"] {
        ordinary::install(&program(name), &place.join("target/debug").join(name));
    }
    let uid = person.uid.unwrap();
    own(&place.join("examples"), uid);
    for dir in ["", "scripts", "target", "target/debug"] {
        std::os::unix::fs::chown(place.join(dir), Some(uid), Some(uid)).unwrap();
    }
    let mut command = ordinary::command(uid, person.ids, person.dir.path(), Path::new("bash"));
    command.arg(place.join("scripts/demo")).current_dir(&place).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = process::spawn(command).wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let branches = git(&place.join("target/demo/greeting"), &["branch", "--list", "atoll/*"]);
    assert_eq!(branches.lines().count(), 1, "{branches} {}", text(&output));
}

#[test]
fn a_failing_task_says_so_by_its_exit_code() {
    let person = Person::root();
    let output = person.atoll(&["run", "say a\nfail no luck", "--agent", "demo", "--provider", "local", "--json"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    let done = lines(&output).pop().unwrap();
    assert_eq!(done["reason"]["code"], "agent_failed", "{done}");
    let empty = person.home();
    let output = person.atoll(&["run", "say a", "--repo", empty.to_str().unwrap(), "--agent", "demo"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    assert!(text(&output).contains("git init"), "{}", text(&output));
    let output = person.atoll(&["run", "say a", "--repo", "https://example.org/x.git", "--agent", "demo"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
}

#[test]
fn verify_holds_and_doctor_names_the_tier() {
    let person = Person::root();
    let verified = person.atoll(&["verify"]);
    assert_eq!(verified.status.code(), Some(0), "{}", text(&verified));
    let said = text(&verified);
    assert!(
        said.lines().filter(|line| line.contains('✓') || line.contains("ok")).count() > 3,
        "a line a promise: {said}"
    );
    let doctor = person.atoll(&["doctor"]);
    let said = text(&doctor);
    assert!(said.contains("strong") || said.contains("standard"), "{said}");
    nothing_is_left(&person);
}
