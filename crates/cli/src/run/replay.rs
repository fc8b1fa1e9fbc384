//! `atoll replay`: plays the log of a sandbox as `atoll run` showed it.

use super::progress::{AnswerMode, RunProgress};
use super::view::print_steps;
use crate::connect::Connect;
use crate::event_log::log_event::LogEvent;
use crate::event_log::sandbox_of;
use crate::failure::Result;
use crate::output::Output;
use crate::references::TargetRef;
use crate::render::time::format_duration;
use crate::run::step::ViewStep;
use crate::stored_state::ReadingClient;
use atoll_api::{EventOrder, EventsQuery};
use atoll_core::time::Timestamp;
use std::time::Duration;

/// Longer pauses of the run are shortened to this, and their length is shown.
const MAX_PAUSE: Duration = Duration::from_secs(3);
const PAGE_SIZE: i64 = 500;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll replay sbx_…
  atoll replay sbx_… --speed 10
  atoll replay ses_… --since 120

The command shows the steps at the pace of the run. Pauses of more than 3 seconds are shortened.")]
pub struct Replay {
    /// Sandbox, or session (ses_…) for its newest sandbox
    id: TargetRef,
    /// Play this many times as fast as the run
    #[arg(long, value_name = "N", default_value = "1", value_parser = parse_speed)]
    speed: f64,
    /// Start after this seq
    #[arg(long, value_name = "SEQ", default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..))]
    since: i64,
    #[command(flatten)]
    connect: Connect,
}

fn parse_speed(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(speed) if speed > 0.0 && speed.is_finite() => Ok(speed),
        Ok(_) | Err(_) => Err("expected a number above 0".to_owned()),
    }
}

pub async fn run(replay: &Replay, output: &Output) -> Result {
    let client = ReadingClient::find(&replay.connect, output).await?;
    let sandbox = sandbox_of(&client, replay.id.resolve(&client).await?).await?;
    let mut player = ReplayPlayer::new(replay.speed);
    let mut cursor = None;
    loop {
        let query = EventsQuery { limit: Some(PAGE_SIZE), cursor, order: EventOrder::Asc, ..EventsQuery::default() };
        let page = client.list_events(sandbox, &query).await?;
        for event in page.items.into_iter().map(LogEvent::from) {
            let step = player.play(&event);
            if event.event.seq > replay.since {
                show_step(&event, step, output).await?;
            }
        }
        let Some(next) = page.next_cursor else { return output.flush() };
        cursor = Some(next);
    }
}

/// One event of a replay: the pause before it and its steps.
struct ReplayStep {
    pause: Duration,
    /// The length of a shortened pause.
    skipped: Option<Duration>,
    steps: Vec<ViewStep>,
}

async fn show_step(event: &LogEvent, step: ReplayStep, output: &Output) -> Result {
    tokio::time::sleep(step.pause).await;
    if output.json {
        output.print_object(&event.event)?;
        return output.flush();
    }
    let later = step.skipped.map(|pause| ViewStep::note(&format!("{} later", format_duration(pause))));
    print_steps(&later.into_iter().chain(step.steps).collect::<Vec<_>>(), output)
}

/// Derives pauses and steps from events. Pure.
struct ReplayPlayer {
    speed: f64,
    progress: RunProgress,
    /// The time of the last event with steps.
    shown_at: Option<Timestamp>,
}

impl ReplayPlayer {
    fn new(speed: f64) -> Self {
        Self { speed, progress: RunProgress::new(AnswerMode::Past), shown_at: None }
    }

    fn play(&mut self, event: &LogEvent) -> ReplayStep {
        let steps = self.progress.apply(event);
        if steps.is_empty() {
            return ReplayStep { pause: Duration::ZERO, skipped: None, steps };
        }
        let before = self.shown_at.replace(event.event.at);
        let waited = before.map_or(Duration::ZERO, |before| event.event.at.elapsed_since(before));
        // The speed is finite and above 0, but a tiny one can exceed the longest duration.
        let pause = Duration::try_from_secs_f64(waited.as_secs_f64() / self.speed).unwrap_or(Duration::MAX);
        if pause > MAX_PAUSE {
            return ReplayStep { pause: MAX_PAUSE, skipped: Some(waited), steps };
        }
        ReplayStep { pause, skipped: None, steps }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_log::log_event::testing::event_at;
    use serde_json::json;

    #[test]
    fn keeps_the_pace_of_the_run_and_shortens_long_pauses() {
        let say = |at: &str| {
            event_at(&format!("2026-01-31T12:{at}.000000Z"), "agent.message", Some(1), &json!({"text": "x"}))
        };
        let quiet = event_at("2026-01-31T12:00:01.000000Z", "agent.usage", Some(1), &json!({}));
        let pauses = |speed: f64| -> Vec<_> {
            let mut player = ReplayPlayer::new(speed);
            let events = [say("00:00"), quiet.clone(), say("00:02"), say("10:00")];
            let steps = events.iter().map(|event| player.play(event));
            steps.map(|step| (step.pause.as_millis(), step.skipped.map(|pause| pause.as_secs()))).collect()
        };
        assert_eq!(pauses(1.0), [(0, None), (0, None), (2000, None), (3000, Some(598))]);
        assert_eq!(pauses(4.0), [(0, None), (0, None), (500, None), (3000, Some(598))]);
        assert_eq!(pauses(1000.0), [(0, None), (0, None), (2, None), (598, None)]);
        assert_eq!(pauses(f64::MIN_POSITIVE)[2], (3000, Some(2)));
    }

    #[test]
    fn validates_the_speed() {
        assert_eq!(parse_speed("0.5"), Ok(0.5));
        for text in ["0", "-1", "inf", "NaN", "fast"] {
            assert!(parse_speed(text).is_err(), "{text}");
        }
    }
}
