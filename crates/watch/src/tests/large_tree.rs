//! Cost of watching a large tree. Run: `cargo test -p atoll-watch --release -- --ignored figures --nocapture`

use super::workspace::{MODES, TestWorkspace};
use crate::*;
use std::fs;

const FILES: usize = 50_000;

fn large(committed: bool) -> TestWorkspace {
    let desk = TestWorkspace::new();
    desk.write_file(".gitignore", "node_modules/\n*.log\n");
    for number in 0..FILES {
        let directory = format!("packages/{}/src/{}", number / 1_000, number / 20);
        desk.write_file(&format!("{directory}/file-{number}.ts"), format!("export const a = {number};\n").repeat(20));
        desk.write_file(&format!("node_modules/{}/{}.js", number / 20, number), "x\n");
    }
    if committed {
        desk.commit_all();
    }
    desk
}

/// Resident memory in kilobytes.
fn resident() -> i64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
#[ignore = "makes 100,000 files and prints figures"]
fn fifty_thousand_files_beside_fifty_thousand_ignored_ones() {
    for committed in [true, false] {
        let desk = large(committed);
        for mode in MODES {
            let before = resident();
            let began = Instant::now();
            let mut watch = desk.start_watcher(mode);
            let start_time = began.elapsed();
            let memory = resident() - before;
            let mut one = Vec::new();
            for number in 0..20 {
                let path = format!("packages/7/src/350/file-{}.ts", 7_000 + number);
                desk.write_file(&path, format!("export const a = 1;\nexport const b = \"{mode:?}\";\n"));
                let began = Instant::now();
                let changes = watch.take_all();
                one.push(began.elapsed());
                assert_eq!(changes.len(), 1);
                assert!(changes[0].full_diff.is_some() || !committed);
            }
            let first = one.remove(0);
            desk.write_file("packages/7/src/350/file-7000.ts", "again\n");
            let began = Instant::now();
            assert_eq!(watch.take_all().len(), 1);
            let again = began.elapsed();
            one.sort();
            let watches = watch.notify.as_ref().map_or(0, Inotify::watch_count);
            let began = Instant::now();
            watch.rescan(b"", Instant::now());
            let scan = began.elapsed();
            println!(
                "git: {committed}, {mode:?}: new {start_time:?} (+{memory} kB, {watches} watches), one file first \
                 {first:?}, then {:?}, known before {again:?}, full scan {scan:?}",
                one[one.len() / 2]
            );
            let began = Instant::now();
            drop(watch);
            println!("ended in {:?}", began.elapsed());
            if committed {
                desk.run_git(&["checkout", "-q", "."]);
            }
        }
    }
}
