//! Checks the data directory: permissions, file system, free space and fsync latency.

use super::{Check, Report};
use crate::failure::Result;
use crate::render::time;
use atoll_core::size::format_bytes;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const CHECK: &str = "data directory";
const GB: u64 = 1 << 30;

/// Checks the data directory; returns whether a server can use it.
pub fn check_data_dir(dir: &Path, report: &mut Report<'_>) -> Result<bool> {
    let dir_path = dir.display();
    let metadata = match std::fs::metadata(dir) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            report.add(check_missing_dir(dir))?;
            return Ok(false);
        }
        Err(error) => {
            report.add(Check::fail(
                CHECK,
                format!("{dir_path}: {error}"),
                "Run as its owner, or choose another --data-dir.",
            ))?;
            return Ok(false);
        }
    };
    if let Err(error) = create_scratch_dir(dir) {
        report.add(Check::fail(
            CHECK,
            format!("{dir_path} is not writable: {error}"),
            format!("Run chown -R $(id -un) {dir_path}, or choose another --data-dir."),
        ))?;
        return Ok(false);
    }
    report.add(if metadata.mode() & 0o077 == 0 {
        Check::ok(CHECK, format!("{dir_path} is writable and private"))
    } else {
        Check::warn(CHECK, format!("other users can read {dir_path}"), format!("chmod 700 {dir_path}"))
    })?;
    report.add(check_file_system(dir))?;
    report.add(check_fsync(dir))?;
    Ok(true)
}

fn check_missing_dir(dir: &Path) -> Check {
    let parent = dir.ancestors().skip(1).find(|path| path.exists()).unwrap_or(Path::new("/"));
    let writable = rustix::fs::access(parent, rustix::fs::Access::WRITE_OK).is_ok();
    let dir_path = dir.display();
    if writable {
        Check::ok(CHECK, format!("{dir_path} does not exist yet; `atoll serve` creates it"))
    } else {
        Check::fail(
            CHECK,
            format!("{dir_path} does not exist, and {} is not writable", parent.display()),
            "Choose another --data-dir.",
        )
    }
}

/// The name of a file system by its magic number, and whether it is durable and supports locks.
fn file_system_name(magic: u64) -> (&'static str, bool) {
    match magic {
        0xef53 => ("ext", true),
        0x5846_5342 => ("xfs", true),
        0x9123_683e => ("btrfs", true),
        0x2fc1_2fc1 => ("zfs", true),
        0xf2f5_2010 => ("f2fs", true),
        0x794c_7630 => ("overlay", true),
        0x0102_1994 => ("tmpfs", false),
        0x6969 => ("nfs", false),
        0xff53_4d42 | 0xfe53_4d42 => ("smb", false),
        0x0102_1997 => ("9p", false),
        0x6573_5546 => ("fuse", false),
        _ => ("unknown file system", true),
    }
}

fn check_file_system(dir: &Path) -> Check {
    const CHECK: &str = "file system";
    let (kind, room) = match (rustix::fs::statfs(dir), rustix::fs::statvfs(dir)) {
        (Ok(kind), Ok(room)) => (kind, room),
        (Err(error), _) | (_, Err(error)) => {
            return Check::warn(CHECK, format!("statfs failed: {error}"), "Run df -hT.");
        }
    };
    #[allow(clippy::cast_sign_loss, reason = "a magic number is a pattern of bits")]
    let (name, lasting) = file_system_name((kind.f_type as u64) & 0xffff_ffff);
    let free = room.f_bavail * room.f_frsize;
    let detail = format!("{name}, {} free", format_bytes(free));
    if free < GB / 10 {
        return Check::fail(CHECK, detail, "Free space, or choose a --data-dir on a larger disk.");
    }
    if !lasting {
        return Check::warn(CHECK, detail, "It may lose data or lacks reliable locks; use a local disk file system.");
    }
    if free < 2 * GB {
        return Check::warn(CHECK, detail, "Free space soon; `atoll gc --dry-run` lists removable data.");
    }
    Check::ok(CHECK, detail)
}

/// Measures appending and syncing 4 KB.
fn check_fsync(dir: &Path) -> Check {
    const CHECK: &str = "fsync";
    const TIMES: usize = 20;
    let measure = || -> std::io::Result<Vec<Duration>> {
        let scratch = create_scratch_dir(dir)?;
        let mut file = File::create(scratch.path().join("appended"))?;
        let mut durations = Vec::with_capacity(TIMES);
        for _ in 0..TIMES {
            let started = Instant::now();
            file.write_all(&[7; 4096])?;
            file.sync_data()?;
            durations.push(started.elapsed());
        }
        Ok(durations)
    };
    match measure() {
        Ok(durations) => judge_latency(CHECK, "append and sync of 4 KiB", durations, Duration::from_millis(30)),
        Err(error) => Check::fail(CHECK, format!("failed: {error}"), "Check the disk: it cannot store data durably."),
    }
}

/// Judges the median of some measurements against a threshold.
pub fn judge_latency(check: &'static str, what: &str, mut durations: Vec<Duration>, good: Duration) -> Check {
    durations.sort_unstable();
    let ms = |span: Option<&Duration>| span.map_or(0.0, |span| span.as_secs_f64() * 1e3);
    let median = durations.get(durations.len() / 2);
    let detail = format!("{what}: median {:.2} ms, maximum {:.2} ms", ms(median), ms(durations.last()));
    if median.is_some_and(|median| *median > good) {
        let remedy =
            format!("Every event waits for the disk; use one that takes less than {}.", time::format_duration(good));
        return Check::warn(check, detail, remedy);
    }
    Check::ok(check, detail)
}

/// Creates a temporary directory, which is removed when dropped.
pub fn create_scratch_dir(dir: &Path) -> std::io::Result<TempDir> {
    tempfile::Builder::new().prefix("doctor-").tempdir_in(dir)
}
