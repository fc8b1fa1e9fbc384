//! Where the work is done: on a server that runs, or on one inside this process.

use crate::client::{Client, Connect, recorded};
use crate::embedded::{Embedded, Prepared};
use crate::failure::{Failure, Result};
use atoll_config::Config;
use atoll_core::id::SandboxId;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

/// Where it will be, decided before this process has threads: a server inside needs that.
pub enum Choice {
    Running(Connect),
    Inside {
        prepared: Box<Prepared>,
        /// Why the server that the data directory names was not taken.
        instead_of: Option<Failure>,
    },
}

impl Choice {
    /// The server that is named; else the one of the data directory; else one inside.
    pub fn make(connect: &Connect, config: &Config) -> Result<Self> {
        if connect.server.is_some() {
            return Ok(Self::Running(connect.clone()));
        }
        let connect = Connect { data_dir: Some(config.data_dir.clone()), ..connect.clone() };
        let mut instead_of = None;
        if recorded(&config.data_dir).is_some() {
            match answers(&connect)? {
                Ok(()) => return Ok(Self::Running(connect)),
                Err(failure) => instead_of = Some(failure),
            }
        }
        Ok(Self::Inside { prepared: Box::new(Prepared::new(config)), instead_of })
    }
}

/// Whether the server answers and knows this token. Its own small runtime is gone afterwards.
fn answers(connect: &Connect) -> Result<Result<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::setup("runtime", format!("can't start: {error}")))?;
    Ok(runtime.block_on(async {
        let client = Client::find(connect)?;
        client.get("/projects", &[("limit", "1".to_owned())]).await.map(drop)
    }))
}

pub struct Place {
    pub client: Arc<Client>,
    inside: Option<Embedded>,
}

impl Place {
    pub async fn open(choice: Choice) -> Result<Self> {
        let (prepared, instead_of) = match choice {
            Choice::Running(connect) => return Ok(Self { client: Arc::new(Client::find(&connect)?), inside: None }),
            Choice::Inside { prepared, instead_of } => (prepared, instead_of),
        };
        match prepared.start().await {
            Ok(inside) => Ok(Self { client: Arc::new(inside.client()?), inside: Some(inside) }),
            // A server holds the directory after all: why it could not be talked to says more.
            Err(failure) if is(&failure, "locked") => {
                Err(instead_of.filter(|why| !is(why, "no_server")).unwrap_or(failure))
            }
            Err(failure) => Err(failure),
        }
    }

    pub const fn is_inside(&self) -> bool {
        self.inside.is_some()
    }

    /// Ends the server inside, if there is one, when nobody else needs it.
    pub async fn leave(self, ended: Option<SandboxId>, say_who_else: impl Fn(usize)) {
        const GLANCE: Duration = Duration::from_millis(500);
        let Some(inside) = self.inside else { return };
        let mut told = 0;
        loop {
            let others = others(&self.client, ended).await;
            if others == 0 {
                break;
            }
            if others != told {
                say_who_else(others);
                told = others;
            }
            tokio::time::sleep(GLANCE).await;
        }
        inside.stop(&self.client, ended.as_slice()).await;
    }

    /// Ends the server inside, and with it the sandbox, which nobody would look after any more. What
    /// can't be done in time, the next server does.
    pub async fn abandon(self, sandbox: Option<SandboxId>, take: bool) {
        const PATIENCE: Duration = Duration::from_secs(30);
        let Some(inside) = self.inside else { return };
        if let Some(sandbox) = sandbox {
            drop(tokio::time::timeout(PATIENCE, ended(&self.client, sandbox, take)).await);
        }
        inside.stop(&self.client, sandbox.as_slice()).await;
    }
}

async fn ended(client: &Client, sandbox: SandboxId, take: bool) -> Result {
    const GLANCE: Duration = Duration::from_millis(100);
    let path = format!("/sandboxes/{sandbox}");
    let results = if take { "take" } else { "discard" };
    client.post(&format!("{path}/stop"), &json!({ "results": results })).await?;
    while !matches!(client.get(&path, &[]).await?["state"].as_str(), Some("completed" | "failed")) {
        tokio::time::sleep(GLANCE).await;
    }
    Ok(())
}

fn is(failure: &Failure, code: &str) -> bool {
    matches!(failure, Failure::Told(told) if told.code == code)
}

/// How many runs of others are under way on this server: a second `atoll run` finds the first one's.
async fn others(client: &Client, own: Option<SandboxId>) -> usize {
    let own = own.map(|id| id.to_string());
    let mut count = 0;
    for state in ["pending", "creating", "running", "completing"] {
        let Ok((rows, _)) = client.list("/sandboxes", &[("state", state.to_owned())], Some(200)).await else {
            return 0;
        };
        let others = rows.iter().filter(|row| {
            let id = row["id"].as_str();
            // One whose worker somebody starts by hand, or that is kept, may be there for ever.
            id != own.as_deref() && row["end"] == "when_done" && row["provider"] != "external"
        });
        count += others.count();
    }
    count
}
