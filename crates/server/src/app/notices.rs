//! Writes a provider's notices about a sandbox into the sandbox's event log.

use crate::state::App;
use atoll_api::events::{self, DiskFull, EventData};
use atoll_core::id::SandboxId;
use atoll_core::size::format_bytes;
use atoll_providers::{DiskLimitEffect, SandboxNotice};
use atoll_store::sandboxes;
use std::sync::Arc;

pub async fn record_notice(app: Arc<App>, id: SandboxId, notice: SandboxNotice) {
    record(&app, id, notice, false).await;
}

/// Like `record_notice`, also for a sandbox that has ended.
pub async fn record_notice_of_any(app: &App, id: SandboxId, notice: SandboxNotice) {
    record(app, id, notice, true).await;
}

async fn record(app: &App, id: SandboxId, notice: SandboxNotice, also_ended: bool) {
    let data = notice_data(&notice);
    let written = app.write(async move |work| {
        let (_, mut sandbox) = work.lock_sandbox(id).await?;
        if also_ended || sandbox.state.is_live() {
            work.log(&mut sandbox, vec![data.into_event(work.now)]).await?;
            sandboxes::update_sandbox(work.tx, &mut sandbox).await?;
        }
        Ok(())
    });
    if let Err(problem) = written.await {
        tracing::warn!(sandbox = %id, detail = %problem.detail, ?notice, "failed to store a provider's notice");
    }
}

fn notice_data(notice: &SandboxNotice) -> EventData {
    match notice {
        SandboxNotice::Text(text) => {
            EventData::SandboxNotice(events::SandboxNotice { text: text.clone(), routine: false })
        }
        SandboxNotice::DiskFull { used, limit, effect } => {
            let (used_size, most) = (format_bytes(*used), format_bytes(*limit));
            let again = "delete files so that it can write again";
            let text = match effect {
                DiskLimitEffect::WritersKilled(count) => {
                    let who = match count {
                        0 => "no process was writing any more".to_owned(),
                        1 => "the writing process was killed".to_owned(),
                        more => format!("{more} writing processes were killed"),
                    };
                    format!("its files use {used_size} of {most}: {who}; {again}")
                }
                DiskLimitEffect::WritesRefused => {
                    format!("its files use {used_size} of {most}: writes fail; {again}")
                }
                DiskLimitEffect::PoolFull => format!(
                    "the disk pool of the local sandboxes is full: writes fail, although this sandbox uses only \
                     {used_size} of {most}; delete files here or elsewhere, or enlarge the pool with local.disk_pool_gb"
                ),
            };
            let stopped = match effect {
                DiskLimitEffect::WritersKilled(count) => *count,
                DiskLimitEffect::WritesRefused | DiskLimitEffect::PoolFull => 0,
            };
            EventData::SandboxDiskFull(DiskFull {
                text,
                used_bytes: *used,
                limit_bytes: *limit,
                stopped: stopped.into(),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk_full(used: u64, limit: u64, effect: DiskLimitEffect) -> DiskFull {
        match notice_data(&SandboxNotice::DiskFull { used, limit, effect }) {
            EventData::SandboxDiskFull(data) => data,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_full_disk_event_has_a_text_and_figures() {
        let data = disk_full(70_000_000, 67_108_864, DiskLimitEffect::WritersKilled(1));
        let text = "its files use 66.8 MiB of 64.0 MiB: the writing process was killed; \
                    delete files so that it can write again";
        assert_eq!(data.text, text);
        assert_eq!((data.used_bytes, data.stopped), (70_000_000, 1));
        assert!(disk_full(2, 1, DiskLimitEffect::WritersKilled(3)).text.contains("3 writing processes were killed"));
        let data = disk_full(67_000_000, 67_108_864, DiskLimitEffect::WritesRefused);
        let text = "its files use 63.9 MiB of 64.0 MiB: writes fail; delete files so that it can write again";
        assert_eq!((data.text.as_str(), data.stopped), (text, 0));
        let data = disk_full(1, 67_108_864, DiskLimitEffect::PoolFull);
        assert!(data.text.contains("enlarge the pool with local.disk_pool_gb"), "{}", data.text);
    }
}
