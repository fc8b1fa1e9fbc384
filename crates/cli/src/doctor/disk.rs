//! The data directory: there, writable, private, on a file system that keeps its word, with room.

use super::{Check, Report};
use crate::failure::Result;
use crate::render::time;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const CHECK: &str = "data directory";
const GB: u64 = 1 << 30;

/// Whether it can be used.
pub fn check(dir: &Path, report: &mut Report<'_>) -> Result<bool> {
    let shown = dir.display();
    let metadata = match std::fs::metadata(dir) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            report.tell(absent(dir))?;
            return Ok(false);
        }
        Err(error) => {
            report.tell(Check::fail(
                CHECK,
                format!("{shown}: {error}"),
                "Run as its owner, or name another --data-dir.",
            ))?;
            return Ok(false);
        }
    };
    if let Err(error) = Scratch::new(dir) {
        report.tell(Check::fail(
            CHECK,
            format!("{shown} can't be written: {error}"),
            format!("Make it yours: chown -R $(id -un) {shown}; or name another --data-dir."),
        ))?;
        return Ok(false);
    }
    report.tell(if metadata.mode() & 0o077 == 0 {
        Check::ok(CHECK, format!("{shown} is writable, and private"))
    } else {
        Check::warn(CHECK, format!("{shown} can be looked into by others"), format!("chmod 700 {shown}"))
    })?;
    report.tell(file_system(dir))?;
    report.tell(flush(dir))?;
    Ok(true)
}

fn absent(dir: &Path) -> Check {
    let parent = dir.ancestors().skip(1).find(|path| path.exists()).unwrap_or(Path::new("/"));
    let writable = rustix::fs::access(parent, rustix::fs::Access::WRITE_OK).is_ok();
    let shown = dir.display();
    if writable {
        Check::ok(CHECK, format!("{shown} does not exist yet; `atoll serve` makes it"))
    } else {
        Check::fail(
            CHECK,
            format!("{shown} does not exist, and {} can't be written", parent.display()),
            "Name another --data-dir.",
        )
    }
}

/// Names of the file systems that one meets, by their magic number.
fn name(magic: u64) -> (&'static str, bool) {
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
        _ => ("of an unknown kind", true),
    }
}

fn file_system(dir: &Path) -> Check {
    const CHECK: &str = "file system";
    let (kind, room) = match (rustix::fs::statfs(dir), rustix::fs::statvfs(dir)) {
        (Ok(kind), Ok(room)) => (kind, room),
        (Err(error), _) | (_, Err(error)) => {
            return Check::warn(CHECK, format!("can't be looked at: {error}"), "Look with: df -hT");
        }
    };
    #[allow(clippy::cast_sign_loss, reason = "a magic number is a pattern of bits")]
    let (name, lasting) = name((kind.f_type as u64) & 0xffff_ffff);
    let free = room.f_bavail * room.f_frsize;
    let detail = format!("{name}, {:.1} GB free", free as f64 / GB as f64);
    if free < GB / 10 {
        return Check::fail(CHECK, detail, "Make room, or name a --data-dir on a larger disk.");
    }
    if !lasting {
        return Check::warn(
            CHECK,
            detail,
            "It may forget or can't be locked well; a local disk file system is better.",
        );
    }
    if free < 2 * GB {
        return Check::warn(CHECK, detail, "Make room soon; `atoll gc --dry-run` says what may go.");
    }
    Check::ok(CHECK, detail)
}

/// How long it takes until the disk says that it has something.
fn flush(dir: &Path) -> Check {
    const CHECK: &str = "fsync";
    const TIMES: usize = 20;
    let measure = || -> std::io::Result<Vec<Duration>> {
        let scratch = Scratch::new(dir)?;
        let mut file = File::create(scratch.path().join("appended"))?;
        let mut taken = Vec::with_capacity(TIMES);
        for _ in 0..TIMES {
            let began = Instant::now();
            file.write_all(&[7; 4096])?;
            file.sync_data()?;
            taken.push(began.elapsed());
        }
        Ok(taken)
    };
    match measure() {
        Ok(taken) => latency(CHECK, "4 KB appended and synced", taken, Duration::from_millis(30)),
        Err(error) => {
            Check::fail(CHECK, format!("failed: {error}"), "Check the disk; nothing can be kept safely there.")
        }
    }
}

/// The median and the worst of some measurements, against what is still good.
pub fn latency(check: &'static str, what: &str, mut taken: Vec<Duration>, good: Duration) -> Check {
    taken.sort_unstable();
    let ms = |span: Option<&Duration>| span.map_or(0.0, |span| span.as_secs_f64() * 1e3);
    let median = taken.get(taken.len() / 2);
    let detail = format!("{what}: {:.2} ms in the middle, {:.2} ms at worst", ms(median), ms(taken.last()));
    if median.is_some_and(|median| *median > good) {
        let remedy = format!("Every event waits for it; above {} a faster disk helps.", time::span(good));
        return Check::warn(check, detail, remedy);
    }
    Check::ok(check, detail)
}

/// A directory for measuring that is gone afterwards.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(dir: &Path) -> std::io::Result<Self> {
        let path = dir.join(format!("doctor-{}", uuid::Uuid::now_v7()));
        std::fs::create_dir(&path)?;
        Ok(Self(path))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}
