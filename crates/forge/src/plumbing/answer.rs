//! What git answered, and whether it was content.

use super::run::Finished;

#[derive(Debug)]
pub struct Answer {
    what: &'static str,
    pub stdout: Vec<u8>,
    finished: Finished,
}

/// Git was not content: what it was asked for, and its own words.
#[derive(Debug)]
pub struct Rejected {
    pub what: &'static str,
    pub detail: String,
}

impl Answer {
    /// `what` is for the reader of an error: "reading the repository".
    pub fn new(what: &'static str, stdout: Vec<u8>, finished: Finished) -> Self {
        Self { what, stdout, finished }
    }

    pub fn succeeded(&self) -> bool {
        self.finished.status.success()
    }

    /// The code git ended with, where more than one is an answer.
    pub fn code(&self) -> Option<i32> {
        self.finished.status.code()
    }

    pub fn detail(&self) -> String {
        match (self.finished.stderr.as_str(), self.code()) {
            ("", Some(code)) => format!("git ended with code {code} and no word"),
            ("", None) => "git was killed".to_owned(),
            (words, _) => words.to_owned(),
        }
    }

    /// Whether these words are in the last of what git said about its trouble.
    pub fn mentions(&self, words: &str) -> bool {
        self.finished.stderr.contains(words)
    }

    /// Itself if git was content, else git's own words.
    pub fn checked(self) -> Result<Self, Rejected> {
        if self.succeeded() { Ok(self) } else { Err(Rejected { what: self.what, detail: self.detail() }) }
    }

    /// The output less the line's end.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).trim_end_matches('\n').to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    fn answer(status: i32, stderr: &str) -> Answer {
        let finished = Finished { status: ExitStatus::from_raw(status), stderr: stderr.to_owned() };
        Answer::new("asking", b"one\ntwo\n\n".to_vec(), finished)
    }

    #[test]
    fn a_failure_always_has_words() {
        assert_eq!(answer(0, "a warning").checked().unwrap().text(), "one\ntwo");
        for (status, stderr, detail) in [
            (1 << 8, "fatal: no", "fatal: no"),
            (3 << 8, "", "git ended with code 3 and no word"),
            (9, "", "git was killed"),
        ] {
            let rejected = answer(status, stderr).checked().unwrap_err();
            assert_eq!((rejected.what, rejected.detail.as_str()), ("asking", detail));
        }
        assert!(answer(0, "Ignoring path x").mentions("Ignoring path"));
    }
}
