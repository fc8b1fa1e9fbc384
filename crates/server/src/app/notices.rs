//! What a provider tells of a sandbox unasked, in the sandbox's log.

use crate::state::App;
use atoll_core::event::{NewEvent, kind};
use atoll_core::id::SandboxId;
use atoll_providers::{Kept, Notice};
use atoll_store::sandboxes;
use serde_json::{Value, json};
use std::sync::Arc;

pub async fn write_down(app: Arc<App>, id: SandboxId, notice: Notice) {
    let (event_type, data) = told(&notice);
    let written = app.write(move |work| {
        Box::pin(async move {
            let (_, mut sandbox) = work.locked(id).await?;
            if sandbox.state.is_live() {
                work.log(&mut sandbox, vec![NewEvent::system(event_type, work.now, &data)]).await?;
                sandboxes::update(work.tx, &mut sandbox).await?;
            }
            Ok(())
        })
    });
    if let Err(problem) = written.await {
        tracing::warn!(sandbox = %id, detail = %problem.detail, ?notice, "could not write down what a provider told");
    }
}

fn told(notice: &Notice) -> (&'static str, Value) {
    match notice {
        Notice::DiskFull { used, limit, kept } => {
            let (taken, most) = (megabytes(*used), megabytes(*limit));
            let again = "delete something, and it can write again";
            let text = match kept {
                Kept::Stopped(count) => {
                    let who = match count {
                        0 => "nobody was writing by then".to_owned(),
                        1 => "the process that wrote was ended".to_owned(),
                        more => format!("{more} processes that wrote were ended"),
                    };
                    format!("its files take {taken} MB, more than the {most} MB that they may: {who}; {again}")
                }
                Kept::Refused => {
                    format!("its files take {taken} of the {most} MB that they may: writing fails; {again}")
                }
                Kept::SharedFull => format!(
                    "the pool that all local sandboxes share is full, and writing fails, although this one takes only \
                     {taken} of {most} MB; delete something here or elsewhere, or enlarge the pool with local.disk_pool_gb"
                ),
            };
            let stopped = match kept {
                Kept::Stopped(count) => *count,
                Kept::Refused | Kept::SharedFull => 0,
            };
            let data = json!({ "text": text, "used_bytes": used, "limit_bytes": limit, "stopped": stopped });
            (kind::SANDBOX_DISK_FULL, data)
        }
    }
}

fn megabytes(bytes: u64) -> u64 {
    bytes.div_ceil(1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_told_in_a_sentence_and_in_figures() {
        let (event_type, data) =
            told(&Notice::DiskFull { used: 70_000_000, limit: 67_108_864, kept: Kept::Stopped(1) });
        assert_eq!(event_type, "sandbox.disk_full");
        let text = "its files take 70 MB, more than the 68 MB that they may: the process that wrote was ended; \
                    delete something, and it can write again";
        assert_eq!(data["text"], text);
        assert_eq!((&data["used_bytes"], &data["stopped"]), (&json!(70_000_000), &json!(1)));
        let (_, data) = told(&Notice::DiskFull { used: 2, limit: 1, kept: Kept::Stopped(3) });
        assert!(data["text"].as_str().unwrap().contains("3 processes that wrote were ended"));
        let (_, data) = told(&Notice::DiskFull { used: 67_000_000, limit: 67_108_864, kept: Kept::Refused });
        let text =
            "its files take 67 of the 68 MB that they may: writing fails; delete something, and it can write again";
        assert_eq!((&data["text"], &data["stopped"]), (&json!(text), &json!(0)));
        let (_, data) = told(&Notice::DiskFull { used: 1, limit: 67_108_864, kept: Kept::SharedFull });
        assert!(data["text"].as_str().unwrap().contains("enlarge the pool with local.disk_pool_gb"), "{data}");
    }
}
