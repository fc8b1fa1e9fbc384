//! Tests of importing results.

use crate::fixture::{TestRepositories, commit_all, git, repository_state, write_awkward_files, write_file};
use atoll_forge::{
    ChangeKind, HostRepository, ImportNote, ImportOutcome, ImportRequest, ImportedResult, Submodule, SubmoduleSource,
};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// The user's repository, a sandbox's copy of it, and the commit both start from.
struct ImportScenario {
    repositories: TestRepositories,
    own: PathBuf,
    inside: PathBuf,
    base: String,
}

impl ImportScenario {
    fn new() -> Self {
        let repositories = TestRepositories::new();
        let own = repositories.create_repository("own");
        Self::with_repository(repositories, own, "sha1")
    }

    fn with_repository(repositories: TestRepositories, own: PathBuf, format: &str) -> Self {
        let base = git(&own, ["rev-parse", "HEAD"]);
        let source = repositories.path("source.bundle");
        HostRepository::open(&own).unwrap().write_bundle(&base, File::create(&source).unwrap()).unwrap();
        let inside = repositories.create_sandbox_clone(&source, format);
        Self { repositories, own, inside, base }
    }

    fn import_result(&self, branch: &str) -> ImportedResult {
        self.import(branch, false)
    }

    /// Imports a later result of the session that created the branch.
    fn import_own_result(&self, branch: &str) -> ImportedResult {
        self.import(branch, true)
    }

    fn import(&self, branch: &str, is_own: bool) -> ImportedResult {
        let bundle = &self.repositories.bundle_result(&self.inside, &self.base);
        let (base, scratch) = (self.base.as_str(), &self.repositories.scratch_dir());
        let request = ImportRequest { bundle, base, start: None, branch, is_own, scratch };
        let repository = HostRepository::open(&self.own).unwrap();
        match repository.import_result_unless_protected(request, &|_| false).unwrap() {
            ImportOutcome::Branch(imported) => imported,
            other @ (ImportOutcome::NoNewCommits | ImportOutcome::Protected { .. }) => {
                panic!("no branch was imported: {other:?}")
            }
        }
    }
}

#[test]
fn rejects_a_result_that_changes_protected_files() {
    let scenario = ImportScenario::new();
    fs::rename(scenario.inside.join("src/code.rs"), scenario.inside.join("moved.rs")).unwrap();
    write_file(&scenario.inside, "free", "x");
    commit_all(&scenario.inside, "one");
    let before = repository_state(&scenario.own, None);
    let bundle = scenario.repositories.bundle_result(&scenario.inside, &scenario.base);
    let repository = HostRepository::open(&scenario.own).unwrap();
    let (base, scratch) = (scenario.base.as_str(), scenario.repositories.scratch_dir());
    let request =
        ImportRequest { bundle: &bundle, base, start: None, branch: "atoll/work", is_own: false, scratch: &scratch };
    let import =
        |is_protected: &dyn Fn(&str) -> bool| repository.import_result_unless_protected(request, is_protected).unwrap();
    let refused = ImportOutcome::Protected { paths: vec!["src/code.rs".to_owned()] };
    assert_eq!(import(&|path| path.starts_with("src/")), refused, "the old path of a renamed file counts too");
    assert_eq!(repository_state(&scenario.own, None), before);
    assert!(matches!(import(&|path| path == "README.md"), ImportOutcome::Branch(_)));
}

fn branch_commit(own: &Path, branch: &str) -> String {
    git(own, ["rev-parse", &format!("refs/heads/{branch}")])
}

#[test]
fn a_result_becomes_a_branch_and_nothing_else_changes() {
    let scenario = ImportScenario::new();
    write_awkward_files(&scenario.inside);
    fs::rename(scenario.inside.join("src/code.rs"), scenario.inside.join("src/moved.rs")).unwrap();
    write_file(&scenario.inside, ".github/workflows/run.yml", "on: push\n");
    commit_all(&scenario.inside, "one");
    fs::remove_file(scenario.inside.join("README.md")).unwrap();
    let result = commit_all(&scenario.inside, "two");

    // The user has uncommitted work.
    write_file(&scenario.own, "README.md", "changed\n");
    write_file(&scenario.own, "staged", "x");
    git(&scenario.own, ["add", "staged"]);
    write_file(&scenario.own, "untracked", "x");
    let before = repository_state(&scenario.own, Some("atoll/work"));

    let imported = scenario.import_result("atoll/work");
    assert_eq!(repository_state(&scenario.own, Some("atoll/work")), before);
    assert_eq!(branch_commit(&scenario.own, "atoll/work"), result);
    assert_eq!((imported.branch.as_str(), imported.commit, imported.commits), ("atoll/work", result, 2));
    assert_eq!((imported.base, imported.notes), (scenario.base.clone(), vec![]));
    assert_eq!(imported.flagged, [".github/workflows/run.yml"]);
    let file = |path: &str| imported.files.iter().find(|file| file.path == path).unwrap().clone();
    assert_eq!(imported.files.len(), 14);
    assert_eq!((file("two\nlines").change, file("two\nlines").added), (ChangeKind::Added, 2));
    assert_eq!((file("README.md").change, file("README.md").removed), (ChangeKind::Deleted, 2));
    assert_eq!(file("src/moved.rs").old_path.as_deref(), Some("src/code.rs"));
    assert!(file("picture").binary);
    git(&scenario.own, ["fsck", "--strict"]);
    // The quarantine is removed.
    assert_eq!(fs::read_dir(scenario.repositories.scratch_dir()).unwrap().count(), 0);

    // A repeated import, as after a crash, finds the branch.
    assert_eq!(scenario.import_result("atoll/work").branch, "atoll/work");
    assert_eq!(repository_state(&scenario.own, Some("atoll/work")), before);
}

#[test]
fn imports_only_reachable_objects() {
    let scenario = ImportScenario::new();
    for number in 0..150 {
        write_file(&scenario.inside, format!("file{number}"), format!("{number}\n"));
    }
    commit_all(&scenario.inside, "many");
    let stray = crate::fixture::git_with_input(&scenario.inside, ["hash-object", "-w", "--stdin"], b"stray");
    let imported = scenario.import_result("atoll/work");
    assert_eq!((imported.files.len(), imported.commits), (150, 1));
    assert!(!crate::fixture::try_git(&scenario.own, ["cat-file", "-e", &stray]).status.success());
    let packs = fs::read_dir(scenario.own.join(".git/objects/pack")).unwrap();
    assert_eq!(
        packs.filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|end| end == "pack")).count(),
        1
    );
    git(&scenario.own, ["fsck", "--strict"]);
}

#[test]
fn existing_branch_names_get_a_suffix() {
    let scenario = ImportScenario::new();
    for (number, name) in ["atoll/work", "atoll/work-2", "atoll/work-3"].into_iter().enumerate() {
        write_file(&scenario.inside, "file", format!("{number}"));
        commit_all(&scenario.inside, "more");
        let imported = scenario.import_result("atoll/work");
        assert_eq!(imported.branch, name);
        let expected = if number == 0 { vec![] } else { vec![ImportNote::NameTaken { name: "atoll/work".to_owned() }] };
        assert_eq!(imported.notes, expected);
    }
    let imported = scenario.import_result("atoll/work/deeper");
    assert_eq!(imported.branch, "atoll-work-deeper");
    let by = "atoll/work".to_owned();
    assert_eq!(imported.notes, [ImportNote::NameBlocked { name: "atoll/work/deeper".to_owned(), by }]);
    assert_eq!(scenario.import_result("atoll").branch, "atoll-2");
}

#[test]
fn reports_a_branch_that_blocks_the_prefix() {
    let scenario = ImportScenario::new();
    git(&scenario.own, ["branch", "atoll"]);
    write_file(&scenario.inside, "file", "x");
    commit_all(&scenario.inside, "more");
    let imported = scenario.import_result("atoll/fix-it");
    assert_eq!(imported.branch, "atoll-fix-it");
    assert!(imported.notes[0].to_string().contains("both branches atoll/fix-it and atoll,"), "{}", imported.notes[0]);
    assert_eq!(scenario.import_result("atoll/fix-it").branch, "atoll-fix-it");
}

#[test]
fn a_worktree_on_a_branch_without_a_commit_keeps_its_head() {
    let scenario = ImportScenario::new();
    git(&scenario.own, ["worktree", "add", "-q", "--detach", "../linked"]);
    git(&scenario.repositories.path("linked"), ["symbolic-ref", "HEAD", "refs/heads/atoll/work"]);
    write_file(&scenario.inside, "file", "x");
    commit_all(&scenario.inside, "more");
    assert_eq!(scenario.import_result("atoll/work").branch, "atoll/work-2");
}

#[test]
fn skips_the_name_of_a_broken_ref() {
    let scenario = ImportScenario::new();
    write_file(&scenario.own, ".git/refs/heads/atoll/work", "nonsense\n");
    write_file(&scenario.inside, "file", "x");
    commit_all(&scenario.inside, "more");
    assert_eq!(scenario.import_result("atoll/work").branch, "atoll/work-2");
}

#[test]
fn imports_into_linked_bare_and_sha256_repositories() {
    for kind in ["linked", "bare.git", "sha256"] {
        let repositories = TestRepositories::new();
        let format = if kind == "sha256" { "sha256" } else { "sha1" };
        let own = repositories.create_repository_with("own", &["--object-format", format]);
        match kind {
            "linked" => drop(git(&own, ["worktree", "add", "-q", "--detach", "../linked"])),
            "bare.git" => drop(git(&own, ["clone", "-q", "--bare", ".", "../bare.git"])),
            _ => fs::rename(&own, repositories.path("sha256")).unwrap(),
        }
        let scenario = ImportScenario::with_repository(TestRepositories::new(), repositories.path(kind), format);
        write_file(&scenario.inside, "file", "x");
        let result = commit_all(&scenario.inside, "more");
        let before = repository_state(&scenario.own, Some("atoll/work"));
        assert_eq!(scenario.import_result("atoll/work").commit, result, "{kind}");
        assert_eq!(branch_commit(&scenario.own, "atoll/work"), result, "{kind}");
        assert_eq!(repository_state(&scenario.own, Some("atoll/work")), before, "{kind}");
    }
}

#[test]
fn imports_into_a_shallow_clone() {
    let repositories = TestRepositories::new();
    let whole = repositories.create_repository("whole");
    let url = format!("file://{}", whole.display());
    git(&whole, ["clone", "-q", "--depth", "1", &url, "../own"]);
    let own = repositories.path("own");
    let scenario = ImportScenario::with_repository(repositories, own, "sha1");
    write_file(&scenario.inside, "file", "x");
    let result = commit_all(&scenario.inside, "more");
    let imported = scenario.import_result("atoll/work");
    assert_eq!((imported.commit, imported.commits, imported.notes), (result, 1, vec![]));
    assert_eq!(git(&scenario.own, ["rev-list", "--count", "atoll/work"]), "2");
    git(&scenario.own, ["fsck", "--strict"]);
}

#[test]
fn imports_and_reports_a_result_that_does_not_descend_from_the_base() {
    let scenario = ImportScenario::new();
    git(&scenario.inside, ["reset", "-q", "--hard", "HEAD~1"]);
    write_file(&scenario.inside, "file", "x");
    let result = commit_all(&scenario.inside, "instead");
    let imported = scenario.import_result("atoll/work");
    assert_eq!((imported.commit, imported.commits), (result, 1));
    assert_eq!(imported.notes, [ImportNote::BaseNotAncestor]);

    git(&scenario.inside, ["checkout", "-q", "--orphan", "fresh"]);
    commit_all(&scenario.inside, "another beginning");
    let imported = scenario.import_result("atoll/fresh");
    assert_eq!((imported.commits, imported.notes), (1, vec![ImportNote::BaseNotAncestor]));
}

#[test]
fn a_result_without_commits_imports_nothing() {
    let scenario = ImportScenario::new();
    let before = repository_state(&scenario.own, None);
    let repository = HostRepository::open(&scenario.own).unwrap();
    let empty = scenario.repositories.path("empty.bundle");
    fs::write(&empty, "").unwrap();
    let import = |bundle: &Path| {
        repository.import_result(bundle, &scenario.base, "atoll/work", &scenario.repositories.scratch_dir()).unwrap()
    };
    assert_eq!(import(&empty), ImportOutcome::NoNewCommits);
    // Git creates no empty bundle, but a bundle may name a commit that already exists.
    git(&scenario.inside, ["update-ref", "refs/atoll/result", "HEAD"]);
    let old = scenario.repositories.path("old.bundle");
    git(&scenario.inside, ["bundle", "create", "-q", old.to_str().unwrap(), "refs/atoll/result"]);
    assert_eq!(import(&old), ImportOutcome::NoNewCommits);
    assert_eq!(repository_state(&scenario.own, None), before);
}

#[test]
fn later_results_fast_forward_the_sessions_own_branch() {
    let scenario = ImportScenario::new();
    write_file(&scenario.inside, "one", "x");
    let first = commit_all(&scenario.inside, "one");
    assert_eq!(scenario.import_result("atoll/work").previous, None);
    write_file(&scenario.inside, "two", "x");
    let second = commit_all(&scenario.inside, "two");
    let before = repository_state(&scenario.own, Some("atoll/work"));
    let imported = scenario.import_own_result("atoll/work");
    assert_eq!((imported.branch.as_str(), imported.commits, imported.notes.len()), ("atoll/work", 2, 0));
    assert_eq!(imported.previous.as_deref(), Some(first.as_str()));
    assert_eq!(branch_commit(&scenario.own, "atoll/work"), second);
    assert_eq!(repository_state(&scenario.own, Some("atoll/work")), before);
    // A repeated import changes nothing.
    assert_eq!(scenario.import_own_result("atoll/work").previous.as_deref(), Some(second.as_str()));
    // Without the session's claim, an existing branch never moves.
    write_file(&scenario.inside, "three", "x");
    commit_all(&scenario.inside, "three");
    assert_eq!(scenario.import_result("atoll/work").branch, "atoll/work-2");
    assert_eq!(branch_commit(&scenario.own, "atoll/work"), second);
}

#[test]
fn a_moved_or_checked_out_branch_keeps_its_commit() {
    let scenario = ImportScenario::new();
    write_file(&scenario.inside, "one", "x");
    commit_all(&scenario.inside, "one");
    scenario.import_result("atoll/work");
    let name = || "atoll/work".to_owned();
    write_file(&scenario.inside, "two", "x");
    commit_all(&scenario.inside, "two");

    git(&scenario.own, ["worktree", "add", "-q", "../linked", "atoll/work"]);
    let checked_out = branch_commit(&scenario.own, "atoll/work");
    let imported = scenario.import_own_result("atoll/work");
    assert_eq!((imported.branch.as_str(), imported.previous), ("atoll/work-2", None));
    assert_eq!(imported.notes, [ImportNote::BranchCheckedOut { name: name() }]);
    assert_eq!(branch_commit(&scenario.own, "atoll/work"), checked_out);

    write_file(&scenario.repositories.path("linked"), "by the user", "x");
    let moved = commit_all(&scenario.repositories.path("linked"), "by the user");
    git(&scenario.own, ["worktree", "remove", "--force", "../linked"]);
    write_file(&scenario.inside, "three", "x");
    commit_all(&scenario.inside, "three");
    let imported = scenario.import_own_result("atoll/work");
    assert_eq!((imported.branch.as_str(), imported.previous), ("atoll/work-3", None));
    assert_eq!(imported.notes, [ImportNote::BranchMoved { name: name() }]);
    assert_eq!(branch_commit(&scenario.own, "atoll/work"), moved);

    // A deleted branch comes back under its name.
    git(&scenario.own, ["branch", "-q", "-D", "atoll/work"]);
    write_file(&scenario.inside, "four", "x");
    let last = commit_all(&scenario.inside, "four");
    assert_eq!(scenario.import_own_result("atoll/work").branch, "atoll/work");
    assert_eq!(branch_commit(&scenario.own, "atoll/work"), last);
}

#[test]
fn lists_taken_names_and_submodules() {
    let scenario = ImportScenario::new();
    git(&scenario.own, ["branch", "atoll/work"]);
    let repository = HostRepository::open(&scenario.own).unwrap();
    let taken = repository.list_taken_branches().unwrap();
    assert_eq!(atoll_forge::free_branch_name("atoll/work", &taken).as_deref(), Some("atoll/work-2"));
    assert_eq!(atoll_forge::free_branch_name("atoll/other", &taken).as_deref(), Some("atoll/other"));

    assert_eq!(repository.list_submodules(&scenario.base).unwrap(), [] as [Submodule; 0]);
    for path in ["lib/one", "two"] {
        git(&scenario.own, ["update-index", "--add", "--cacheinfo", &format!("160000,{},{path}", scenario.base)]);
    }
    // An included file and a program of the configuration are not read.
    let modules = "[submodule \"one\"]\n\tpath = lib/one\n\turl = ../one.git\n\tupdate = !touch canary\n[include]\n\tpath = more\n";
    write_file(&scenario.own, ".gitmodules", modules);
    write_file(&scenario.own, "more", "[submodule \"two\"]\n\tpath = two\n\turl = ../two.git\n");
    git(&scenario.own, ["add", ".gitmodules"]);
    git(&scenario.own, ["commit", "-q", "-m", "submodules"]);
    let head = git(&scenario.own, ["rev-parse", "HEAD"]);
    let source = SubmoduleSource { name: "one".to_owned(), url: "../one.git".to_owned() };
    let submodule = |path: &str, source| Submodule { path: path.to_owned(), commit: scenario.base.clone(), source };
    let expected = [submodule("lib/one", Some(source)), submodule("two", None)];
    assert_eq!(repository.list_submodules(&head).unwrap(), expected);
}
