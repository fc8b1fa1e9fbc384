//! Faults in the server's environment: a full disk, a database that restarts, kills, a second server, a shutdown.

mod full_disk;
mod kills_while_creating;
mod leases;
mod postgres_restarts;
mod server_shutdown;

use atoll_tests::process::ServerProcess;
use std::path::Path;

/// Starts a server process with its data in `dir/data`, these configuration lines and no rate limits.
fn start_server(dir: &Path, config: &str, arguments: &[String]) -> ServerProcess {
    let data = dir.join("data");
    std::fs::create_dir_all(&data).unwrap();
    let file = dir.join("atoll.yaml");
    let limits = "limits: {worker_requests_per_minute: 0, messages_per_minute: 0, writes_per_minute: 0}\n";
    std::fs::write(&file, format!("{limits}{config}")).unwrap();
    let mut all = vec!["--config".to_owned(), file.to_str().unwrap().to_owned()];
    all.extend_from_slice(arguments);
    ServerProcess::start(&data, &all)
}

fn create_temp_dir() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("atoll-faults-").tempdir().unwrap()
}
