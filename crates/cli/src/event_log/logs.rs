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
  atoll logs sbx_… --full

--json prints the events, like `atoll events --json`.")]
pub struct Logs {
    /// Sandbox, or session (ses_…) for its newest sandbox
    id: TargetRef,
    /// Print long texts whole
    #[arg(long)]
    full: bool,
    #[command(flatten)]
    filter: EventFilter,
    #[command(flatten)]
    connect: Connect,
}

pub async fn run(logs: &Logs, output: &Output) -> Result {
    let client = find_log_client(&logs.connect, &logs.filter, output).await?;
    let sandbox = sandbox_of(&client, logs.id.resolve(&client).await?).await?;
    let reader = LogReader::new(&client, output, sandbox, &logs.filter)?.with_whole_texts(logs.full && !output.json);
    reader.read_all(&mut ParagraphSink { output, is_full: logs.full }).await
}

struct ParagraphSink<'a> {
    output: &'a Output,
    is_full: bool,
}

impl EventSink for ParagraphSink<'_> {
    fn show_event(&mut self, event: &LogEvent) -> Result {
        let output = self.output;
        if output.json {
            return output.print_object(&event.event);
        }
        let Some(paragraph) = event_paragraph::describe_event(event) else { return Ok(()) };
        let most = if self.is_full { usize::MAX } else { event_paragraph::MAX_BODY_LINES };
        paragraph.lines(output, most).iter().try_for_each(|line| output.print_line(line))
    }
}
