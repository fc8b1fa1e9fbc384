//! The command line as root and as an ordinary user, on the same task from start to end.

use super::worker_isolation::{FIND_SPAWNER_SCRIPT, INSPECT_SCRIPT, successful_inspections};
use atoll_tests::local::repository::{SampleRepository, run_git};
use atoll_tests::local::{create_temp_dir, event_data, host_state, is_root, report_skipped};
use atoll_tests::process::{self, find_program};
use atoll_tests::unprivileged_user::{self, SubordinateIds, chown_tree};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

const PLAIN_UID: u32 = 61_234;

/// A user with a subordinate id range.
const UID_WITH_RANGE: u32 = 61_235;

/// A user of the command line, with a home and copies of the programs.
struct CliUser {
    dir: TempDir,
    uid: Option<u32>,
    ids: SubordinateIds,
}

impl CliUser {
    fn root() -> Self {
        let dir = create_temp_dir("atoll-person-");
        std::fs::create_dir(dir.path().join("home")).unwrap();
        Self { dir, uid: None, ids: SubordinateIds::Unassigned }
    }

    /// A user without privileges.
    fn unprivileged(uid: u32, ids: SubordinateIds) -> Self {
        let user = Self { uid: Some(uid), ids, ..Self::root() };
        std::fs::set_permissions(user.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        for name in ["atoll", "atoll-worker"] {
            unprivileged_user::install_program(&find_program(name), &user.dir.path().join(name));
        }
        chown_tree(&user.home_dir(), uid);
        user
    }

    fn home_dir(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    fn data_dir(&self) -> PathBuf {
        self.home_dir().join("data")
    }

    fn run_atoll(&self, arguments: &[&str]) -> Output {
        self.spawn_atoll(arguments).wait_with_output().unwrap()
    }

    fn spawn_atoll(&self, arguments: &[&str]) -> Child {
        let mut command = match self.uid {
            None => process::program_command("atoll"),
            Some(uid) => {
                unprivileged_user::user_command(uid, self.ids, self.dir.path(), &self.dir.path().join("atoll"))
            }
        };
        command
            .args(arguments)
            .env("HOME", self.home_dir())
            .env("ATOLL_DATA_DIR", self.data_dir())
            .current_dir(self.home_dir());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        process::spawn_process(command)
    }
}

fn output_text(output: &Output) -> String {
    format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn parse_json_lines(output: &Output) -> Vec<Value> {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("not JSON: {line}"))).collect()
}

/// Runs `atoll run` on a repository and checks the events, the results branch and the checkout.
fn check_whole_run(user: &CliUser) -> Vec<Value> {
    let repository = SampleRepository::create();
    if let Some(uid) = user.uid {
        chown_tree(repository.path(), uid);
    }
    let before = repository.checkout_state();
    let prompt = "say hello\nedit done.txt yes\nrun cat done.txt; id -u";
    let output = user.run_atoll(&["run", prompt, "--repo", repository.path_str(), "--agent", "demo", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", output_text(&output));
    let events = parse_json_lines(&output);
    let done = events.last().unwrap();
    assert_eq!((done["type"].as_str(), done["state"].as_str()), (Some("done"), Some("completed")), "{done}");
    let branch = done["branch"].as_str().unwrap_or_else(|| panic!("a branch in {done}"));
    assert_eq!(repository.file_at(branch, "done.txt").as_deref(), Some("yes\n"));
    repository.assert_untouched(&before, branch);
    let ran = event_data(&events, "agent.tool_completed");
    assert!(ran.iter().any(|data| data["output"] == "yes\n1000\n"), "{ran:?}");
    assert_eq!(event_data(&events, "agent.file_edited").len(), 1);
    events
}

/// Checks that repeated SIGTERMs, as `timeout` sends them, interrupt the agent and keep its work.
fn check_terminated_run(user: &CliUser) {
    let repository = SampleRepository::create();
    let prompt = "edit kept.txt yes\nwait 600";
    let mut run = user.spawn_atoll(&["run", prompt, "--repo", repository.path_str(), "--agent", "demo", "--json"]);
    let pid = Pid::from_child(&run);
    let mut stdout = BufReader::new(run.stdout.take().unwrap());
    let mut read_until = |event_type: &str| {
        let mut line = String::new();
        while !line.contains(event_type) {
            line.clear();
            assert!(stdout.read_line(&mut line).unwrap() > 0, "the run ended without {event_type}");
        }
        serde_json::from_str::<Value>(&line).unwrap()
    };
    read_until("agent.file_edited");
    kill_process(pid, Signal::TERM).unwrap();
    read_until("message.queued");
    kill_process(pid, Signal::TERM).unwrap();
    let done = read_until("\"done\"");
    assert_eq!((done["exit"].as_i64(), done["outcome"].as_str()), (Some(130), Some("cancelled")), "{done}");
    let branch = done["branch"].as_str().unwrap_or_else(|| panic!("a branch in {done}"));
    assert_eq!(repository.file_at(branch, "kept.txt").as_deref(), Some("yes\n"));
    assert_eq!(run.wait().unwrap().code(), Some(130));
}

fn assert_nothing_left(user: &CliUser) {
    let sandboxes = user.data_dir().join("sandboxes");
    let left: Vec<_> =
        std::fs::read_dir(sandboxes).into_iter().flatten().flatten().map(|entry| entry.file_name()).collect();
    let left: Vec<_> = left.iter().filter(|name| name.to_string_lossy().starts_with("sbx_")).collect();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(host_state::mounts_under(user.dir.path()), Vec::<String>::new());
    if let Some(uid) = user.uid {
        let processes = host_state::list_user_processes(uid);
        assert!(processes.iter().all(|process| process.ends_in_time()), "{processes:?}");
    }
}

#[test]
fn root_runs_a_task_from_start_to_end() {
    if !is_root() {
        return report_skipped("a task as root", "these tests do not run as root");
    }
    let user = CliUser::root();
    check_whole_run(&user);
    check_terminated_run(&user);
    assert_nothing_left(&user);
}

/// One test with several steps: they share one user and its leftovers.
#[test]
fn an_ordinary_user_runs_a_task_from_start_to_end() {
    if let Some(why) = unprivileged_user::missing_requirement(PLAIN_UID, SubordinateIds::Unassigned) {
        return report_skipped("an ordinary user", why);
    }
    let user = CliUser::unprivileged(PLAIN_UID, SubordinateIds::Unassigned);
    let doctor = user.run_atoll(&["doctor"]);
    let doctor_text = output_text(&doctor);
    let tier = ["strong", "standard"].into_iter().find(|tier| doctor_text.contains(tier));
    let tier = tier.unwrap_or_else(|| panic!("doctor names no tier: {doctor_text}"));

    let events = check_whole_run(&user);
    let notices: Vec<&str> =
        event_data(&events, "sandbox.notice").iter().filter_map(|data| data["text"].as_str()).collect();
    if tier == "standard" {
        assert!(notices.iter().any(|text| text.contains("memory") || text.contains("limit")), "{notices:?}");
        assert!(doctor_text.contains("memory"), "doctor must name the missing limit: {doctor_text}");
    }
    let verified = user.run_atoll(&["verify"]);
    assert_eq!(verified.status.code(), Some(0), "{}", output_text(&verified));
    check_worker_isolation(&user);
    assert_nothing_left(&user);
    check_memory_limit(&user);
}

/// Checks that the agent cannot inspect its worker, even if both have the same id on the host.
fn check_worker_isolation(user: &CliUser) {
    let repository = SampleRepository::create();
    repository.write("look.py", INSPECT_SCRIPT);
    repository.write("find-spawner.sh", FIND_SPAWNER_SCRIPT);
    repository.run_git(&["add", "-A"]);
    repository.run_git(&["commit", "-qm", "Look"]);
    chown_tree(repository.path(), user.uid.unwrap());
    let prompt = "run /usr/bin/python3 look.py 1
run /usr/bin/python3 look.py $(sh find-spawner.sh)
run kill -KILL 1; kill -TERM 1; kill -STOP 1; echo tried
run grep -E 'Cap|NoNewPrivs|Seccomp:' /proc/self/status; ls /proc | grep -c '^[0-9]'";
    let output = user.run_atoll(&["run", prompt, "--repo", repository.path_str(), "--agent", "demo", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", output_text(&output));
    let events = parse_json_lines(&output);
    let ran = event_data(&events, "agent.tool_completed");
    let outputs: Vec<&str> = ran.iter().map(|data| data["output"].as_str().unwrap()).collect();
    assert_eq!(outputs.len(), 4, "{outputs:?}");
    assert_eq!(successful_inspections(outputs[0]), Vec::<String>::new(), "into the worker");
    assert_eq!(successful_inspections(outputs[1]), Vec::<String>::new(), "into its spawner");
    assert!(outputs[2].contains("tried"), "{outputs:?}");
    let has_no_capabilities =
        outputs[3].lines().filter(|line| line.starts_with("Cap")).all(|line| line.ends_with("0000000000000000"));
    assert!(
        has_no_capabilities && outputs[3].contains("NoNewPrivs:\t1") && outputs[3].contains("Seccomp:\t2"),
        "{outputs:?}"
    );
    let processes: usize = outputs[3].lines().last().unwrap().parse().unwrap();
    assert!(processes < 10, "{outputs:?}");
}

/// Without a cgroup each process has its own memory limit, and a crash is not reported as out of memory.
fn check_memory_limit(user: &CliUser) {
    let output = user.run_atoll(&["run", "say a\noom", "--agent", "demo", "--memory", "0.1", "--json"]);
    assert_eq!(output.status.code(), Some(1), "{}", output_text(&output));
    let events = parse_json_lines(&output);
    let code = events.last().unwrap()["reason"]["code"].as_str().unwrap().to_owned();
    if code != "out_of_memory" {
        assert_eq!(code, "agent_crashed", "{events:#?}");
        report_skipped("out_of_memory for an ordinary user", "no cgroup is writable for them");
    }
    let processes = user.uid.map(host_state::list_user_processes).unwrap_or_default();
    assert!(processes.iter().all(|process| process.ends_in_time()), "{processes:?}");
}

/// Doctor names the missing limits, and the demo of the README works.
#[test]
fn an_id_range_gives_worker_and_agent_of_an_ordinary_user_separate_ids() {
    if let Some(why) = unprivileged_user::missing_requirement(UID_WITH_RANGE, SubordinateIds::Range) {
        return report_skipped("an ordinary user with a range of ids", why);
    }
    let user = CliUser::unprivileged(UID_WITH_RANGE, SubordinateIds::Range);
    let doctor_text = output_text(&user.run_atoll(&["doctor"]));
    let limits = doctor_text
        .lines()
        .find(|line| line.contains("limit") && line.contains("memory"))
        .unwrap_or_else(|| panic!("no limits in {doctor_text}"));
    assert!(limits.contains("memory") && limits.contains("cpu") && limits.contains("disk"), "{limits}");
    assert!(!doctor_text.contains("use this user's own id"), "{doctor_text}");
    let events = check_whole_run(&user);
    let notices: Vec<&str> =
        event_data(&events, "sandbox.notice").iter().filter_map(|data| data["text"].as_str()).collect();
    assert!(
        !notices.iter().any(|text| text.contains("same user id")),
        "worker and agent must have two ids: {notices:?}"
    );
    check_worker_isolation(&user);
    check_demo(&user);
    assert_nothing_left(&user);
}

/// Runs the demo as `make run` does after the build.
fn check_demo(user: &CliUser) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let demo_dir = user.home_dir().join("demo");
    let copy = |from: &str| {
        let to = demo_dir.join(from);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        let done = Command::new("cp").arg("-r").arg(root.join(from)).arg(&to).status().unwrap();
        assert!(done.success());
    };
    copy("scripts/demo");
    copy("examples/greeting");
    std::fs::create_dir_all(demo_dir.join("target/debug")).unwrap();
    for name in ["atoll", "atoll-worker"] {
        unprivileged_user::install_program(&find_program(name), &demo_dir.join("target/debug").join(name));
    }
    let uid = user.uid.unwrap();
    chown_tree(&demo_dir.join("examples"), uid);
    for dir in ["", "scripts", "target", "target/debug"] {
        std::os::unix::fs::chown(demo_dir.join(dir), Some(uid), Some(uid)).unwrap();
    }
    let mut command = unprivileged_user::user_command(uid, user.ids, user.dir.path(), Path::new("bash"));
    command.arg(demo_dir.join("scripts/demo")).current_dir(&demo_dir).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = process::spawn_process(command).wait_with_output().unwrap();
    assert!(output.status.success(), "{}", output_text(&output));
    let repository = demo_dir.join("target/demo/greeting");
    let branches = run_git(&repository, &["branch", "--list", "--format=%(refname:short)", "atoll/*"]);
    assert_eq!(branches.lines().count(), 1, "{branches} {}", output_text(&output));
    let changed = run_git(&repository, &["diff", "--name-only", "main", branches.trim()]);
    assert_eq!(changed.lines().collect::<Vec<_>>(), ["README.md", "greeting.py", "test_greeting.py"]);
    let diff = run_git(&repository, &["diff", "main", branches.trim()]);
    assert!(diff.contains("+def say_goodbye(name: str) -> str:"), "{diff}");
}

#[test]
fn a_failed_task_sets_the_exit_code() {
    let user = CliUser::root();
    let output = user.run_atoll(&["run", "say a\nfail no luck", "--agent", "demo", "--provider", "local", "--json"]);
    assert_eq!(output.status.code(), Some(1), "{}", output_text(&output));
    let done = parse_json_lines(&output).pop().unwrap();
    assert_eq!(done["reason"]["code"], "agent_failed", "{done}");
    let empty = user.home_dir();
    let output = user.run_atoll(&["run", "say a", "--repo", empty.to_str().unwrap(), "--agent", "demo"]);
    assert_eq!(output.status.code(), Some(2), "{}", output_text(&output));
    assert!(output_text(&output).contains("git init"), "{}", output_text(&output));
    let output = user.run_atoll(&["run", "say a", "--repo", "https://example.org/x.git", "--agent", "demo"]);
    assert_eq!(output.status.code(), Some(2), "{}", output_text(&output));
}

#[test]
fn verify_passes_and_doctor_names_the_tier() {
    let user = CliUser::root();
    let verified = user.run_atoll(&["verify"]);
    assert_eq!(verified.status.code(), Some(0), "{}", output_text(&verified));
    let verified_text = output_text(&verified);
    assert!(
        verified_text.lines().filter(|line| line.contains('✓') || line.contains("ok")).count() > 3,
        "one line per promise: {verified_text}"
    );
    let doctor = user.run_atoll(&["doctor"]);
    let doctor_text = output_text(&doctor);
    assert!(doctor_text.contains("strong") || doctor_text.contains("standard"), "{doctor_text}");
    assert_nothing_left(&user);
}
