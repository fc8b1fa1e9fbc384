//! Options of a launcher.

use std::path::PathBuf;
use std::sync::Arc;

use crate::error::Error;
use crate::launcher_spawner::LauncherSpawner;
use crate::server_user::ServerUser;
use crate::wire::Settings;

#[derive(Debug, Clone)]
pub struct LauncherOptions {
    /// The program that runs [`crate::launcher_main`] when given `args`; normally `/proc/self/exe`.
    pub exe: PathBuf,
    pub args: Vec<String>,
    /// The launcher's whole environment.
    pub env: Vec<(String, String)>,
    /// Sandboxes are in its subdirectory `sandboxes`.
    pub data_dir: PathBuf,
    /// The worker binary on the host.
    pub worker_binary: PathBuf,
    /// First id of the id ranges for root's sandboxes.
    pub id_base: u32,
    /// The home directory whose known tool directories sandboxes can see.
    pub home: Option<PathBuf>,
    /// More directories that sandboxes can see, read-only at the same path.
    pub tool_dirs: Vec<PathBuf>,
    /// Names the cgroups.
    pub deployment: String,
    /// Size of the disk pool for sandboxes' files, in bytes; only for root.
    pub disk_pool_bytes: Option<u64>,
    /// The disk that a probe examines; by default the data directory's.
    pub probed_disk: Option<PathBuf>,
    /// The server's user, if it differs from the launcher's.
    pub server_user: Option<ServerUser>,
    /// Starts launchers for a server that gave up root; the options above are then fixed already.
    pub spawner: Option<Arc<LauncherSpawner>>,
}

impl LauncherOptions {
    pub const DEFAULT_ID_BASE: u32 = 600_000_000;

    pub fn new(data_dir: impl Into<PathBuf>, worker: impl Into<PathBuf>, deployment: impl Into<String>) -> Self {
        Self {
            exe: "/proc/self/exe".into(),
            args: vec!["launcher".to_owned()],
            env: Vec::new(),
            data_dir: data_dir.into(),
            worker_binary: worker.into(),
            id_base: Self::DEFAULT_ID_BASE,
            home: std::env::home_dir(),
            tool_dirs: Vec::new(),
            deployment: deployment.into(),
            disk_pool_bytes: None,
            probed_disk: None,
            server_user: None,
            spawner: None,
        }
    }

    pub(crate) fn to_settings(&self) -> Result<Settings, Error> {
        let absolute = |path: &PathBuf| {
            std::path::absolute(path)
                .map_err(|error| Error::LauncherStartFailed { path: path.clone(), source: error.into() })
        };
        Ok(Settings {
            data_dir: absolute(&self.data_dir)?,
            worker_binary: absolute(&self.worker_binary)?,
            id_base: self.id_base,
            home: self.home.clone(),
            tool_dirs: self.tool_dirs.clone(),
            deployment: self.deployment.clone(),
            pool_bytes: self.disk_pool_bytes,
            probed_dir: absolute(self.probed_disk.as_ref().unwrap_or(&self.data_dir))?,
            server_user: self.server_user,
        })
    }
}
