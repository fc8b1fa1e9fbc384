//! `atoll events`: prints a sandbox's events, one per line.

use super::log_event::LogEvent;
use super::{EventFilter, EventSink, LogReader, find_log_client, sandbox_of};
use crate::connect::Connect;
use crate::failure::Result;
use crate::output::Output;
use crate::references::TargetRef;
use crate::render::event_line;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll events sbx_… --follow
  atoll events sbx_… --type 'agent.*' --limit 20
  atoll events sbx_… --since 100 --json | jq -c .data

--follow reconnects after lost connections and server restarts, without gaps or repeats.
It stops when the sandbox has ended.")]
pub struct Events {
    /// Sandbox, or session (ses_…) for its newest sandbox
    id: TargetRef,
    #[command(flatten)]
    filter: EventFilter,
    #[command(flatten)]
    connect: Connect,
}

pub async fn run(events: &Events, output: &Output) -> Result {
    let client = find_log_client(&events.connect, &events.filter, output).await?;
    let sandbox = sandbox_of(&client, events.id.resolve(&client).await?).await?;
    LogReader::new(&client, output, sandbox, &events.filter)?.read_all(&mut LineSink(output)).await
}

struct LineSink<'a>(&'a Output);

impl EventSink for LineSink<'_> {
    fn show_event(&mut self, event: &LogEvent) -> Result {
        if self.0.json {
            return self.0.print_object(&event.event);
        }
        self.0.print_line(&event_line::format_event(event, self.0))
    }
}
