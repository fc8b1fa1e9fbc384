//! Tests of opening and querying a repository.

use crate::fixture::{TestRepositories, commit_all, git, repository_state, write_awkward_files, write_file};
use atoll_forge::{Error, HostRepository, is_valid_ref_name};
use std::fs;
use std::os::unix::fs::symlink;

#[test]
fn opens_a_repository_from_any_directory_in_it() {
    let repositories = TestRepositories::new();
    let path = repositories.create_repository("own");
    let commit = git(&path, ["rev-parse", "HEAD"]);
    git(&path, ["worktree", "add", "-q", "-b", "side", "../linked"]);
    git(&path, ["clone", "-q", "--bare", ".", "../bare.git"]);
    symlink(&path, repositories.path("symlink")).unwrap();
    for (name, branch) in [
        ("own", "main"),
        ("own/src", "main"),
        ("own/.git", "main"),
        ("own/.git/refs", "main"),
        ("linked", "side"),
        ("linked/src", "side"),
        ("bare.git", "main"),
        ("bare.git/refs/heads", "main"),
        ("symlink/src", "main"),
    ] {
        let repository = HostRepository::open(&repositories.path(name)).unwrap();
        let head = repository.head().unwrap();
        assert_eq!((head.commit.as_str(), head.branch.as_deref()), (commit.as_str(), Some(branch)), "{name}");
        assert_eq!(repository.count_uncommitted_files().unwrap(), 0, "{name}");
        assert_eq!(repository.work_tree().is_none(), name.starts_with("bare"), "{name}");
    }
}

#[test]
fn opens_paths_with_special_characters() {
    let repositories = TestRepositories::new();
    for name in ["with space", "two\nlines", "-dash", "größe", "a:b", "quote\"\\"] {
        let path = repositories.create_repository(name);
        let repository = HostRepository::open(&path).unwrap();
        assert_eq!(repository.head().unwrap().branch.as_deref(), Some("main"), "{name:?}");
        assert_eq!(repository.git_dir(), path.canonicalize().unwrap().join(".git"), "{name:?}");
    }
}

#[test]
fn open_errors_have_a_reason_and_a_remedy() {
    let repositories = TestRepositories::new();
    let refusal = |name: &str| {
        let error = HostRepository::open(&repositories.path(name)).unwrap_err();
        (error.code(), error.to_string())
    };
    assert_eq!(refusal("missing").0, "source_not_found");
    write_file(&repositories.path(""), "file", "x");
    assert_eq!(refusal("file").0, "source_not_a_directory");
    assert_eq!(refusal("file/deeper").0, "source_not_a_directory");

    fs::create_dir_all(repositories.path("plain/.git")).unwrap();
    let (code, message) = refusal("plain");
    assert_eq!(code, "not_a_repository");
    assert!(message.contains("git init"), "{message}");

    fs::create_dir_all(repositories.path("empty")).unwrap();
    git(&repositories.path("empty"), ["init", "-q"]);
    let (code, message) = refusal("empty");
    assert_eq!(code, "no_commits");
    assert!(message.contains("git commit"), "{message}");

    write_file(&repositories.path("pointer"), ".git", "gitdir: /nowhere\n");
    assert_eq!(refusal("pointer").0, "not_a_repository");

    let broken = repositories.create_repository("broken");
    write_file(&broken, ".git/config", "[core\n");
    let (code, message) = refusal("broken");
    assert_eq!(code, "not_a_repository");
    assert!(message.contains("bad config"), "{message}");
}

#[test]
fn head_may_be_detached_or_unborn() {
    let repositories = TestRepositories::new();
    let path = repositories.create_repository("own");
    let first = git(&path, ["rev-parse", "HEAD~1"]);
    git(&path, ["checkout", "-q", "--detach", "HEAD~1"]);
    let head = HostRepository::open(&path).unwrap().head().unwrap();
    assert_eq!((head.commit, head.branch), (first.clone(), None));

    git(&path, ["symbolic-ref", "HEAD", "refs/heads/unborn"]);
    let repository = HostRepository::open(&path).unwrap();
    assert!(matches!(repository.head(), Err(Error::HeadUnborn { branch, .. }) if branch == "unborn"));
    assert_eq!(repository.resolve_base("main~0").unwrap_err().code(), "base_refused");
    assert_eq!(repository.resolve_base("main").unwrap(), git(&path, ["rev-parse", "main"]));
}

#[test]
fn resolves_branches_tags_and_commits() {
    let repositories = TestRepositories::new();
    let path = repositories.create_repository("own");
    let (first, second) = (git(&path, ["rev-parse", "HEAD~1"]), git(&path, ["rev-parse", "HEAD"]));
    git(&path, ["branch", "both", "HEAD~1"]);
    git(&path, ["tag", "both", "HEAD"]);
    git(&path, ["tag", "-m", "x", "v1.0", "HEAD~1"]);
    git(&path, ["update-ref", "refs/remotes/origin/topic", "HEAD~1"]);
    git(&path, ["tag", "tree", "HEAD^{tree}"]);
    let repository = HostRepository::open(&path).unwrap();
    for (base, commit) in [
        ("main", &second),
        ("HEAD", &second),
        ("both", &first),
        ("v1.0", &first),
        ("origin/topic", &first),
        ("refs/tags/both", &second),
        (first.as_str(), &first),
        (&first[..8], &first),
        (&first.to_uppercase(), &first),
    ] {
        assert_eq!(repository.resolve_base(base).unwrap(), **commit, "{base}");
    }
    for base in ["nothing", "tree", "0123456789abcdef0123456789abcdef01234567", "dead", "ma"] {
        assert_eq!(repository.resolve_base(base).unwrap_err().code(), "base_missing", "{base}");
    }
    let long = "x".repeat(500);
    for base in
        ["", "-h", "--all", "main..both", "HEAD~1", "main^", ":README.md", "@{-1}", "a b", "a\nb", "@", "a\0b", &long]
    {
        assert!(!is_valid_ref_name(base));
        assert_eq!(repository.resolve_base(base).unwrap_err().code(), "base_refused", "{base:?}");
    }
}

#[test]
fn counts_uncommitted_files_without_writing() {
    let repositories = TestRepositories::new();
    let path = repositories.create_repository("own");
    write_awkward_files(&path);
    write_file(&path, ".gitignore", "ignored\n");
    write_file(&path, "gone", "x");
    write_file(&path, "staged", "x");
    commit_all(&path, "awkward");
    let repository = HostRepository::open(&path).unwrap();
    assert_eq!(repository.count_uncommitted_files().unwrap(), 0);

    write_file(&path, "ignored", "x");
    write_file(&path, "new/a", "x");
    write_file(&path, "new/b\n", "x");
    write_file(&path, "with space", "changed\n");
    fs::remove_file(path.join("gone")).unwrap();
    write_file(&path, "staged", "changed");
    git(&path, ["add", "staged"]);
    // Touched but unchanged: git would update the index if it were allowed to.
    write_file(&path, "README.md", "first\nsecond\n");
    let before = repository_state(&path, None);
    assert_eq!(repository.count_uncommitted_files().unwrap(), 5);
    assert_eq!(repository_state(&path, None), before);
}

#[test]
fn opens_a_sha256_repository() {
    let repositories = TestRepositories::new();
    let path = repositories.create_repository_with("own", &["--object-format=sha256"]);
    let repository = HostRepository::open(&path).unwrap();
    assert_eq!(repository.head().unwrap().commit.len(), 64);
    assert_eq!(repository.resolve_base("main").unwrap(), git(&path, ["rev-parse", "main"]));
}

#[test]
fn a_bare_repository_may_have_linked_worktrees() {
    let repositories = TestRepositories::new();
    let path = repositories.create_repository("own");
    git(&path, ["clone", "-q", "--bare", ".", "../project/.git"]);
    git(&repositories.path("project"), ["worktree", "add", "-q", "-b", "side", "side"]);
    let bare = HostRepository::open(&repositories.path("project")).unwrap();
    assert_eq!((bare.work_tree(), bare.count_uncommitted_files().unwrap()), (None, 0));
    let side = HostRepository::open(&repositories.path("project/side")).unwrap();
    write_file(&repositories.path("project/side"), "new", "x");
    assert_eq!(side.count_uncommitted_files().unwrap(), 1);
}
