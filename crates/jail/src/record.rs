//! A sandbox's directory and the records in it, by which the next launcher adopts it.
//!
//! `record.json` is written when the sandbox is prepared and replaced when its layers are sealed; `life.json` is
//! written each time a worker starts, before its first instruction. Neither is synced to disk: after a crash of the
//! host no process exists, and the workspace's files are not synced either.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::cgroup::CgroupLeaf;
use crate::id_ranges::IdMap;
use crate::layers::{LayerStack, LayerStore};
use crate::sandbox::{EnforcedLimits, Exit, SandboxInfo, SandboxSpec};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SandboxRecord {
    pub spec: SandboxSpec,
    pub map: IdMap,
    pub enforced: EnforcedLimits,
    pub stack: LayerStack,
}

/// A started worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WorkerRecord {
    pub process: ProcessIdentity,
    pub worker: CgroupLeaf,
    pub agent: CgroupLeaf,
    /// The `/etc` template that it uses.
    pub template: PathBuf,
}

/// Identifies a process even if its pid is reused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessIdentity {
    pub boot: String,
    pub pid: i32,
    /// Start time, in clock ticks since boot.
    pub started: u64,
    /// Inode of its pid namespace.
    pub namespace: u64,
}

impl ProcessIdentity {
    pub fn read_from_proc(pid: i32) -> io::Result<Self> {
        Ok(Self {
            boot: read_boot_id()?,
            pid,
            started: parse_start_time(&fs::read_to_string(format!("/proc/{pid}/stat"))?)
                .ok_or(io::ErrorKind::InvalidData)?,
            namespace: fs::metadata(format!("/proc/{pid}/ns/pid"))?.ino(),
        })
    }

    /// Opens a pidfd if the same process still exists. The pidfd comes first, so that the pid cannot be reused during
    /// the check.
    pub fn open_if_same(&self) -> Option<OwnedFd> {
        let pid = rustix::process::Pid::from_raw(self.pid)?;
        let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()?;
        (Self::read_from_proc(self.pid).ok()? == *self).then_some(pidfd)
    }
}

fn read_boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// Parses the start time in `/proc/<pid>/stat`. The process name may contain anything, so fields are counted from its
/// closing bracket.
fn parse_start_time(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// A sandbox's directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SandboxDir {
    pub directory: PathBuf,
}

impl SandboxDir {
    pub fn new(sandboxes: &Path, name: &str) -> Self {
        Self { directory: sandboxes.join(name) }
    }

    pub fn tmp_dir(&self, layers: &LayerStore, stack: &LayerStack) -> PathBuf {
        match &stack.volume {
            Some(_) => layers.tmp_dir(&stack.top),
            None => self.directory.join("tmp"),
        }
    }

    pub fn spool_dir(&self, layers: &LayerStore, stack: &LayerStack) -> PathBuf {
        match &stack.volume {
            Some(volume) => layers.layer_dir(&volume.spool).join("spool"),
            None => self.directory.join("spool"),
        }
    }

    pub fn socket_dir(&self) -> PathBuf {
        self.directory.join("link")
    }

    pub fn log_path(&self) -> PathBuf {
        self.directory.join("worker.log")
    }

    fn record_path(&self) -> PathBuf {
        self.directory.join("record.json")
    }

    /// The record of a sandbox that is not complete yet.
    fn draft_path(&self) -> PathBuf {
        self.directory.join("record.new")
    }

    fn worker_record_path(&self) -> PathBuf {
        self.directory.join("life.json")
    }

    /// Marks the sandbox as paused where no freezer does.
    pub fn pause_marker(&self) -> PathBuf {
        self.directory.join("paused")
    }

    pub fn read_record(&self) -> Option<SandboxRecord> {
        read_json(&self.record_path())
    }

    /// Reads the id map for removing its files, even if the sandbox is incomplete.
    pub fn read_map(&self) -> Option<IdMap> {
        self.read_record().or_else(|| read_json(&self.draft_path())).map(|record| record.map)
    }

    pub fn write_draft(&self, record: &SandboxRecord) -> io::Result<()> {
        fs::write(self.draft_path(), serde_json::to_vec(record)?)
    }

    /// Replaces the record atomically.
    pub fn replace_record(&self, record: &SandboxRecord) -> io::Result<()> {
        self.write_draft(record)?;
        self.commit_draft()
    }

    /// Makes the draft the record: the sandbox is complete.
    pub fn commit_draft(&self) -> io::Result<()> {
        fs::rename(self.draft_path(), self.record_path())
    }

    pub fn read_worker_record(&self) -> Option<WorkerRecord> {
        read_json(&self.worker_record_path())
    }

    /// Not atomic: the worker waits until this is written and exits if the launcher ends before.
    pub fn write_worker_record(&self, worker_record: &WorkerRecord) -> io::Result<()> {
        fs::write(self.worker_record_path(), serde_json::to_vec(worker_record)?)
    }

    pub fn clear_worker_record(&self) {
        // A stale record is harmless: its process no longer exists.
        let _ = OpenOptions::new().write(true).truncate(true).open(self.worker_record_path());
    }

    pub fn to_info(&self, record: &SandboxRecord, layers: &LayerStore, alive: bool, exit: Option<Exit>) -> SandboxInfo {
        SandboxInfo {
            name: record.spec.name.clone(),
            labels: record.spec.labels.clone(),
            limits: record.spec.limits,
            dir: self.directory.clone(),
            worker_socket: self.socket_dir().join("sock"),
            workspace: layers.workspace_dir(&record.stack.top),
            image: record.stack.image.as_ref().map(|base| base.name.clone()),
            cache: record.spec.cache.clone(),
            spool: self.spool_dir(layers, &record.stack),
            log: self.log_path(),
            is_alive: alive,
            is_paused: false,
            unprotected: Vec::new(),
            has_fixed_dirs: layers.has_fixed_dirs(&record.stack),
            seals_fix_dirs: false,
            was_started: self.worker_record_path().exists(),
            has_spool: fs::read_dir(self.spool_dir(layers, &record.stack))
                .is_ok_and(|mut entries| entries.next().is_some()),
            exit,
            id_range: record.map.exclusive_range(),
            enforced: record.enforced,
        }
    }
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::IdMapKind;

    #[test]
    fn identity_matches_only_the_same_process() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let identity = ProcessIdentity::read_from_proc(child.id().cast_signed()).unwrap();
        assert!(identity.open_if_same().is_some());
        assert!(ProcessIdentity { started: identity.started + 1, ..identity.clone() }.open_if_same().is_none());
        assert!(ProcessIdentity { namespace: 1, ..identity.clone() }.open_if_same().is_none());
        assert!(ProcessIdentity { boot: "another".into(), ..identity.clone() }.open_if_same().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(identity.open_if_same().is_none());
    }

    /// A sandbox outlives its launcher, so records of earlier versions must stay readable.
    #[test]
    fn reads_and_writes_the_stored_names() {
        let record = r#"{"spec":{"name":"a","labels":{},"limits":{"memory_bytes":1,"cpu_milli":2,"pids":3,"open_files":4,"worker_memory_bytes":5,"disk_bytes":6},"hostname":"h","image":null,"snapshot":null,"protected":["p"],"programs":[{"from":"/x","at":"y"}]},"map":{"ids":"own","users":[{"inside":0,"outside":7,"count":8}],"groups":[]},"enforced":{"memory":"enforced","cpu":"no","pids":"per_process","open_files":"per_process","disk":"watched","ids":"shared"},"stack":{"top":"t","below":["b"],"image":{"name":"i","layer":"l"},"volume":{"beside":-9,"spool":"s"},"uncounted":0}}"#;
        let parsed: SandboxRecord = serde_json::from_str(record).unwrap();
        assert_eq!(serde_json::to_string(&parsed).unwrap(), record);
        let before_caches = record.replace(r#","uncounted":0"#, "");
        assert_eq!(serde_json::from_str::<SandboxRecord>(&before_caches).unwrap().stack, parsed.stack);
        let leaf = r#"{"directories":["/g"],"born_into":true,"memory":"/m","peak":null,"oom":null,"cpu":{"Nanoseconds":"/c"},"pids":null,"freezer":{"Version1":"/f"},"confined":{"file":"/cpus","to":[0,2]}}"#;
        let worker = format!(
            r#"{{"process":{{"boot":"x","pid":1,"started":2,"namespace":3}},"worker":{leaf},"agent":{leaf},"template":"/e"}}"#
        );
        let parsed: WorkerRecord = serde_json::from_str(&worker).unwrap();
        assert_eq!(serde_json::to_string(&parsed).unwrap(), worker);
        for (kind, stored) in [(IdMapKind::CommonRange, "\"common\""), (IdMapKind::SingleId, "\"single\"")] {
            assert_eq!(serde_json::to_string(&kind).unwrap(), stored);
        }
        let snapshot = r#"{"name":"s","created_at":1,"layers":["a"],"image":null,"beside":5}"#;
        let parsed: crate::catalog::SnapshotRecord = serde_json::from_str(snapshot).unwrap();
        assert_eq!(serde_json::to_string(&parsed).unwrap(), snapshot);
    }

    #[test]
    fn parses_the_start_time_after_a_name_with_brackets() {
        let fields: Vec<String> =
            (3..=52).map(|field| if field == 22 { "777".into() } else { "1".to_string() }).collect();
        assert_eq!(parse_start_time(&format!("1 (a) 1 (b)) {}", fields.join(" "))), Some(777));
    }
}
