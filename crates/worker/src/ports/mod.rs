//! Reports the ports on which programs of the sandbox listen.
//!
//! One task reads the kernel's table at a bounded rate. A port counts as open once two scans in a row found it, so that
//! ports that tests open for a moment cause no events. While no program runs in the sandbox, the task sleeps.

mod listening;
mod port_changes;
mod programs;

pub use programs::main;

use crate::environment::Environment;
use crate::spawner::Spawner;
use atoll_api::events::{EventData, PortClosed, PortOpened};
use port_changes::PortChanges;
use programs::ProgramFinder;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

const SCAN_INTERVAL: Duration = Duration::from_secs(1);
/// Scanning takes at most this fraction of a processor.
const MAX_DUTY: u32 = 50;
/// After a scan with changes, the next one is this much later per change: on average one event a second at most.
const CHANGE_INTERVAL: Duration = Duration::from_secs(1);
/// Agents' own servers, which Atoll starts and talks to.
const AGENT_SERVERS: [&str; 1] = ["opencode"];

/// What the task uses.
#[derive(Debug, Clone)]
pub struct PortTools {
    pub spawner: Spawner,
    pub environment: Arc<Environment>,
    /// Path of the worker's own program in the sandbox.
    pub worker: PathBuf,
}

/// True if this process is in a network of its own: one that only has a loopback interface. Elsewhere, ports belong to
/// other programs, so the worker neither reports them nor connects to them.
pub fn has_own_network() -> bool {
    let Ok(table) = std::fs::read_to_string("/proc/self/net/dev") else { return false };
    table.lines().skip(2).all(|line| line.split(':').next().is_some_and(|name| name.trim() == "lo"))
}

/// Starts the task, and returns its reports as events. Nothing is reported in a foreign network.
pub fn watch_ports(tools: PortTools) -> mpsc::Receiver<Vec<EventData>> {
    let (sender, reports) = mpsc::channel(1);
    if has_own_network() {
        tokio::spawn(scan_repeatedly(tools, sender));
    }
    reports
}

/// True if processes other than this one and its spawner run, or if the worker cannot tell.
fn has_programs() -> bool {
    let Ok(entries) = std::fs::read_dir("/proc") else { return true };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())).nth(2).is_some()
}

async fn scan_repeatedly(tools: PortTools, sender: mpsc::Sender<Vec<EventData>>) {
    let finder = ProgramFinder(tools);
    let mut changes = PortChanges::default();
    let mut pause = SCAN_INTERVAL;
    loop {
        sleep(pause).await;
        let began = Instant::now();
        let Ok(found) = listening::read_ports() else { continue };
        pause = SCAN_INTERVAL.max(began.elapsed() * MAX_DUTY);
        let change = changes.apply_scan(&found);
        if change.opened.is_empty() && change.closed.is_empty() {
            if found.is_empty() && !has_programs() {
                finder.0.spawner.wait_for_program_start().await;
            }
            continue;
        }
        let names = finder.find_programs(change.opened.iter().flat_map(|(_, inodes)| inodes.iter().copied())).await;
        let mut events: Vec<EventData> =
            change.closed.into_iter().map(|port| EventData::PreviewPortClosed(PortClosed { port })).collect();
        for (port, inodes) in change.opened {
            let program = inodes.iter().find_map(|inode| names.get(inode)).cloned();
            if program.as_deref().is_some_and(|name| AGENT_SERVERS.contains(&name)) {
                changes.ignore_port(port);
            } else {
                events.push(EventData::PreviewPortOpened(PortOpened { port, program }));
            }
        }
        pause = pause.max(CHANGE_INTERVAL * u32::try_from(events.len()).unwrap_or(u32::MAX));
        // The executor takes reports only while there is room for events.
        if !events.is_empty() && sender.send(events).await.is_err() {
            return;
        }
    }
}
