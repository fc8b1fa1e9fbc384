//! Caches: sealed files of a set-up, from which other sandboxes start.

use std::fs;

use atoll_jail::{CacheStart, CatalogKind, Error, SandboxSpec, Snapshot};
use atoll_test_wait::wait_for;

use crate::harness::{Harness, exec_shell, require_root, skip_test, spec};
use crate::unprivileged;

const WORKER: &str = "#!/bin/sh\nexec sleep 1000000\n";
const SET_UP: &str = "mkdir -p node_modules/a/b ~/.cache/packages; echo one >node_modules/a/b/f; echo x >top; \
                      echo pkg >~/.cache/packages/p; echo h >~/h; chmod 555 node_modules/a";
/// Prints every file with its content.
const PRINT_ALL: &str = "find . ~ -type f | sort | while read f; do echo \"$f $(cat \"$f\")\"; done";

fn from_cache(cache: &str, name: &str) -> SandboxSpec {
    let cache = CacheStart { name: cache.to_owned(), downloads_only: false };
    SandboxSpec { cache: Some(cache), ..spec(name) }
}

fn missing(cache: &str) -> Error {
    Error::NotFound { kind: CatalogKind::Cache, name: cache.to_owned() }
}

impl Harness {
    /// Output of a script in the running sandbox, which may fail.
    fn exec_any(&self, name: &str, script: &str) -> String {
        exec_shell(&self.launcher, name, false, script).unwrap().stdout.trim().to_owned()
    }

    /// Creates a sandbox, sets it up and seals it.
    fn seal_set_up(&self, name: &str, cache: &str) -> Snapshot {
        self.prepare_sandbox(name);
        self.launcher.start_worker(name).unwrap();
        self.exec_any(name, SET_UP);
        self.launcher.seal_cache(name, cache).unwrap()
    }

    fn cache_names(&self) -> Vec<String> {
        self.launcher.list_caches().unwrap().into_iter().map(|cache| cache.name).collect()
    }

    /// The caches, once they are measured.
    fn measured_caches(&self) -> Vec<Snapshot> {
        wait_for("the caches' sizes", || {
            let caches = self.launcher.list_caches().unwrap();
            caches.iter().all(|cache| cache.bytes.is_some()).then_some(caches)
        })
    }

    fn destroy_all(&self) {
        for sandbox in self.launcher.list_sandboxes().unwrap() {
            self.launcher.destroy_sandbox(&sandbox.name).unwrap();
        }
    }
}

/// The files of a cache do not count towards the disk limit of sandboxes that start from it.
fn check_disk_usage(harness: &Harness) {
    harness.prepare_sandbox("a");
    harness.shell_output("a", "head -c 8000000 /dev/urandom >large");
    harness.launcher.seal_cache("a", "p.k").unwrap();
    harness.launcher.prepare_sandbox(&from_cache("p.k", "b")).unwrap();
    let used = |name: &str| harness.launcher.measure_disk(name).unwrap().bytes;
    assert!(used("a") > 7_000_000, "{}", used("a"));
    assert!(used("b") < 4_000_000, "{}", used("b"));
    harness.shell_output("b", "head -c 5000000 /dev/urandom >own; sync");
    harness.launcher.fork_sandbox("b", &spec("c")).unwrap();
    for name in ["b", "c"] {
        let counted = wait_for("the usage", || Some(used(name)).filter(|used| *used > 4_500_000));
        assert!(counted < 9_000_000, "{name}: {counted}");
    }
}

#[test]
fn a_cache_does_not_count_towards_the_disk_limit() {
    let Some(harness) = Harness::new() else { return };
    check_disk_usage(&harness);
}

#[test]
fn a_cache_does_not_count_towards_the_quota_of_a_pool() {
    let Some(harness) = Harness::with_pool(WORKER, 1 << 30) else { return };
    check_disk_usage(&harness);
}

/// The whole lifecycle, for any user of the launcher.
fn check_caches(harness: &Harness) {
    let sealed = harness.seal_set_up("first", "p.k1");
    assert_eq!((sealed.name.as_str(), sealed.depth, sealed.used_at), ("p.k1", 1, None));
    let expected = harness.exec_any("first", PRINT_ALL);
    assert!(expected.contains("./node_modules/a/b/f one"), "{expected}");
    // The sandbox continues above the layer.
    assert_eq!(harness.exec_any("first", "echo changed >top; rm -r ~/.cache; cat top"), "changed");
    assert!(harness.launcher.find_sandbox("first").unwrap().unwrap().is_alive);
    // A second seal keeps the first.
    assert_eq!(harness.launcher.seal_cache("first", "p.k1").unwrap().created_at, sealed.created_at);
    assert_eq!(harness.launcher.list_snapshots().unwrap(), []);

    // An agent writes into every file that it can see, and removes the rest.
    let started = harness.launcher.prepare_sandbox(&from_cache("p.k1", "hostile")).unwrap();
    assert_eq!(started.cache, Some(CacheStart { name: "p.k1".into(), downloads_only: false }));
    harness.launcher.start_worker("hostile").unwrap();
    harness.launcher.prepare_sandbox(&from_cache("p.k1", "beside")).unwrap();
    harness.launcher.start_worker("beside").unwrap();
    assert_eq!(harness.exec_any("hostile", PRINT_ALL), expected);
    harness.exec_any(
        "hostile",
        "chmod -R u+w . ~; find . ~ -type f | while read f; do echo poison >\"$f\"; done; \
         ln -f top node_modules/a/b/f; rm -r ~/.cache; mkdir ~/.cache; echo poison >~/.cache/packages",
    );
    assert!(harness.exec_any("hostile", PRINT_ALL).contains("poison"));
    assert_eq!(harness.exec_any("beside", PRINT_ALL), expected, "sandboxes do not see each other's changes");
    harness.launcher.destroy_sandbox("hostile").unwrap();
    harness.launcher.prepare_sandbox(&from_cache("p.k1", "next")).unwrap();
    assert_eq!(harness.shell_output("next", PRINT_ALL), expected, "the layer is unchanged");
    let listed = harness.launcher.list_caches().unwrap();
    assert!(listed[0].used_at.is_some_and(|used| used >= sealed.created_at), "{listed:?}");

    assert_eq!(harness.launcher.prepare_sandbox(&from_cache("p.k2", "x")), Err(missing("p.k2")));
    let both = SandboxSpec { snapshot: Some("s".into()), ..from_cache("p.k1", "x") };
    assert!(matches!(harness.launcher.prepare_sandbox(&both), Err(Error::InvalidSpec { .. })));
    for bad in ["", "..", "A", "a/b", ".x"] {
        assert!(matches!(harness.launcher.seal_cache("first", bad), Err(Error::InvalidLabel { .. })), "{bad}");
    }
    // Forgotten while in use: the files stay until the last sandbox is gone.
    harness.launcher.forget_cache("p.k1").unwrap();
    assert_eq!(harness.launcher.forget_cache("p.k1"), Err(missing("p.k1")));
    assert_eq!(harness.launcher.prepare_sandbox(&from_cache("p.k1", "x")), Err(missing("p.k1")));
    harness.launcher.destroy_sandbox("first").unwrap();
    assert_eq!(harness.exec_any("beside", PRINT_ALL), expected);
    assert_eq!(harness.shell_output("next", PRINT_ALL), expected);
    harness.destroy_all();
    assert_eq!(harness.list_layers(), Vec::<String>::new(), "no layer is left");
}

#[test]
fn sandboxes_start_from_a_cache_and_do_not_change_it() {
    let Some(harness) = Harness::new() else { return };
    check_caches(&harness);
}

#[test]
fn caches_work_in_a_disk_pool() {
    let Some(harness) = Harness::with_pool(WORKER, 1 << 30) else { return };
    check_caches(&harness);
}

#[test]
fn caches_work_for_a_user_with_sub_ids() {
    let Some(harness) = unprivileged::with_sub_ids(WORKER) else { return };
    check_caches(&harness);
}

#[test]
fn caches_work_for_a_user_with_one_id() {
    let Some(harness) = unprivileged::with_one_id(WORKER) else { return };
    check_caches(&harness);
}

#[test]
fn directories_of_a_cache_can_be_renamed() {
    if !require_root() {
        return;
    }
    let Some(harness) = Harness::new() else { return };
    harness.seal_set_up("first", "p.k");
    let started = harness.launcher.prepare_sandbox(&from_cache("p.k", "second")).unwrap();
    assert!(!started.has_fixed_dirs);
    harness.launcher.start_worker("second").unwrap();
    for name in ["first", "second"] {
        let renamed = harness.exec_any(name, "perl -e 'rename \"node_modules\", \"moved\" or die $!'; cat moved/a/b/f");
        assert_eq!(renamed, "one", "{name}");
    }
    harness.launcher.prepare_sandbox(&from_cache("p.k", "third")).unwrap();
    assert_eq!(harness.shell_output("third", "cat node_modules/a/b/f; test ! -e moved"), "one");
}

#[test]
fn a_chain_of_caches_counts_each_layer_once() {
    let Some(harness) = Harness::new() else { return };
    if harness.options.disk_pool_bytes.is_some() {
        return skip_test("a disk pool copies all files into each cache");
    }
    harness.prepare_sandbox("a");
    harness.shell_output("a", "head -c 3000000 /dev/urandom >old");
    harness.launcher.seal_cache("a", "p.k1").unwrap();
    harness.launcher.prepare_sandbox(&from_cache("p.k1", "b")).unwrap();
    harness.shell_output("b", "head -c 1000000 /dev/urandom >new");
    assert_eq!(harness.launcher.seal_cache("b", "p.k2").unwrap().depth, 2);
    let sizes =
        |caches: &[Snapshot]| -> Vec<u64> { caches.iter().map(|cache| cache.bytes.unwrap() / 1_000_000).collect() };
    assert_eq!(sizes(&harness.measured_caches()), [3, 1]);
    harness.destroy_all();
    harness.launcher.forget_cache("p.k1").unwrap();
    assert_eq!(sizes(&harness.measured_caches()), [4], "the chain still needs the older layer");
    harness.launcher.prepare_sandbox(&from_cache("p.k2", "c")).unwrap();
    assert_eq!(harness.shell_output("c", "stat -c %s old new"), "3000000\n1000000");
    harness.launcher.forget_cache("p.k2").unwrap();
    harness.destroy_all();
    assert_eq!(harness.list_layers(), Vec::<String>::new());
}

/// A launcher that ends between sealing and publishing leaves a draft of the entry at most.
#[test]
fn a_cache_is_published_completely_or_not_at_all() {
    let Some(mut harness) = Harness::new() else { return };
    let caches = harness.options.data_dir.join("caches");
    let entry = caches.join("p.k.json");
    type Damage<'a> = (&'static str, &'a dyn Fn(&Harness));
    let damages: [Damage<'_>; 3] = [
        ("not published", &|_| fs::rename(&entry, caches.join("p.k.new")).unwrap()),
        ("unreadable", &|_| fs::write(&entry, "{\"name\":").unwrap()),
        // The machine crashed before the files were on disk.
        ("of an earlier boot", &|harness| {
            harness.measured_caches();
            let mut value: serde_json::Value = serde_json::from_slice(&fs::read(&entry).unwrap()).unwrap();
            value["boot"] = "earlier".into();
            fs::write(&entry, value.to_string()).unwrap();
            for layer in value["layers"].as_array().unwrap() {
                fs::remove_file(harness.layers_dir().join(layer.as_str().unwrap()).join("bytes")).unwrap();
            }
        }),
    ];
    for (damage, apply) in damages {
        harness.seal_set_up("a", "p.k");
        apply(&harness);
        harness = harness.restart_after_kill();
        assert_eq!(harness.cache_names(), Vec::<String>::new(), "{damage}");
        assert_eq!(fs::read_dir(&caches).unwrap().count(), 0, "{damage}");
        // The sandbox keeps its files, and a new seal works.
        assert_eq!(harness.exec_any("a", "cat node_modules/a/b/f"), "one", "{damage}");
        harness.launcher.seal_cache("a", "p.k").unwrap();
        assert_eq!(harness.cache_names(), ["p.k"]);
        harness.launcher.forget_cache("p.k").unwrap();
        harness.destroy_all();
        assert_eq!(harness.list_layers(), Vec::<String>::new(), "{damage}");
    }
}

#[test]
fn another_launcher_finds_and_measures_caches() {
    let Some(harness) = Harness::new() else { return };
    harness.seal_set_up("a", "p.k");
    harness.launcher.destroy_sandbox("a").unwrap();
    for layer in harness.list_layers() {
        // As if the launcher had ended before the layer was measured.
        let _ = fs::remove_file(harness.layers_dir().join(layer).join("bytes"));
    }
    let harness = harness.restart_after_kill();
    assert_eq!(harness.measured_caches()[0].name, "p.k");
    harness.launcher.prepare_sandbox(&from_cache("p.k", "b")).unwrap();
    assert_eq!(harness.shell_output("b", "cat top"), "x");
}
