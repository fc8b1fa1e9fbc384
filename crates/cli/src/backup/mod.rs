//! `atoll backup`: a consistent copy of the database and of the blobs, while the server runs.

mod blobs;
mod postgres;

use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::settings::{self, ConfigFiles};
use atoll_config::{Config, Database};
use serde_json::json;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll backup /backups/atoll-2026-01-31
  atoll backup --data-dir /srv/atoll /backups/atoll
  DATABASE_URL=postgres://… atoll backup /backups/atoll

A copy of SQLite can be served as it is: `atoll serve --data-dir DEST` (it makes a new admin token).
A copy of PostgreSQL is `atoll.pgdump`, for pg_restore; the blobs belong into the data directory.")]
pub struct Backup {
    /// A directory that does not exist yet
    dest: PathBuf,
    /// The server's data directory [default: ATOLL_DATA_DIR, else the user's]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    #[command(flatten)]
    files: ConfigFiles,
}

/// What a copy holds; it is written last, so a copy without it is not whole.
const MANIFEST: &str = "backup.json";

pub fn run(backup: &Backup, output: &Output) -> Result {
    let flag = backup.data_dir.as_ref().map(|dir| ("data_dir".to_owned(), dir.display().to_string()));
    let config = settings::load(flag.into_iter().collect(), &backup.files)?.config;
    let dest = std::path::absolute(&backup.dest).unwrap_or_else(|_| backup.dest.clone());
    make_new(&dest)?;
    let copied = copy(&config, &dest);
    if copied.is_err() {
        // Half a copy is worse than none; what is removed here was made here.
        drop(std::fs::remove_dir_all(&dest));
    }
    let manifest = copied?;
    if output.json {
        return output.object(&manifest);
    }
    output.line(&format!(
        "{}: the {} database and {} blobs ({} bytes), checked",
        dest.display(),
        manifest["database"].as_str().unwrap_or_default(),
        manifest["blobs"],
        manifest["blob_bytes"]
    ))
}

fn make_new(dest: &Path) -> Result {
    std::fs::DirBuilder::new().mode(0o700).create(dest).map_err(|error| {
        Failure::setup("backup_dest", format!("can't make the directory {}: {error}", dest.display()))
            .next("Name a directory that does not exist yet, in one that does.")
    })
}

/// The database first: every blob that it names is on disk before the event that names it.
fn copy(config: &Config, dest: &Path) -> Result<serde_json::Value> {
    let kind = match &config.database {
        Database::Sqlite { path } => sqlite(path, &dest.join("atoll.db")).map(|()| "sqlite")?,
        Database::Postgres { url } => postgres::dump(url, &dest.join("atoll.pgdump")).map(|()| "postgres")?,
    };
    let (blobs, bytes) = blobs::copy(&config.data_dir.join("blobs"), &dest.join("blobs"))?;
    let manifest = json!({
        "type": "backup",
        "path": dest,
        "version": env!("CARGO_PKG_VERSION"),
        "at": crate::render::time::now(),
        "database": kind,
        "blobs": blobs,
        "blob_bytes": bytes,
    });
    let written = std::fs::write(dest.join(MANIFEST), format!("{manifest}\n"));
    let synced = written.and_then(|()| std::fs::File::open(dest)).and_then(|directory| directory.sync_all());
    synced.map_err(|error| cant_copy(dest, &error))?;
    Ok(manifest)
}

fn sqlite(from: &Path, to: &Path) -> Result {
    if !from.exists() {
        return Err(Failure::setup("no_database", format!("there is no database at {}", from.display()))
            .next("Name the server's data directory with --data-dir, or its configuration with --config."));
    }
    let copied = atoll_store::backup::sqlite(from, to).and_then(|()| atoll_store::backup::check(to));
    copied.map_err(|error| {
        Failure::work("backup_failed", format!("the copy of {} failed: {error}", from.display()))
            .next("`atoll doctor` looks at the database; nothing was left behind.")
    })
}

fn cant_copy(path: &Path, error: &std::io::Error) -> Failure {
    Failure::work("backup_failed", format!("can't copy {}: {error}", path.display()))
        .next("Check the room and the permissions there; nothing was left behind.")
}
