//! `atoll logs`: a sandbox's log to be read from top to bottom.

use super::entry::Entry;
use super::{Reader, Show, Which, sandbox_of};
use crate::arguments::Target;
use crate::client::{Client, Connect};
use crate::failure::Result;
use crate::output::Output;
use crate::render::prose;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll logs sbx_…
  atoll logs ses_… --follow
  atoll logs sbx_… --type 'agent.*' | less

With --json it gives the events themselves, like `atoll events --json`.")]
pub struct Logs {
    /// A sandbox (sbx_…), or a session (ses_…) for its newest one
    id: Target,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    connect: Connect,
}

pub async fn run(logs: &Logs, output: &Output) -> Result {
    let client = Client::find(&logs.connect)?;
    let sandbox = sandbox_of(&client, logs.id).await?;
    Reader::new(&client, output, sandbox, &logs.which)?.read(&mut Prose(output)).await
}

struct Prose<'a>(&'a Output);

impl Show for Prose<'_> {
    fn entry(&mut self, entry: &Entry) -> Result {
        if self.0.json {
            return self.0.raw_object(&entry.raw);
        }
        let Some(paragraph) = prose::of(entry) else { return Ok(()) };
        paragraph.lines(self.0).iter().try_for_each(|line| self.0.line(line))
    }
}
