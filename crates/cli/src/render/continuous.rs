//! What is told of work that is checked until it passes. Pure.

use crate::reading::entry::Entry;

/// A line for people; nothing for what another line says better.
pub fn words(entry: &Entry) -> Option<String> {
    let number = |field: &str| entry.data[field].as_i64().unwrap_or(0);
    let word = |field: &str| entry.text(field).unwrap_or("?");
    Some(match entry.event_type.as_str() {
        "continuous.started" => format!("works until these pass: {}", names(entry)),
        "continuous.validating" => format!("checks run {} of at most {}", number("iteration"), number("iterations")),
        "continuous.check" => format!("{}: {} ({})", word("verdict"), word("name"), word("detail")),
        "continuous.run_failed" => {
            let (errors, most) = (number("errors"), number("errors_limit"));
            format!("the run failed, {errors} in a row of at most {most}; it goes on: {}", word("error"))
        }
        "continuous.passed" => match number("iteration") {
            1 => "everything passed after 1 run".to_owned(),
            runs => format!("everything passed after {runs} runs"),
        },
        "continuous.stopped" => format!("checks nothing any more: {}", word("detail")),
        _ => return None,
    })
}

fn names(entry: &Entry) -> String {
    let all = ["require", "checks"].into_iter().filter_map(|field| entry.data[field].as_array());
    all.flatten().filter_map(|name| name.as_str()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn of(event_type: &str, data: Value) -> Option<String> {
        let event = json!({ "seq": 1, "type": event_type, "at": "2026-01-31T12:00:00Z", "data": data });
        words(&Entry::parse(&event.to_string()).unwrap())
    }

    #[test]
    fn each_step_is_one_line() {
        let started = json!({"require": ["clean"], "checks": ["make test"]});
        assert_eq!(of("continuous.started", started).unwrap(), "works until these pass: clean, make test");
        let check = json!({"name": "make test", "verdict": "failed", "detail": "exit code 2"});
        assert_eq!(of("continuous.check", check).unwrap(), "failed: make test (exit code 2)");
        assert_eq!(of("continuous.passed", json!({"iteration": 1})).unwrap(), "everything passed after 1 run");
        assert_eq!(of("continuous.checked", json!({})), None);
    }
}
