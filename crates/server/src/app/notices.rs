//! What a provider tells of a sandbox unasked, in the sandbox's log.

use crate::state::App;
use atoll_core::event::{NewEvent, kind};
use atoll_core::id::SandboxId;
use atoll_providers::Notice;
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
        Notice::DiskFull { used, limit, stopped } => {
            let who = match stopped {
                0 => "nobody was writing by then".to_owned(),
                1 => "the process that wrote was ended".to_owned(),
                more => format!("{more} processes that wrote were ended"),
            };
            let text = format!(
                "its files take {} MB, more than the {} MB that they may: {who}; delete something, and it can write again",
                megabytes(*used),
                megabytes(*limit),
            );
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
        let (event_type, data) = told(&Notice::DiskFull { used: 70_000_000, limit: 67_108_864, stopped: 1 });
        assert_eq!(event_type, "sandbox.disk_full");
        let text = "its files take 70 MB, more than the 68 MB that they may: the process that wrote was ended; \
                    delete something, and it can write again";
        assert_eq!(data["text"], text);
        assert_eq!((&data["used_bytes"], &data["stopped"]), (&json!(70_000_000), &json!(1)));
        let (_, data) = told(&Notice::DiskFull { used: 2, limit: 1, stopped: 3 });
        assert!(data["text"].as_str().unwrap().contains("3 processes that wrote were ended"));
    }
}
