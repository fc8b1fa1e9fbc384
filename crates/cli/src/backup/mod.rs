//! `atoll backup`: copies the database and the blobs consistently while the server runs.

mod blobs;
mod postgres;

use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::settings::{self, ConfigFiles};
use atoll_config::{Config, Database};
use atoll_core::time::Timestamp;
use serde::Serialize;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll backup /backups/atoll-2026-01-31
  atoll backup --data-dir /srv/atoll /backups/atoll
  DATABASE_URL=postgres://… atoll backup /backups/atoll

A server can use a SQLite backup directly: `atoll serve --data-dir DEST` (it creates a new admin token).
For PostgreSQL, restore `atoll.pgdump` with pg_restore and put the blobs into the data directory.")]
pub struct Backup {
    /// Destination directory; must not exist
    dest: PathBuf,
    /// Data directory of the server [default: ATOLL_DATA_DIR, or the user's]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    #[command(flatten)]
    files: ConfigFiles,
}

/// The content of a backup.
#[derive(Serialize)]
struct Manifest {
    #[serde(rename = "type")]
    kind: &'static str,
    path: PathBuf,
    version: &'static str,
    at: Timestamp,
    database: &'static str,
    blobs: u64,
    blob_bytes: u64,
}

/// The file of the manifest. The command writes it last: a backup without it is incomplete.
const MANIFEST_FILE: &str = "backup.json";

pub fn run(backup: &Backup, output: &Output) -> Result {
    let config = settings::load_with_data_dir(backup.data_dir.as_deref(), &backup.files)?.config;
    let dest = std::path::absolute(&backup.dest).unwrap_or_else(|_| backup.dest.clone());
    create_destination(&dest)?;
    let copied = copy_all(&config, &dest);
    if copied.is_err() {
        // Do not leave an incomplete backup; this command created the directory.
        drop(std::fs::remove_dir_all(&dest));
    }
    let manifest = copied?;
    output.print_result(&manifest, || {
        let Manifest { database, blobs, blob_bytes, .. } = &manifest;
        format!("{}: the {database} database and {blobs} blobs ({blob_bytes} bytes), verified", dest.display())
    })
}

fn create_destination(dest: &Path) -> Result {
    std::fs::DirBuilder::new().mode(0o700).create(dest).map_err(|error| {
        Failure::setup("backup_dest", format!("cannot create the directory {}: {error}", dest.display()))
            .with_hint("Name a new directory in an existing one.")
    })
}

/// Copies the database first: each blob is on disk before the event that refers to it.
fn copy_all(config: &Config, dest: &Path) -> Result<Manifest> {
    let database = match &config.database() {
        Database::Sqlite { path } => copy_sqlite(path, &dest.join("atoll.db")).map(|()| "sqlite")?,
        Database::Postgres { url } => postgres::dump_database(url, &dest.join("atoll.pgdump")).map(|()| "postgres")?,
    };
    let (blobs, blob_bytes) = blobs::copy_blobs(&config.data_dir.join("blobs"), &dest.join("blobs"))?;
    let manifest = Manifest {
        kind: "backup",
        path: dest.to_owned(),
        version: env!("CARGO_PKG_VERSION"),
        at: crate::render::time::now(),
        database,
        blobs,
        blob_bytes,
    };
    let text = serde_json::to_value(&manifest).unwrap_or_default();
    let written = std::fs::write(dest.join(MANIFEST_FILE), format!("{text}\n"));
    let synced = written.and_then(|()| std::fs::File::open(dest)).and_then(|directory| directory.sync_all());
    synced.map_err(|error| copy_failure(dest, &error))?;
    Ok(manifest)
}

fn copy_sqlite(from: &Path, to: &Path) -> Result {
    if !from.exists() {
        return Err(Failure::setup("no_database", format!("there is no database at {}", from.display()))
            .with_hint("Name the server's data directory with --data-dir, or its configuration with --config."));
    }
    let copied = atoll_store::backup::backup_sqlite(from, to).and_then(|()| atoll_store::backup::check_backup(to));
    copied.map_err(|error| {
        Failure::work("backup_failed", format!("the copy of {} failed: {error}", from.display()))
            .with_hint("Check the database with `atoll doctor`; the incomplete copy is removed.")
    })
}

fn copy_failure(path: &Path, error: &std::io::Error) -> Failure {
    Failure::work("backup_failed", format!("cannot copy {}: {error}", path.display()))
        .with_hint("Check the free space and the permissions; the incomplete copy is removed.")
}
