//! Opening a repository and asking it something.

use crate::world::{World, awkward, commit, git, state, write};
use atoll_forge::{Error, Repository, is_name};
use std::fs;
use std::os::unix::fs::symlink;

#[test]
fn a_repository_is_found_from_anywhere_in_it() {
    let world = World::new();
    let path = world.repository("own");
    let commit = git(&path, ["rev-parse", "HEAD"]);
    git(&path, ["worktree", "add", "-q", "-b", "side", "../linked"]);
    git(&path, ["clone", "-q", "--bare", ".", "../bare.git"]);
    symlink(&path, world.path("symlink")).unwrap();
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
        let repository = Repository::open(&world.path(name)).unwrap();
        let head = repository.head().unwrap();
        assert_eq!((head.commit.as_str(), head.branch.as_deref()), (commit.as_str(), Some(branch)), "{name}");
        assert_eq!(repository.uncommitted().unwrap(), 0, "{name}");
        assert_eq!(repository.work_tree().is_none(), name.starts_with("bare"), "{name}");
    }
}

#[test]
fn a_path_with_odd_letters_is_a_path_like_any_other() {
    let world = World::new();
    for name in ["with space", "two\nlines", "-dash", "größe", "a:b", "quote\"\\"] {
        let path = world.repository(name);
        let repository = Repository::open(&path).unwrap();
        assert_eq!(repository.head().unwrap().branch.as_deref(), Some("main"), "{name:?}");
        assert_eq!(repository.git_dir(), path.canonicalize().unwrap().join(".git"), "{name:?}");
    }
}

#[test]
fn what_cannot_be_opened_says_why_and_what_to_do() {
    let world = World::new();
    let refusal = |name: &str| {
        let error = Repository::open(&world.path(name)).unwrap_err();
        (error.code(), error.to_string())
    };
    assert_eq!(refusal("missing").0, "source_not_found");
    write(&world.path(""), "file", "x");
    assert_eq!(refusal("file").0, "source_not_a_directory");
    assert_eq!(refusal("file/deeper").0, "source_not_a_directory");

    fs::create_dir_all(world.path("plain/.git")).unwrap();
    let (code, words) = refusal("plain");
    assert_eq!(code, "not_a_repository");
    assert!(words.contains("git init"), "{words}");

    fs::create_dir_all(world.path("empty")).unwrap();
    git(&world.path("empty"), ["init", "-q"]);
    let (code, words) = refusal("empty");
    assert_eq!(code, "no_commits");
    assert!(words.contains("git commit"), "{words}");

    write(&world.path("pointer"), ".git", "gitdir: /nowhere\n");
    assert_eq!(refusal("pointer").0, "not_a_repository");

    let broken = world.repository("broken");
    write(&broken, ".git/config", "[core\n");
    let (code, words) = refusal("broken");
    assert_eq!(code, "not_a_repository");
    assert!(words.contains("bad config"), "{words}");
}

#[test]
fn head_may_be_a_commit_or_a_branch_without_one() {
    let world = World::new();
    let path = world.repository("own");
    let first = git(&path, ["rev-parse", "HEAD~1"]);
    git(&path, ["checkout", "-q", "--detach", "HEAD~1"]);
    let head = Repository::open(&path).unwrap().head().unwrap();
    assert_eq!((head.commit, head.branch), (first.clone(), None));

    git(&path, ["symbolic-ref", "HEAD", "refs/heads/unborn"]);
    let repository = Repository::open(&path).unwrap();
    assert!(matches!(repository.head(), Err(Error::HeadUnborn { branch, .. }) if branch == "unborn"));
    assert_eq!(repository.resolve("main~0").unwrap_err().code(), "base_refused");
    assert_eq!(repository.resolve("main").unwrap(), git(&path, ["rev-parse", "main"]));
}

#[test]
fn a_base_is_a_branch_a_tag_or_a_commit() {
    let world = World::new();
    let path = world.repository("own");
    let (first, second) = (git(&path, ["rev-parse", "HEAD~1"]), git(&path, ["rev-parse", "HEAD"]));
    git(&path, ["branch", "both", "HEAD~1"]);
    git(&path, ["tag", "both", "HEAD"]);
    git(&path, ["tag", "-m", "x", "v1.0", "HEAD~1"]);
    git(&path, ["update-ref", "refs/remotes/origin/topic", "HEAD~1"]);
    git(&path, ["tag", "tree", "HEAD^{tree}"]);
    let repository = Repository::open(&path).unwrap();
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
        assert_eq!(repository.resolve(base).unwrap(), **commit, "{base}");
    }
    for base in ["nothing", "tree", "0123456789abcdef0123456789abcdef01234567", "dead", "ma"] {
        assert_eq!(repository.resolve(base).unwrap_err().code(), "base_missing", "{base}");
    }
    let long = "x".repeat(500);
    for base in
        ["", "-h", "--all", "main..both", "HEAD~1", "main^", ":README.md", "@{-1}", "a b", "a\nb", "@", "a\0b", &long]
    {
        assert!(!is_name(base));
        assert_eq!(repository.resolve(base).unwrap_err().code(), "base_refused", "{base:?}");
    }
}

#[test]
fn uncommitted_changes_are_counted_and_nothing_is_written() {
    let world = World::new();
    let path = world.repository("own");
    awkward(&path);
    write(&path, ".gitignore", "ignored\n");
    write(&path, "gone", "x");
    write(&path, "staged", "x");
    commit(&path, "awkward");
    let repository = Repository::open(&path).unwrap();
    assert_eq!(repository.uncommitted().unwrap(), 0);

    write(&path, "ignored", "x");
    write(&path, "new/a", "x");
    write(&path, "new/b\n", "x");
    write(&path, "with space", "changed\n");
    fs::remove_file(path.join("gone")).unwrap();
    write(&path, "staged", "changed");
    git(&path, ["add", "staged"]);
    // Touched and not changed: git would note this in the index, if it were let.
    write(&path, "README.md", "first\nsecond\n");
    let before = state(&path, None);
    assert_eq!(repository.uncommitted().unwrap(), 5);
    assert_eq!(state(&path, None), before);
}

#[test]
fn a_repository_named_by_sha256_is_a_repository() {
    let world = World::new();
    let path = world.repository_with("own", &["--object-format=sha256"]);
    let repository = Repository::open(&path).unwrap();
    assert_eq!(repository.head().unwrap().commit.len(), 64);
    assert_eq!(repository.resolve("main").unwrap(), git(&path, ["rev-parse", "main"]));
}

#[test]
fn a_bare_repository_with_worktrees_beside_it_is_bare_only_at_its_heart() {
    let world = World::new();
    let path = world.repository("own");
    git(&path, ["clone", "-q", "--bare", ".", "../project/.git"]);
    git(&world.path("project"), ["worktree", "add", "-q", "-b", "side", "side"]);
    let heart = Repository::open(&world.path("project")).unwrap();
    assert_eq!((heart.work_tree(), heart.uncommitted().unwrap()), (None, 0));
    let side = Repository::open(&world.path("project/side")).unwrap();
    write(&world.path("project/side"), "new", "x");
    assert_eq!(side.uncommitted().unwrap(), 1);
}
