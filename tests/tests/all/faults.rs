//! Faults of what is around a server: a full disk, a database that restarts, a second server, the end.

mod creating;
mod disk;
mod ends;
mod leases;
mod postgres;

use atoll_tests::process::ServerProcess;
use std::path::Path;
use std::time::Duration;

/// For what must come in the end, however slow the machine is.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server process with its data in `dir/data`, and these lines in its configuration beside those
/// that lift all limits.
fn serve(dir: &Path, config: &str, arguments: &[String]) -> ServerProcess {
    let data = dir.join("data");
    std::fs::create_dir_all(&data).unwrap();
    let file = dir.join("atoll.yaml");
    let limits = "limits: {worker_requests_per_minute: 0, messages_per_minute: 0, writes_per_minute: 0}\n";
    std::fs::write(&file, format!("{limits}{config}")).unwrap();
    let mut all = vec!["--config".to_owned(), file.to_str().unwrap().to_owned()];
    all.extend_from_slice(arguments);
    ServerProcess::start(&data, &all)
}

fn temporary() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("atoll-faults-").tempdir().unwrap()
}
