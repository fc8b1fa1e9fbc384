//! Reports of git operations in a sandbox.

/// The last line of a git operation's error output: a report of the worker, as JSON.
fn last_report(text: &str) -> (&str, Option<serde_json::Value>) {
    let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    (last, serde_json::from_str(last).ok())
}

/// Extracts the error message from a git operation's output.
pub fn git_error_text(text: &str) -> String {
    let (last, report) = last_report(text);
    let sentence = report.as_ref().and_then(|report| report.get("error")?.as_str());
    sentence.unwrap_or(last).chars().take(300).collect()
}

/// Extracts the error code from a git operation's output.
pub fn git_error_code(text: &str) -> Option<String> {
    last_report(text).1?.get("code")?.as_str().map(str::to_owned)
}

/// Texts of a report are from the sandbox, so their number and length are bounded.
const MAX_REPORTED_TEXTS: usize = 60;
const MAX_REPORTED_CHARS: usize = 500;

/// Extracts a list of texts from the report of a successful git operation.
pub fn git_report_texts(text: &str, list: &str) -> Vec<String> {
    let report = last_report(text).1.unwrap_or_default();
    let listed = report.get(list).and_then(|list| list.as_array()).map(Vec::as_slice).unwrap_or_default();
    let texts = listed.iter().filter_map(|text| text.as_str()).take(MAX_REPORTED_TEXTS);
    texts.map(|text| text.chars().take(MAX_REPORTED_CHARS).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_workers_report() {
        let failed = "noise\n{\"error\": \"the git repository is gone\", \"code\": \"no_repository\"}\n";
        assert_eq!(git_error_text(failed), "the git repository is gone");
        assert_eq!(git_error_code(failed).as_deref(), Some("no_repository"));
        assert_eq!((git_error_text("plain"), git_error_code("plain")), ("plain".to_owned(), None));
        let long = "x".repeat(1000);
        let report = format!("{{\"commit\": \"1\", \"warnings\": [\"one\", 2, \"{long}\"]}}");
        let texts = git_report_texts(&report, "warnings");
        assert_eq!((texts.len(), texts[0].as_str(), texts[1].len()), (2, "one", 500));
        assert_eq!(git_report_texts(&report, "unsaved"), [] as [&str; 0]);
    }
}
