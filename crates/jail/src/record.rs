//! What a sandbox's directory says about it, so that the next launcher finds it again.
//!
//! `record.json` is written when the sandbox is prepared and replaced when its files are sealed; `life.json` is written
//! each time a worker starts, before its first instruction. Nothing is flushed to the disk: after a crash of the machine no process lives, and files of the
//! workspace are no safer than these.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::cgroup::Leaf;
use crate::ids::Map;
use crate::layers::{Layers, Stack};
use crate::place::{Enforced, Exit, Place, Spec};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub spec: Spec,
    pub map: Map,
    pub enforced: Enforced,
    pub stack: Stack,
}

/// A worker that was started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Life {
    pub process: Identity,
    pub worker: Leaf,
    pub agent: Leaf,
    /// The `/etc` that it shows.
    pub template: PathBuf,
}

/// A process, told from any other that had or will have its number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub boot: String,
    pub pid: i32,
    /// In ticks of the clock since boot.
    pub started: u64,
    /// The inode of its pid namespace.
    pub namespace: u64,
}

impl Identity {
    pub fn of(pid: i32) -> io::Result<Self> {
        Ok(Self {
            boot: boot()?,
            pid,
            started: started(&fs::read_to_string(format!("/proc/{pid}/stat"))?).ok_or(io::ErrorKind::InvalidData)?,
            namespace: fs::metadata(format!("/proc/{pid}/ns/pid"))?.ino(),
        })
    }

    /// A hold on the process, if it is still there and the same. The hold comes first: with it the number can't go to
    /// another process unseen.
    pub fn find(&self) -> Option<OwnedFd> {
        let pid = rustix::process::Pid::from_raw(self.pid)?;
        let hold = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()?;
        (Self::of(self.pid).ok()? == *self).then_some(hold)
    }
}

fn boot() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// The start time in a line of `/proc/<pid>/stat`: the name before it is the process's own choice and may hold
/// anything, so fields are counted from its end.
fn started(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// A sandbox's directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Home {
    pub directory: PathBuf,
}

impl Home {
    pub fn new(sandboxes: &Path, name: &str) -> Self {
        Self { directory: sandboxes.join(name) }
    }

    pub fn temporary(&self, layers: &Layers, stack: &Stack) -> PathBuf {
        match &stack.volume {
            Some(_) => layers.temporary(&stack.top),
            None => self.directory.join("tmp"),
        }
    }

    pub fn spool(&self, layers: &Layers, stack: &Stack) -> PathBuf {
        match &stack.volume {
            Some(volume) => layers.layer(&volume.spool).join("spool"),
            None => self.directory.join("spool"),
        }
    }

    pub fn link(&self) -> PathBuf {
        self.directory.join("link")
    }

    pub fn log(&self) -> PathBuf {
        self.directory.join("worker.log")
    }

    fn record(&self) -> PathBuf {
        self.directory.join("record.json")
    }

    /// The record of a sandbox whose directories aren't all made yet.
    fn draft(&self) -> PathBuf {
        self.directory.join("record.new")
    }

    fn life(&self) -> PathBuf {
        self.directory.join("life.json")
    }

    /// Says that the sandbox is paused, where no cgroup does.
    pub fn paused(&self) -> PathBuf {
        self.directory.join("paused")
    }

    pub fn read(&self) -> Option<Record> {
        read(&self.record())
    }

    /// Under which ids its files can be removed, also when it is half made.
    pub fn read_map(&self) -> Option<Map> {
        self.read().or_else(|| read(&self.draft())).map(|record| record.map)
    }

    pub fn write_draft(&self, record: &Record) -> io::Result<()> {
        fs::write(self.draft(), serde_json::to_vec(record)?)
    }

    /// Puts another record in the place of the one that is there: either is whole at any time.
    pub fn replace(&self, record: &Record) -> io::Result<()> {
        self.write_draft(record)?;
        self.confirm()
    }

    /// From now on the sandbox is whole.
    pub fn confirm(&self) -> io::Result<()> {
        fs::rename(self.draft(), self.record())
    }

    pub fn read_life(&self) -> Option<Life> {
        read(&self.life())
    }

    /// In place, as the process it tells of waits until it is written and ends if its launcher does before that.
    pub fn write_life(&self, life: &Life) -> io::Result<()> {
        fs::write(self.life(), serde_json::to_vec(life)?)
    }

    pub fn forget_life(&self) {
        // If it stays, the process in it is found dead.
        let _ = OpenOptions::new().write(true).truncate(true).open(self.life());
    }

    pub fn place(&self, record: &Record, layers: &Layers, alive: bool, exit: Option<Exit>) -> Place {
        Place {
            name: record.spec.name.clone(),
            labels: record.spec.labels.clone(),
            limits: record.spec.limits,
            dir: self.directory.clone(),
            socket: self.link().join("sock"),
            workspace: layers.workspace(&record.stack.top),
            image: record.stack.image.as_ref().map(|base| base.name.clone()),
            spool: self.spool(layers, &record.stack),
            log: self.log(),
            alive,
            paused: false,
            unprotected: Vec::new(),
            started: self.life().exists(),
            spooled: fs::read_dir(self.spool(layers, &record.stack)).is_ok_and(|mut entries| entries.next().is_some()),
            exit,
            range: record.map.range(),
            enforced: record.enforced,
        }
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_itself_and_no_other() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let identity = Identity::of(child.id().cast_signed()).unwrap();
        assert!(identity.find().is_some());
        assert!(Identity { started: identity.started + 1, ..identity.clone() }.find().is_none());
        assert!(Identity { namespace: 1, ..identity.clone() }.find().is_none());
        assert!(Identity { boot: "another".into(), ..identity.clone() }.find().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(identity.find().is_none());
    }

    #[test]
    fn a_name_with_brackets_does_not_hide_the_start_time() {
        let fields: Vec<String> =
            (3..=52).map(|field| if field == 22 { "777".into() } else { "1".to_string() }).collect();
        assert_eq!(started(&format!("1 (a) 1 (b)) {}", fields.join(" "))), Some(777));
    }
}
