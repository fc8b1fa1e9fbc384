//! Updates of a branch without a worktree.

use crate::fixture::{TestRepositories, commit_all, git, write_file};
use atoll_forge::{Author, BranchUpdate, HostRepository, UpdateStrategy};
use std::path::Path;

const REPLAY: UpdateStrategy<'_> = UpdateStrategy::Replay { without: None };

/// A repository with a branch `work` and a newer commit on `main`, which both change the given files.
fn diverge(path: &Path, work: &[(&str, &str)], main: &[(&str, &str)]) -> (String, String) {
    git(path, ["checkout", "-q", "-b", "work"]);
    for (file, text) in work {
        write_file(path, file, text);
        commit_all(path, &format!("work on {file}"));
    }
    let ours = git(path, ["rev-parse", "HEAD"]);
    git(path, ["checkout", "-q", "main"]);
    for (file, text) in main {
        write_file(path, file, text);
    }
    commit_all(path, "newer");
    (ours.trim().to_owned(), git(path, ["rev-parse", "HEAD"]).trim().to_owned())
}

fn updated(update: BranchUpdate) -> String {
    match update {
        BranchUpdate::Updated { commit } => commit,
        other => panic!("{other:?}"),
    }
}

fn show(path: &Path, arguments: &[&str]) -> String {
    git(path, arguments.iter().copied()).trim().to_owned()
}

#[test]
fn a_branch_gets_the_commits_of_its_base() {
    let root = TestRepositories::new();
    let path = root.create_repository("a");
    let (ours, main) = diverge(&path, &[("a.txt", "a\n"), ("b.txt", "b\n")], &[("c.txt", "c\n")]);
    let repository = HostRepository::open(&path).unwrap();
    let author = Author::default();
    assert!(repository.merges_cleanly(&ours, &main).unwrap());
    let merged = updated(repository.update_commit(&ours, &main, UpdateStrategy::Merge, &author, "Merge").unwrap());
    assert_eq!(show(&path, &["log", "-1", "--format=%P", &merged]), format!("{ours} {main}"));
    let replayed = updated(repository.update_commit(&ours, &main, REPLAY, &author, "Merge").unwrap());
    assert_eq!(show(&path, &["log", "--format=%s", &format!("{main}..{replayed}")]), "work on b.txt\nwork on a.txt");
    assert_eq!(
        show(&path, &["log", "-1", "--format=%an %ad", &replayed]),
        show(&path, &["log", "-1", "--format=%an %ad", &ours])
    );
    assert_eq!(show(&path, &["diff", "--stat", &merged, &replayed]), "", "both have the same files");
    let again = repository.update_commit(&replayed, &main, REPLAY, &author, "Merge").unwrap();
    assert_eq!(again, BranchUpdate::UpToDate);
    // Nothing but the branch moves, and only from the expected commit.
    assert!(!repository.move_branch("work", &main, &replayed).unwrap());
    assert!(repository.move_branch("work", &ours, &replayed).unwrap());
    assert!(repository.move_branch("work", &ours, &replayed).unwrap(), "a repeated move finds its commit");
    assert_eq!(repository.branch_commit("work").unwrap().unwrap(), replayed);
    assert_eq!(show(&path, &["status", "--porcelain"]), "");
}

#[test]
fn commits_of_a_merged_branch_are_left_out() {
    let root = TestRepositories::new();
    let path = root.create_repository("a");
    let (first, _) = diverge(&path, &[("a.txt", "one\n")], &[("c.txt", "c\n")]);
    git(&path, ["checkout", "-q", "-b", "next", &first]);
    write_file(&path, "a.txt", "two\n");
    commit_all(&path, "change a.txt again");
    let next = show(&path, &["rev-parse", "HEAD"]);
    // The first branch was squashed into main.
    git(&path, ["checkout", "-q", "main"]);
    write_file(&path, "a.txt", "one\n");
    commit_all(&path, "squashed");
    let main = show(&path, &["rev-parse", "HEAD"]);
    let repository = HostRepository::open(&path).unwrap();
    let strategy = UpdateStrategy::Replay { without: Some(&first) };
    let commit = updated(repository.update_commit(&next, &main, strategy, &Author::default(), "Merge").unwrap());
    assert_eq!(show(&path, &["log", "--format=%s", &format!("{main}..{commit}")]), "change a.txt again");
    assert_eq!(show(&path, &["show", &format!("{commit}:a.txt")]), "two");
}

#[test]
fn a_conflict_is_a_commit_with_markers() {
    let root = TestRepositories::new();
    let path = root.create_repository("a");
    let (ours, main) = diverge(&path, &[("README.md", "first\nmine\n")], &[("README.md", "first\ntheirs\n")]);
    let repository = HostRepository::open(&path).unwrap();
    assert!(!repository.merges_cleanly(&ours, &main).unwrap());
    for strategy in [UpdateStrategy::Merge, REPLAY] {
        let update = repository.update_commit(&ours, &main, strategy, &Author::default(), "Merge").unwrap();
        let BranchUpdate::Conflict(conflict) = update else { panic!("{update:?}") };
        assert_eq!(conflict.paths, ["README.md"]);
        let excerpt = repository.excerpt_conflicts(&conflict.commit, &conflict.paths).unwrap();
        assert!(excerpt.starts_with("README.md, line 2:\nfirst\n<<<<<<< "), "{excerpt}");
        assert!(excerpt.contains("mine\n=======\ntheirs\n>>>>>>> "), "{excerpt}");
        assert_eq!(repository.list_unresolved(&conflict.commit, &conflict.paths).unwrap(), ["README.md"]);
        assert_eq!(repository.list_unresolved(&ours, &conflict.paths).unwrap(), [] as [&str; 0]);
    }
    assert_eq!(repository.branch_commit("work").unwrap().unwrap(), ours, "no ref names the conflict");
}

/// Attributes and configuration of a hostile repository start no program.
#[test]
fn a_merge_runs_no_program_of_the_repository() {
    let root = TestRepositories::new();
    let path = root.create_repository("a");
    let attributes = ("sub/.gitattributes", "* merge=evil filter=evil diff=evil\n");
    let (ours, main) = diverge(&path, &[attributes, ("sub/x", "mine\n")], &[attributes, ("sub/x", "theirs\n")]);
    let proof = root.path("ran");
    let program = format!("touch {}", proof.display());
    // A mirror has no such configuration; even so, git must not need it.
    for key in ["filter.evil.smudge", "filter.evil.clean", "diff.evil.textconv", "diff.evil.command"] {
        git(&path, ["config", key, &program]);
    }
    let repository = HostRepository::open(&path).unwrap();
    for strategy in [UpdateStrategy::Merge, REPLAY] {
        let update = repository.update_commit(&ours, &main, strategy, &Author::default(), "Merge").unwrap();
        assert!(matches!(update, BranchUpdate::Conflict(_)), "{update:?}");
    }
    assert!(!proof.exists());
}
