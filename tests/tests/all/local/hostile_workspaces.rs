//! Workspaces whose repository an agent made hostile: git on the host runs nothing of them and writes nothing outside. The limits
//! on packs are tested in `crates/forge/tests/forge/hostile.rs`.
//!
//! The agent's user reaches no path of the host, so each row also names one: the trap, a directory that everyone may write.

use atoll_tests::local::repository::SampleRepository;
use atoll_tests::local::{LocalServer, create_temp_dir, has_ended};
use futures_util::{StreamExt, stream};
use serde_json::json;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Sandboxes that the test runs at once.
const AT_ONCE: usize = 4;

/// The outcome of a hostile workspace's results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    /// The work is on a branch.
    Branch,
    /// The results fail, and the reason says why.
    Refused,
    /// Both are right: it depends on the version of git.
    Either,
}

struct HostileWorkspace {
    name: &'static str,
    /// A script in the workspace; `$1` is the trap, and `$2` a program that leaves a file in it.
    script: &'static str,
    expected: Expected,
}

const fn hostile(name: &'static str, script: &'static str, expected: Expected) -> HostileWorkspace {
    HostileWorkspace { name, script, expected }
}

const WORKSPACES: &[HostileWorkspace] = &[
    hostile(
        "configured programs",
        "for key in core.fsmonitor core.sshCommand core.pager core.editor core.askPass core.gitProxy gpg.program \
             diff.external core.alternateRefsCommand uploadpack.packObjectsHook credential.helper; do \
             git config $key \"$2\"; done; git config commit.gpgSign true; git config core.hooksPath $1",
        Expected::Branch,
    ),
    hostile(
        "included configuration",
        "printf '[core]\\n\\tfsmonitor = %s\\n[alias]\\n\\tstatus = !%s\\n' \"$2\" \"$2\" > more; git config include.path ../more",
        Expected::Branch,
    ),
    hostile(
        "hooks",
        "mkdir -p .git/hooks; for hook in post-checkout post-index-change reference-transaction pre-commit post-commit \
             pre-push update pre-auto-gc fsmonitor-watchman; do printf '#!/bin/sh\\n%s\\n' \"$2\" > .git/hooks/$hook; \
             chmod +x .git/hooks/$hook; done",
        Expected::Branch,
    ),
    hostile(
        "attributes with filters, diff and merge drivers",
        "printf '* filter=t diff=t merge=t working-tree-encoding=UTF-16\\n' > .git/info/attributes; \
             printf '* filter=lfs diff=t merge=t ident export-subst\\n' > .gitattributes; \
             for key in filter.t.clean filter.t.smudge filter.t.process diff.t.command diff.t.textconv merge.t.driver \
             filter.lfs.process filter.lfs.clean filter.lfs.smudge; do git config $key \"$2\"; done; \
             git config filter.t.required true",
        Expected::Either,
    ),
    hostile(
        "symbolic links",
        "ln -s $1 out; ln -s /etc/passwd passwd; ln -s ../../../../../../etc up",
        Expected::Branch,
    ),
    hostile("a linked repository", "mv .git moved; ln -s $1 .git", Expected::Branch),
    hostile("a repository elsewhere", "mv .git moved; echo gitdir: $1 > .git", Expected::Branch),
    hostile("a common directory elsewhere", "echo $1 > .git/commondir", Expected::Branch),
    hostile("a working tree elsewhere", "git config core.worktree $1", Expected::Branch),
    hostile("objects elsewhere", "echo $1 > .git/objects/info/alternates", Expected::Branch),
    hostile(
        "linked refs and objects",
        "rm -rf .git/refs/tags; ln -s $1 .git/refs/tags; ln -s $1 .git/logs/x",
        Expected::Branch,
    ),
    hostile(
        "submodules with hostile URLs and names",
        "printf '[submodule \"../../x\"]\\n\\tpath = lib\\n\\turl = ext::%s\\n\\tupdate = !%s\\n' \"$2\" \"$2\" > .gitmodules; \
             git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),lib",
        Expected::Refused,
    ),
    hostile(
        "a submodule whose URL is an option",
        "printf '[submodule \"lib\"]\\n\\tpath = lib\\n\\turl = --upload-pack=%s\\n' \"$2\" > .gitmodules",
        Expected::Refused,
    ),
    hostile("a linked .gitmodules", "ln -s $1/modules .gitmodules", Expected::Either),
    hostile(
        "ref names",
        "id=$(git rev-parse HEAD); mkdir -p .git/refs/heads/x; echo $id > .git/refs/heads/-x; \
             echo $id > '.git/refs/heads/x/$(touch y)'; printf \"$id refs/heads/../../../escape\\n\" >> .git/packed-refs",
        Expected::Either,
    ),
    hostile("a HEAD outside of refs", "printf 'ref: ../../../../%s/head\\n' $1 > .git/HEAD", Expected::Either),
    hostile(
        "a partial clone",
        "git config core.repositoryFormatVersion 1; git config extensions.partialClone origin; \
             git config remote.origin.url \"ext::$2\"; git config remote.origin.promisor true; \
             git config protocol.ext.allow always",
        Expected::Branch,
    ),
];

/// Runs a row's script, reads the workspace in every way, exports the results, and returns what is wrong.
async fn examine(server: &LocalServer, workspace: &HostileWorkspace, trap: &Path) -> Vec<String> {
    let repository = SampleRepository::create();
    let before = repository.checkout_state();
    let settings = json!({ "repo": { "path": repository.path_str() }, "setup": { "enabled": false } });
    let id = server.create_idle_sandbox(settings).await;
    let program = format!("touch {}/ran", trap.display());
    let script = format!("cd /workspace && {} ; echo work > work.txt; echo planted", workspace.script);
    let planted = json!({ "argv": ["bash", "-c", script, "plant", trap, program] });
    let planted = server.run_exec(&id, planted).await;
    let mut wrong = Vec::new();
    if !planted.stdout.ends_with("planted\n") {
        wrong.push(format!("the script failed: {planted:?}"));
    }
    // The diff may fail, but only with a problem.
    let diff = server.admin.get(&format!("/sandboxes/{id}/diff")).await;
    if diff.status.is_server_error() && diff.body["code"] == "internal" {
        wrong.push(format!("the diff: {}", diff.body));
    }
    server.admin.post(&format!("/sandboxes/{id}/stop"), json!({ "results": "take" })).await.expect_status(200);
    let row = server.wait_until(&id, has_ended).await;
    let branches = repository.run_git(&["branch", "--format=%(refname:short)", "--list", "atoll/*"]);
    let outcome = match (row["results"] == "taken", branches.trim()) {
        (true, "") => format!("taken without a branch: {row}"),
        (true, branch) => {
            repository.assert_untouched(&before, branch);
            match workspace.expected {
                Expected::Refused => format!("a branch: {row}"),
                Expected::Branch if repository.file_at(branch, "work.txt").is_none() => "the work is lost".to_owned(),
                Expected::Branch | Expected::Either => String::new(),
            }
        }
        (false, _) if repository.checkout_state() != before => "the repository changed".to_owned(),
        (false, _) if workspace.expected == Expected::Branch => format!("no branch: {row}"),
        (false, _) if row["reason"]["detail"].as_str().is_none_or(str::is_empty) => format!("no reason: {row}"),
        (false, _) => String::new(),
    };
    wrong.extend(Some(outcome).filter(|outcome| !outcome.is_empty()));
    let found = std::fs::read_dir(trap).unwrap().flatten().map(|entry| entry.path().display().to_string());
    wrong.extend(found.map(|path| format!("written outside: {path}")));
    wrong
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_workspaces_run_and_write_nothing_on_the_host() {
    let server = LocalServer::start_with_config("sandbox: {keep_failed_for: 0s}\n");
    let examined = stream::iter(WORKSPACES).map(async |workspace| {
        let trap = create_temp_dir("atoll-trap-");
        std::fs::set_permissions(trap.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let wrong = examine(&server, workspace, trap.path()).await;
        wrong.into_iter().map(|wrong| format!("{}: {wrong}", workspace.name)).collect::<Vec<_>>()
    });
    let failures = examined.buffer_unordered(AT_ONCE).collect::<Vec<_>>().await.concat();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    server.stop_and_check().await;
}
