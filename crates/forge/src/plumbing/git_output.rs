//! The output and exit status of git.

use super::subprocess::ProcessExit;

#[derive(Debug)]
pub struct GitOutput {
    what: &'static str,
    pub stdout: Vec<u8>,
    exit: ProcessExit,
}

/// A failed git command: the action and git's message.
#[derive(Debug)]
pub struct GitFailure {
    pub what: &'static str,
    pub detail: String,
}

impl GitOutput {
    /// `what` describes the action in errors, such as "reading the repository".
    pub fn new(what: &'static str, stdout: Vec<u8>, exit: ProcessExit) -> Self {
        Self { what, stdout, exit }
    }

    pub fn is_success(&self) -> bool {
        self.exit.status.success()
    }

    /// The exit code, for commands with several meaningful codes.
    pub fn exit_code(&self) -> Option<i32> {
        self.exit.status.code()
    }

    pub fn failure_detail(&self) -> String {
        match (self.exit.stderr.as_str(), self.exit_code()) {
            ("", Some(code)) => format!("git ended with code {code} and no word"),
            ("", None) => "git was killed".to_owned(),
            (words, _) => words.to_owned(),
        }
    }

    /// True if the end of stderr contains `words`.
    pub fn stderr_contains(&self, words: &str) -> bool {
        self.exit.stderr.contains(words)
    }

    /// Returns itself if git succeeded, else git's message.
    pub fn require_success(self) -> Result<Self, GitFailure> {
        if self.is_success() { Ok(self) } else { Err(GitFailure { what: self.what, detail: self.failure_detail() }) }
    }

    /// The output without the final newline.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).trim_end_matches('\n').to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    fn output_with(status: i32, stderr: &str) -> GitOutput {
        let finished = ProcessExit { status: ExitStatus::from_raw(status), stderr: stderr.to_owned() };
        GitOutput::new("asking", b"one\ntwo\n\n".to_vec(), finished)
    }

    #[test]
    fn a_failure_always_has_a_detail() {
        assert_eq!(output_with(0, "a warning").require_success().unwrap().text(), "one\ntwo");
        for (status, stderr, detail) in [
            (1 << 8, "fatal: no", "fatal: no"),
            (3 << 8, "", "git ended with code 3 and no word"),
            (9, "", "git was killed"),
        ] {
            let rejected = output_with(status, stderr).require_success().unwrap_err();
            assert_eq!((rejected.what, rejected.detail.as_str()), ("asking", detail));
        }
        assert!(output_with(0, "Ignoring path x").stderr_contains("Ignoring path"));
    }
}
