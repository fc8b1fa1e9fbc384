//! `atoll logs`: prints a sandbox's log in readable form.

use super::log_event::LogEvent;
use super::{EventFilter, EventSink, LogReader, find_log_client, sandbox_of};
use crate::connect::Connect;
use crate::failure::Result;
use crate::output::Output;
use crate::references::TargetRef;
use crate::render::event_paragraph;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll logs sbx_…
  atoll logs ses_… --follow
  atoll logs sbx_… --type 'agent.*' | less

--json prints the events, like `atoll events --json`.")]
pub struct Logs {
    /// Sandbox, or session (ses_…) for its newest sandbox
    id: TargetRef,
    #[command(flatten)]
    filter: EventFilter,
    #[command(flatten)]
    connect: Connect,
}

pub async fn run(logs: &Logs, output: &Output) -> Result {
    let client = find_log_client(&logs.connect, &logs.filter, output).await?;
    let sandbox = sandbox_of(&client, logs.id.resolve(&client).await?).await?;
    LogReader::new(&client, output, sandbox, &logs.filter)?.read_all(&mut ParagraphSink(output)).await
}

struct ParagraphSink<'a>(&'a Output);

impl EventSink for ParagraphSink<'_> {
    fn show_event(&mut self, event: &LogEvent) -> Result {
        if self.0.json {
            return self.0.print_object(&event.event);
        }
        let Some(paragraph) = event_paragraph::describe_event(event) else { return Ok(()) };
        paragraph.lines(self.0).iter().try_for_each(|line| self.0.print_line(line))
    }
}
