//! Mirrors and pushes, against real git servers.

use crate::fixture::{TestRepositories, commit_all, git, try_git, write_file};
use crate::git_server::{Answer, GitServer};
use crate::small_disk::SmallDisk;
use crate::ssh_server::SshServer;
use atoll_forge::remote::{
    Lease, Mirror, MirrorFetch, MirrorOptions, PushOutcome, PushRefusal, RemoteCredential, RemoteError, RemoteFailure,
    RemoteUrl, delete_branch, push_commit,
};
use atoll_forge::{ImportOutcome, ImportRequest};
use std::path::Path;
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);
const NOW: Duration = Duration::ZERO;
const TOKEN: &str = "tok3n-of-the-test";

fn url(text: &str) -> RemoteUrl {
    RemoteUrl::parse(text).unwrap()
}

fn token(text: &str) -> RemoteCredential {
    RemoteCredential::token(Some("ann".to_owned()), text.to_owned().into())
}

fn open(root: &Path, text: &str) -> Mirror {
    let options = MirrorOptions { timeout: Duration::from_secs(60), ..MirrorOptions::default() };
    Mirror::open(root, &url(text), options)
}

fn failure(result: Result<MirrorFetch, RemoteError>) -> RemoteFailure {
    match result {
        Err(RemoteError::Connection { failure, .. }) => failure,
        other => panic!("{other:?}"),
    }
}

/// Every file below a directory, as text.
fn all_text(directory: &Path) -> String {
    let mut text = String::new();
    let mut pending = vec![directory.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                pending.push(path);
            } else {
                text.push_str(&String::from_utf8_lossy(&std::fs::read(&path).unwrap_or_default()));
            }
        }
    }
    text
}

#[test]
fn a_mirror_fetches_resolves_and_stays_fresh() {
    let (server, root) = (GitServer::start(), TestRepositories::new());
    server.create_repository("a");
    server.commit("a", "feature/x", "x", "x\n");
    git(&server.path("a"), ["tag", "v1", "main"]);
    let mirrors = root.path("mirrors");
    let mirror = open(&mirrors, &server.url("a"));
    assert_eq!(mirror.fetch(&RemoteCredential::None, HOUR).unwrap(), MirrorFetch::Fetched);
    let requests = server.requests().len();
    assert_eq!(mirror.fetch(&RemoteCredential::None, HOUR).unwrap(), MirrorFetch::Fresh);
    assert_eq!(server.requests().len(), requests, "a fresh mirror needs no network");
    let main = server.branch("a", "main").unwrap();
    assert_eq!(mirror.resolve(None).unwrap(), main);
    assert_eq!(mirror.resolve(Some("v1")).unwrap(), main);
    assert_eq!(mirror.resolve(Some(&main)).unwrap(), main);
    assert_eq!(mirror.resolve(Some("feature/x")).unwrap(), server.branch("a", "feature/x").unwrap());
    assert_eq!(mirror.default_branch().unwrap().as_deref(), Some("main"));
    assert!(matches!(mirror.resolve(Some("gone")), Err(RemoteError::BranchMissing { .. })));
    assert!(mirror.resolve(Some("-x")).is_err());

    let newer = server.commit("a", "main", "new", "new\n");
    git(&server.path("a"), ["branch", "-D", "feature/x"]);
    assert_eq!(mirror.fetch(&RemoteCredential::None, NOW).unwrap(), MirrorFetch::Fetched);
    assert_eq!(mirror.resolve(None).unwrap(), newer);
    assert!(mirror.resolve(Some("feature/x")).is_err(), "a deleted branch is pruned");
}

#[test]
fn pins_and_results_survive_a_fetch_and_gc() {
    let (server, root) = (GitServer::start(), TestRepositories::new());
    server.create_repository("a");
    let pinned = server.commit("a", "topic", "x", "x\n");
    let mirror = open(&root.path("mirrors"), &server.url("a"));
    mirror.fetch(&RemoteCredential::None, NOW).unwrap();
    mirror.pin("sbx_1", &pinned).unwrap();
    git(&server.path("a"), ["branch", "-D", "topic"]);
    git(&server.path("a"), ["gc", "-q", "--prune=now"]);
    mirror.fetch(&RemoteCredential::None, NOW).unwrap();
    let exists = || try_git(mirror.directory(), ["cat-file", "-e", &pinned]).status.success();
    for command in [["gc", "--prune=now"], ["prune", "--expire=now"], ["repack", "-ad"]] {
        drop(try_git(mirror.directory(), command));
        assert!(exists(), "{command:?}");
    }
    assert!(mirror.resolve(Some(&pinned)).is_err(), "a commit that the remote no longer shows is no base");
    mirror.unpin("sbx_1").unwrap();
    mirror.unpin("sbx_1").unwrap();
    drop(try_git(mirror.directory(), ["gc", "--prune=now"]));
    assert!(exists(), "a mirror loses no objects");
}

#[test]
fn a_result_lands_in_the_mirror_and_is_pushed_once() {
    let (server, root) = (GitServer::start(), TestRepositories::new());
    server.create_repository("a");
    server.commit("a", "taken", "x", "x\n");
    server.require_login("ann", TOKEN);
    let (address, credential) = (url(&server.url("a")), token(TOKEN));
    let mirror = open(&root.path("mirrors"), &server.url("a"));
    mirror.fetch(&credential, NOW).unwrap();
    let base = mirror.resolve(None).unwrap();
    let repository = mirror.repository().unwrap();
    let bundle = root.path("source.bundle");
    repository.write_bundle(&base, std::fs::File::create(&bundle).unwrap()).unwrap();
    let inside = root.create_sandbox_clone(&bundle, "sha1");
    write_file(&inside, "work", "done\n");
    let work = commit_all(&inside, "work");
    let result = root.bundle_result(&inside, &base);
    let scratch = root.scratch_dir();
    let request =
        ImportRequest { bundle: &result, base: &base, start: None, branch: "taken", is_own: false, scratch: &scratch };
    let ImportOutcome::Branch(imported) = repository.import_result_unless_protected(request, &|_| false).unwrap()
    else {
        panic!("no branch");
    };
    assert_eq!((imported.branch.as_str(), &imported.commit), ("taken-2", &work), "the remote has that branch");
    mirror.fetch(&credential, NOW).unwrap();
    assert!(repository.list_taken_branches().unwrap().is_superset(&["taken".into(), "taken-2".into()].into()));
    assert!(mirror.resolve(Some("taken-2")).is_err(), "a result is no branch of the remote before its push");

    let push =
        |commit: &str, branch: &str, lease: &Lease| push_commit(&mirror, &address, &credential, commit, branch, lease);
    assert_eq!(push(&work, "taken-2", &Lease::Create).unwrap(), PushOutcome::Created);
    assert_eq!(push(&work, "taken-2", &Lease::Create).unwrap(), PushOutcome::UpToDate);
    assert_eq!(server.branch("a", "taken-2").as_deref(), Some(work.as_str()));
    assert_eq!(mirror.resolve(Some("taken-2")).unwrap(), work);
    let refused = |result: Result<PushOutcome, RemoteError>| match result {
        Err(RemoteError::PushRefused { refusal, .. }) => refusal,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(push(&work, "taken", &Lease::Create)), PushRefusal::BranchMoved);
    assert_eq!(refused(push(&work, "main", &Lease::Expect(work.clone()))), PushRefusal::BranchMoved);
    assert_eq!(push(&work, "main", &Lease::Expect(base.clone())).unwrap(), PushOutcome::Updated);
    assert_eq!(push(&work, "main", &Lease::Expect(base.clone())).unwrap(), PushOutcome::UpToDate);
    assert!(push(&work, "-x", &Lease::Create).is_err() && push("HEAD", "y", &Lease::Create).is_err());

    server.write_hook("a", "pre-receive", "#!/bin/sh\necho 'no such words here' >&2\nexit 1\n");
    let declined = refused(push(&work, "other", &Lease::Create));
    assert!(matches!(&declined, PushRefusal::Declined { detail } if detail.contains("no such words")), "{declined:?}");
    std::fs::remove_file(server.path("a").join("hooks/pre-receive")).unwrap();

    let delete = |expected: &str| delete_branch(&mirror, &address, &credential, "taken-2", expected);
    assert_eq!(refused(delete(&base)), PushRefusal::BranchMoved);
    assert_eq!(delete(&work).unwrap(), PushOutcome::Deleted);
    assert_eq!(delete(&work).unwrap(), PushOutcome::UpToDate);
    assert_eq!(server.branch("a", "taken-2"), None);
    assert!(!all_text(&root.path("mirrors")).contains(TOKEN), "the token is in a file");
}

#[test]
fn every_failure_has_its_class_and_leaves_no_mirror() {
    let (server, root) = (GitServer::start(), TestRepositories::new());
    server.create_repository("a");
    server.create_empty("empty");
    let mirrors = root.path("mirrors");
    let fetch = |name: &str, credential: &RemoteCredential| open(&mirrors, &server.url(name)).fetch(credential, NOW);
    let answer = |answer: Answer| {
        server.answer_with(Some(answer));
        let found = failure(fetch("a", &token(TOKEN)));
        server.answer_with(None);
        found
    };
    assert_eq!(failure(fetch("missing", &RemoteCredential::None)), RemoteFailure::NotFound);
    assert_eq!(failure(fetch("empty", &RemoteCredential::None)), RemoteFailure::Empty);
    assert_eq!(answer(Answer::status(403)), RemoteFailure::Forbidden);
    assert_eq!(answer(Answer::status(404)), RemoteFailure::NotFound);
    let before = server.requests().len();
    assert_eq!(answer(Answer::status(429)), RemoteFailure::RateLimited);
    assert_eq!(server.requests().len() - before, 2, "one more attempt");
    assert!(matches!(answer(Answer::status(503)), RemoteFailure::ServerError { .. }));
    let moved = Answer::Fixed { status: 301, location: Some(server.url("b")), body: String::new() };
    assert_eq!(answer(moved), RemoteFailure::Redirected);
    let page = Answer::Fixed { status: 200, location: None, body: "<html>Sign in</html>".to_owned() };
    assert_eq!(answer(page), RemoteFailure::Empty);

    server.require_login("ann", TOKEN);
    assert_eq!(failure(fetch("a", &RemoteCredential::None)), RemoteFailure::CredentialsNeeded);
    let wrong = fetch("a", &token("wr0ng-token"));
    assert!(!format!("{wrong:?}").contains("wr0ng"));
    assert_eq!(failure(wrong), RemoteFailure::CredentialsRefused);

    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let refused = open(&mirrors, &format!("http://{closed}/x")).fetch(&RemoteCredential::None, NOW);
    assert!(matches!(failure(refused), RemoteFailure::Network { .. }));
    let secure = server.url("a").replace("http://", "https://");
    let no_tls = open(&mirrors, &secure).fetch(&RemoteCredential::None, NOW);
    assert!(matches!(failure(no_tls), RemoteFailure::Tls { .. }));
    let entries = std::fs::read_dir(&mirrors).unwrap().flatten().map(|entry| entry.path());
    assert!({ entries }.all(|path| path.extension().is_some_and(|ending| ending == "lock")));
    assert_eq!(fetch("a", &token(TOKEN)).unwrap(), MirrorFetch::Fetched);
}

#[test]
fn a_stalled_transfer_ends_with_its_size_and_rate() {
    let (server, root) = (GitServer::start(), TestRepositories::new());
    server.create_repository("a");
    server.answer_with(Some(Answer::Silence));
    let options = MirrorOptions { timeout: Duration::from_millis(700), ..MirrorOptions::default() };
    let mirror = Mirror::open(&root.path("mirrors"), &url(&server.url("a")), options);
    let error = mirror.fetch(&RemoteCredential::None, NOW).unwrap_err();
    assert_eq!(error.code(), "remote_too_slow");
    assert!(error.to_string().contains("each second") && error.to_string().contains("git.clone_timeout"), "{error}");
}

#[test]
fn a_repository_that_is_too_large_is_refused() {
    let (server, root) = (GitServer::start(), TestRepositories::new());
    server.create_repository("a");
    let noise: String = (0..200_000_u64).map(|n| format!("{:x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect();
    server.commit("a", "main", "large", &noise);
    let options = MirrorOptions { max_bytes: 64 << 10, ..MirrorOptions::default() };
    let mirror = Mirror::open(&root.path("mirrors"), &url(&server.url("a")), options);
    let found = failure(mirror.fetch(&RemoteCredential::None, NOW));
    assert_eq!(found, RemoteFailure::TooLarge { bound: 64 << 10 });
}

#[test]
fn a_full_disk_is_named_and_leaves_no_mirror() {
    let Some(disk) = SmallDisk::mount("a_full_disk_is_named_and_leaves_no_mirror", 2) else { return };
    let server = GitServer::start();
    server.create_repository("a");
    let noise: Vec<u8> = (0..6 << 20).map(|_| rand::random::<u8>()).collect();
    server.commit("a", "main", "large", &String::from_utf8_lossy(&noise));
    let mirror = open(disk.path(), &server.url("a"));
    let error = mirror.fetch(&RemoteCredential::None, NOW).unwrap_err();
    assert_eq!(error.code(), "server_disk_full", "{error}");
    assert!(!mirror.directory().exists() && !mirror.directory().with_extension("new").exists());
}

#[test]
fn another_credential_does_not_profit_from_a_fresh_mirror() {
    let (server, root) = (GitServer::start(), TestRepositories::new());
    server.create_repository("a");
    server.require_login("ann", TOKEN);
    let mirror = open(&root.path("mirrors"), &server.url("a"));
    mirror.fetch(&token(TOKEN), HOUR).unwrap();
    assert_eq!(failure(mirror.fetch(&RemoteCredential::None, HOUR)), RemoteFailure::CredentialsNeeded);
    assert_eq!(failure(mirror.fetch(&token("other"), HOUR)), RemoteFailure::CredentialsRefused);
}

#[test]
fn concurrent_requests_fetch_a_new_repository_once() {
    let (server, root) = (GitServer::start(), TestRepositories::new());
    server.create_repository("a");
    let mirror = open(&root.path("mirrors"), &server.url("a"));
    let outcomes: Vec<MirrorFetch> = std::thread::scope(|scope| {
        let fetch = || mirror.fetch(&RemoteCredential::None, HOUR).unwrap();
        let threads: Vec<_> = (0..6).map(|_| scope.spawn(fetch)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == MirrorFetch::Fetched).count(), 1, "{outcomes:?}");
}

#[test]
fn a_depth_limits_the_history() {
    let (server, root) = (GitServer::start(), TestRepositories::new());
    server.create_repository("a");
    for number in 0..5 {
        server.commit("a", "main", "file", &format!("{number}\n"));
    }
    let options = MirrorOptions { depth: Some(2), ..MirrorOptions::default() };
    let mirror = Mirror::open(&root.path("mirrors"), &url(&server.url("a")), options);
    mirror.fetch(&RemoteCredential::None, NOW).unwrap();
    let main = mirror.resolve(None).unwrap();
    assert_eq!(git(mirror.directory(), ["rev-list", "--count", &main]), "2");
    let bundle = root.path("source.bundle");
    mirror.repository().unwrap().write_bundle(&main, std::fs::File::create(&bundle).unwrap()).unwrap();
    let inside = root.create_sandbox_clone(&bundle, "sha1");
    assert_eq!(git(&inside, ["rev-list", "--count", "HEAD"]), "2");
    server.commit("a", "main", "file", "more\n");
    mirror.fetch(&RemoteCredential::None, NOW).unwrap();
    assert_eq!(git(mirror.directory(), ["rev-list", "--count", &mirror.resolve(None).unwrap()]), "2");
}

#[test]
fn directories_and_other_object_formats_work() {
    let root = TestRepositories::new();
    let repository = root.create_repository_with("sha256", &["--object-format=sha256"]);
    let mirror = open(&root.path("mirrors"), &format!("file://{}", repository.display()));
    mirror.fetch(&RemoteCredential::None, NOW).unwrap();
    assert_eq!(mirror.resolve(None).unwrap(), git(&repository, ["rev-parse", "HEAD"]));
    let missing = open(&root.path("mirrors"), "file:///nowhere/at/all").fetch(&RemoteCredential::None, NOW);
    assert_eq!(failure(missing), RemoteFailure::NotFound);
}

#[test]
fn ssh_needs_the_key_and_the_host_key() {
    let Some(ssh) = SshServer::start() else { return };
    let (server, root) = (GitServer::start(), TestRepositories::new());
    let path = server.create_repository("a");
    let address = ssh.url(&path);
    let mirror = open(&root.path("mirrors"), &address);
    let key = |key, known_hosts| RemoteCredential::SshKey { key, known_hosts: Some(known_hosts) };
    let fetch = |credential: &RemoteCredential| mirror.fetch(credential, NOW);
    assert_eq!(failure(fetch(&key(ssh.key(), ssh.empty_known_hosts()))), RemoteFailure::HostKeyUnknown);
    assert_eq!(failure(fetch(&key(ssh.other_key(), ssh.known_hosts()))), RemoteFailure::SshKeyRefused);
    let credential = key(ssh.key(), ssh.known_hosts());
    assert_eq!(fetch(&credential).unwrap(), MirrorFetch::Fetched);
    let missing = open(&root.path("mirrors"), &ssh.url(Path::new("/nowhere.git"))).fetch(&credential, NOW);
    assert_eq!(failure(missing), RemoteFailure::NotFound);
    let main = mirror.resolve(None).unwrap();
    let pushed = push_commit(&mirror, &url(&address), &credential, &main, "copy", &Lease::Create);
    assert_eq!(pushed.unwrap(), PushOutcome::Created);
    assert_eq!(server.branch("a", "copy"), Some(main));
}

/// The processes of this user, with their arguments and environments.
fn process_texts() -> String {
    let mut text = String::new();
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        for file in ["cmdline", "environ"] {
            text.push_str(&String::from_utf8_lossy(&std::fs::read(process.path().join(file)).unwrap_or_default()));
        }
    }
    text
}

#[test]
fn a_token_is_in_no_argument_and_no_environment() {
    let (server, root) = (GitServer::start(), TestRepositories::new());
    server.create_repository("a");
    let secret = "arg-t0ken-that-no-process-shows";
    server.answer_with(Some(Answer::Silence));
    let options = MirrorOptions { timeout: Duration::from_secs(3), ..MirrorOptions::default() };
    let mirror = Mirror::open(&root.path("mirrors"), &url(&server.url("a")), options);
    std::thread::scope(|scope| {
        let fetch = scope.spawn(|| mirror.fetch(&token(secret), NOW));
        atoll_test_wait::wait_until("git connects", || !server.requests().is_empty());
        let seen = process_texts();
        assert!(seen.contains(&server.url("a")), "git runs");
        assert!(!seen.contains(secret));
        assert!(fetch.join().unwrap().is_err());
    });
}
