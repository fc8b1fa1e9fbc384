//! Describes the steps of continuous mode. Pure.

use atoll_api::events::EventData;

/// One line; `None` for events that another line covers.
pub fn describe_step(data: &EventData) -> Option<String> {
    Some(match data {
        EventData::ContinuousStarted(settings) => {
            let required = settings.require.iter().map(|requirement| requirement.as_str());
            let names: Vec<_> = required.chain(settings.checks.iter().map(String::as_str)).collect();
            format!("works until these checks pass: {}", names.join(", "))
        }
        EventData::ContinuousValidating(run) => format!("checks run {} of at most {}", run.iteration, run.iterations),
        EventData::ContinuousCheck(check) => {
            let check = &check.check;
            format!("{}: {} ({})", check.verdict, check.name, check.detail)
        }
        EventData::ContinuousRunFailed(run) => {
            let error = run.error.as_deref().unwrap_or("unknown error");
            format!("the run failed, {} in a row of at most {}; continuing: {error}", run.errors, run.errors_limit)
        }
        EventData::ContinuousPassed(run) => match run.iteration {
            1 => "all checks passed after 1 run".to_owned(),
            runs => format!("all checks passed after {runs} runs"),
        },
        EventData::ContinuousStopped(stop) => format!("checks stopped: {}", stop.detail),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_log::log_event::testing::event;
    use serde_json::{Value, json};

    fn line(event_type: &str, data: Value) -> Option<String> {
        describe_step(&event(event_type, None, &data).data)
    }

    #[test]
    fn each_step_is_one_line() {
        let started = json!({
            "require": ["clean"], "checks": ["make test"], "iterations": 3, "errors": 3, "duration_s": 60, "cost_usd": null,
        });
        assert_eq!(line("continuous.started", started).unwrap(), "works until these checks pass: clean, make test");
        let check = json!({
            "name": "make test", "verdict": "failed", "detail": "exit code 2", "duration_ms": 5, "round": 1,
        });
        assert_eq!(line("continuous.check", check).unwrap(), "failed: make test (exit code 2)");
        assert_eq!(line("continuous.passed", json!({"iteration": 1})).unwrap(), "all checks passed after 1 run");
        assert_eq!(line("agent.waiting", json!({})), None);
    }
}
