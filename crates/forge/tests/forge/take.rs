//! What comes out of a sandbox.

use crate::world::{World, awkward, commit, git, state, write};
use atoll_forge::{Change, Note, Outcome, Repository, Taken};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// The user's repository, a sandbox's copy of it, and the commit both start from.
struct Story {
    world: World,
    own: PathBuf,
    inside: PathBuf,
    base: String,
}

impl Story {
    fn new() -> Self {
        let world = World::new();
        let own = world.repository("own");
        Self::of(world, own, "sha1")
    }

    fn of(world: World, own: PathBuf, format: &str) -> Self {
        let base = git(&own, ["rev-parse", "HEAD"]);
        let source = world.path("source.bundle");
        Repository::open(&own).unwrap().bundle(&base, File::create(&source).unwrap()).unwrap();
        let inside = world.inside(&source, format);
        Self { world, own, inside, base }
    }

    fn take(&self, wanted: &str) -> Taken {
        let bundle = self.world.result(&self.inside, &self.base);
        let repository = Repository::open(&self.own).unwrap();
        match repository.take(&bundle, &self.base, wanted, &self.world.scratch()).unwrap() {
            Outcome::Branch(taken) => taken,
            other @ (Outcome::Nothing | Outcome::Protected { .. }) => panic!("nothing was taken: {other:?}"),
        }
    }
}

#[test]
fn a_result_that_changes_what_is_protected_is_not_taken() {
    let story = Story::new();
    fs::rename(story.inside.join("src/code.rs"), story.inside.join("moved.rs")).unwrap();
    write(&story.inside, "free", "x");
    commit(&story.inside, "one");
    let before = state(&story.own, None);
    let bundle = story.world.result(&story.inside, &story.base);
    let repository = Repository::open(&story.own).unwrap();
    let take = |is_protected: &dyn Fn(&str) -> bool| {
        repository.take_unless(&bundle, &story.base, "atoll/work", &story.world.scratch(), is_protected).unwrap()
    };
    let refused = Outcome::Protected { paths: vec!["src/code.rs".to_owned()] };
    assert_eq!(take(&|path| path.starts_with("src/")), refused, "what it was called before counts");
    assert_eq!(state(&story.own, None), before);
    assert!(matches!(take(&|path| path == "README.md"), Outcome::Branch(_)));
}

fn branch_at(own: &Path, branch: &str) -> String {
    git(own, ["rev-parse", &format!("refs/heads/{branch}")])
}

#[test]
fn a_result_becomes_a_branch_and_nothing_else_changes() {
    let story = Story::new();
    awkward(&story.inside);
    fs::rename(story.inside.join("src/code.rs"), story.inside.join("src/moved.rs")).unwrap();
    write(&story.inside, ".github/workflows/run.yml", "on: push\n");
    commit(&story.inside, "one");
    fs::remove_file(story.inside.join("README.md")).unwrap();
    let result = commit(&story.inside, "two");

    // The user is in the middle of something.
    write(&story.own, "README.md", "changed\n");
    write(&story.own, "staged", "x");
    git(&story.own, ["add", "staged"]);
    write(&story.own, "untracked", "x");
    let before = state(&story.own, Some("atoll/work"));

    let taken = story.take("atoll/work");
    assert_eq!(state(&story.own, Some("atoll/work")), before);
    assert_eq!(branch_at(&story.own, "atoll/work"), result);
    assert_eq!((taken.branch.as_str(), taken.commit, taken.commits), ("atoll/work", result, 2));
    assert_eq!((taken.base, taken.notes), (story.base.clone(), vec![]));
    assert_eq!(taken.flagged, [".github/workflows/run.yml"]);
    let file = |path: &str| taken.files.iter().find(|file| file.path == path).unwrap().clone();
    assert_eq!(taken.files.len(), 14);
    assert_eq!((file("two\nlines").change, file("two\nlines").added), (Change::Added, 2));
    assert_eq!((file("README.md").change, file("README.md").removed), (Change::Deleted, 2));
    assert_eq!(file("src/moved.rs").old_path.as_deref(), Some("src/code.rs"));
    assert!(file("picture").binary);
    git(&story.own, ["fsck", "--strict"]);
    // Nothing is left of the quarantine.
    assert_eq!(fs::read_dir(story.world.scratch()).unwrap().count(), 0);

    // Doing it again, as after a crash, finds what is there.
    assert_eq!(story.take("atoll/work").branch, "atoll/work");
    assert_eq!(state(&story.own, Some("atoll/work")), before);
}

#[test]
fn only_what_is_reachable_comes_in() {
    let story = Story::new();
    for number in 0..150 {
        write(&story.inside, format!("file{number}"), format!("{number}\n"));
    }
    commit(&story.inside, "many");
    let stray = crate::world::pipe(&story.inside, ["hash-object", "-w", "--stdin"], b"stray");
    let taken = story.take("atoll/work");
    assert_eq!((taken.files.len(), taken.commits), (150, 1));
    assert!(!crate::world::try_git(&story.own, ["cat-file", "-e", &stray]).status.success());
    let packs = fs::read_dir(story.own.join(".git/objects/pack")).unwrap();
    assert_eq!(
        packs.filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|end| end == "pack")).count(),
        1
    );
    git(&story.own, ["fsck", "--strict"]);
}

#[test]
fn names_that_are_taken_give_way() {
    let story = Story::new();
    for (number, name) in ["atoll/work", "atoll/work-2", "atoll/work-3"].into_iter().enumerate() {
        write(&story.inside, "file", format!("{number}"));
        commit(&story.inside, "more");
        let taken = story.take("atoll/work");
        assert_eq!(taken.branch, name);
        let expected = if number == 0 { vec![] } else { vec![Note::NameTaken { wanted: "atoll/work".to_owned() }] };
        assert_eq!(taken.notes, expected);
    }
    let taken = story.take("atoll/work/deeper");
    assert_eq!(taken.branch, "atoll-work-deeper");
    let by = "atoll/work".to_owned();
    assert_eq!(taken.notes, [Note::NameBlocked { wanted: "atoll/work/deeper".to_owned(), by }]);
    assert_eq!(story.take("atoll").branch, "atoll-2");
}

#[test]
fn a_branch_in_the_way_of_all_others_is_said() {
    let story = Story::new();
    git(&story.own, ["branch", "atoll"]);
    write(&story.inside, "file", "x");
    commit(&story.inside, "more");
    let taken = story.take("atoll/fix-it");
    assert_eq!(taken.branch, "atoll-fix-it");
    assert!(taken.notes[0].to_string().contains("beside the branch atoll"), "{}", taken.notes[0]);
    assert_eq!(story.take("atoll/fix-it").branch, "atoll-fix-it");
}

#[test]
fn a_worktree_on_a_branch_without_a_commit_keeps_its_head() {
    let story = Story::new();
    git(&story.own, ["worktree", "add", "-q", "--detach", "../linked"]);
    git(&story.world.path("linked"), ["symbolic-ref", "HEAD", "refs/heads/atoll/work"]);
    write(&story.inside, "file", "x");
    commit(&story.inside, "more");
    assert_eq!(story.take("atoll/work").branch, "atoll/work-2");
}

#[test]
fn a_broken_ref_in_the_way_is_gone_around() {
    let story = Story::new();
    write(&story.own, ".git/refs/heads/atoll/work", "nonsense\n");
    write(&story.inside, "file", "x");
    commit(&story.inside, "more");
    assert_eq!(story.take("atoll/work").branch, "atoll/work-2");
}

#[test]
fn linked_worktrees_bare_and_sha256_repositories_take_results() {
    for kind in ["linked", "bare.git", "sha256"] {
        let world = World::new();
        let format = if kind == "sha256" { "sha256" } else { "sha1" };
        let own = world.repository_with("own", &["--object-format", format]);
        match kind {
            "linked" => drop(git(&own, ["worktree", "add", "-q", "--detach", "../linked"])),
            "bare.git" => drop(git(&own, ["clone", "-q", "--bare", ".", "../bare.git"])),
            _ => fs::rename(&own, world.path("sha256")).unwrap(),
        }
        let story = Story::of(World::new(), world.path(kind), format);
        write(&story.inside, "file", "x");
        let result = commit(&story.inside, "more");
        let before = state(&story.own, Some("atoll/work"));
        assert_eq!(story.take("atoll/work").commit, result, "{kind}");
        assert_eq!(branch_at(&story.own, "atoll/work"), result, "{kind}");
        assert_eq!(state(&story.own, Some("atoll/work")), before, "{kind}");
    }
}

#[test]
fn a_shallow_clone_takes_results() {
    let world = World::new();
    let whole = world.repository("whole");
    let url = format!("file://{}", whole.display());
    git(&whole, ["clone", "-q", "--depth", "1", &url, "../own"]);
    let own = world.path("own");
    let story = Story::of(world, own, "sha1");
    write(&story.inside, "file", "x");
    let result = commit(&story.inside, "more");
    let taken = story.take("atoll/work");
    assert_eq!((taken.commit, taken.commits, taken.notes), (result, 1, vec![]));
    assert_eq!(git(&story.own, ["rev-list", "--count", "atoll/work"]), "2");
    git(&story.own, ["fsck", "--strict"]);
}

#[test]
fn a_result_beside_the_base_is_taken_and_said() {
    let story = Story::new();
    git(&story.inside, ["reset", "-q", "--hard", "HEAD~1"]);
    write(&story.inside, "file", "x");
    let result = commit(&story.inside, "instead");
    let taken = story.take("atoll/work");
    assert_eq!((taken.commit, taken.commits), (result, 1));
    assert_eq!(taken.notes, [Note::BaseNotAncestor]);

    git(&story.inside, ["checkout", "-q", "--orphan", "fresh"]);
    commit(&story.inside, "another beginning");
    let taken = story.take("atoll/fresh");
    assert_eq!((taken.commits, taken.notes), (1, vec![Note::BaseNotAncestor]));
}

#[test]
fn nothing_done_is_nothing_taken() {
    let story = Story::new();
    let before = state(&story.own, None);
    let repository = Repository::open(&story.own).unwrap();
    let empty = story.world.path("empty.bundle");
    fs::write(&empty, "").unwrap();
    let take = |bundle: &Path| repository.take(bundle, &story.base, "atoll/work", &story.world.scratch()).unwrap();
    assert_eq!(take(&empty), Outcome::Nothing);
    // Git refuses to make an empty bundle, but one may name what is here already.
    git(&story.inside, ["update-ref", "refs/atoll/result", "HEAD"]);
    let old = story.world.path("old.bundle");
    git(&story.inside, ["bundle", "create", "-q", old.to_str().unwrap(), "refs/atoll/result"]);
    assert_eq!(take(&old), Outcome::Nothing);
    assert_eq!(state(&story.own, None), before);
}
