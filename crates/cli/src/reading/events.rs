//! `atoll events`: a sandbox's log, an event a line.

use super::entry::Entry;
use super::{Reader, Show, Which, sandbox_of};
use crate::arguments::Target;
use crate::client::{Client, Connect};
use crate::failure::Result;
use crate::output::Output;
use crate::render::line;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll events sbx_… --follow
  atoll events sbx_… --type 'agent.*' --limit 20
  atoll events sbx_… --since 100 --json | jq -c .data

Following survives lost connections and restarts of the server: nothing is missed or shown twice.
It ends when the sandbox has ended and its log is quiet.")]
pub struct Events {
    /// A sandbox (sbx_…), or a session (ses_…) for its newest one
    id: Target,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    connect: Connect,
}

pub async fn run(events: &Events, output: &Output) -> Result {
    let client = Client::find(&events.connect)?;
    let sandbox = sandbox_of(&client, events.id).await?;
    Reader::new(&client, output, sandbox, &events.which)?.read(&mut Lines(output)).await
}

struct Lines<'a>(&'a Output);

impl Show for Lines<'_> {
    fn entry(&mut self, entry: &Entry) -> Result {
        if self.0.json { self.0.raw_object(&entry.raw) } else { self.0.line(&line::of(entry, self.0)) }
    }
}
