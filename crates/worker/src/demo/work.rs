//! What the demo agent makes of prose: it looks around, makes a small change, changes it once more, checks it, and says
//! what it did. Short pauses let people watch.

use super::survey::{Survey, can_run};
use super::tool::clip;
use super::turn::{Agent, Step};
use atoll_core::provider::Exit;
use serde_json::json;
use std::path::Path;
use std::time::Duration;

const NOTES: &str = "NOTES.md";
const PAUSE: Duration = Duration::from_millis(250);
/// How many files are listed.
const SHOWN: usize = 50;
/// The longest line of notes.
const LINE: usize = 200;
const UNITTEST: &str = "python3 -B -m unittest -q";

/// One piece of the work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    Look { task: String },
    Change,
    ChangeAgain,
    Check,
}

pub(super) fn plan(prose: &str) -> Vec<Step> {
    let task = clip(prose.lines().next().unwrap_or_default(), LINE).to_owned();
    let pieces = [Piece::Look { task }, Piece::Change, Piece::ChangeAgain, Piece::Check];
    pieces.into_iter().flat_map(|piece| [Step::Pause(PAUSE), Step::Work(piece)]).collect()
}

/// What is to be written, and how it is checked.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Job {
    drafts: Vec<Draft>,
    check: String,
}

/// A file, and what it holds after the first and after the second change.
#[derive(Debug, PartialEq, Eq)]
struct Draft {
    file: String,
    first: String,
    second: String,
}

impl Job {
    /// Where there is Python, a function and its test; else a note.
    fn of(task: &str, survey: &Survey, notes: Option<&str>) -> Self {
        let (drafts, tests) = if survey.is_python() && can_run(UNITTEST) {
            (python(task), Some(UNITTEST.to_owned()))
        } else {
            (vec![note(task, survey, notes)], None)
        };
        let looks = if survey.is_git { "git status --short" } else { "ls -l" };
        let check = survey.test.clone().or(tests).unwrap_or_else(|| looks.to_owned());
        Self { drafts, check }
    }
}

fn note(task: &str, survey: &Survey, notes: Option<&str>) -> Draft {
    let first = format!("{}- {task}\n", notes.unwrap_or("# Notes\n\n"));
    let files = survey.files.len();
    let second = format!("{first}  - looked at {files} file{}\n", if files == 1 { "" } else { "s" });
    Draft { file: NOTES.to_owned(), first, second }
}

fn python(task: &str) -> Vec<Draft> {
    let name = module(task);
    // A string of JSON is one of Python, too.
    let words = serde_json::Value::from(task).to_string();
    let count = task.split_whitespace().count();
    let function = format!("\"\"\"What was asked for.\"\"\"\n\n\ndef task() -> str:\n    return {words}\n");
    let and_more = "\n\ndef words() -> int:\n    return len(task().split())\n";
    let test = format!(
        "import unittest\n\nimport {name}\n\n\nclass Task(unittest.TestCase):\n    \
         def test_it_is_kept(self):\n        self.assertEqual({name}.task(), {words})\n"
    );
    let and_one = format!("\n    def test_its_words_count(self):\n        self.assertEqual({name}.words(), {count})\n");
    vec![
        Draft { file: format!("{name}.py"), second: format!("{function}{and_more}"), first: function },
        Draft { file: format!("test_{name}.py"), second: format!("{test}{and_one}"), first: test },
    ]
}

/// Words that say little about what a task is about.
const SMALL: [&str; 14] =
    ["a", "an", "the", "to", "of", "in", "for", "and", "with", "its", "add", "way", "please", "test"];

/// A name that a module can have, and that no word of the language is.
fn module(task: &str) -> String {
    let words = task.split(|c: char| !c.is_ascii_alphanumeric()).map(str::to_lowercase);
    let words = words.filter(|word| !word.is_empty() && !SMALL.contains(&word.as_str()));
    let words: Vec<_> = words.take(3).collect();
    let name = match words.as_slice() {
        [first, _, ..] if first.starts_with(|c: char| c.is_ascii_alphabetic()) => words.join("_"),
        words => ["task"].into_iter().chain(words.iter().map(String::as_str)).collect::<Vec<_>>().join("_"),
    };
    clip(&name, 60).to_owned()
}

impl Agent {
    pub(super) fn work(&mut self, piece: Piece) {
        match piece {
            Piece::Look { task } => {
                let survey = self.look();
                let notes = std::fs::read_to_string(NOTES).ok();
                self.job = Job::of(&task, &survey, notes.as_deref());
            }
            Piece::Change => self.write_all(|draft| &draft.first),
            Piece::ChangeAgain => self.write_all(|draft| &draft.second),
            Piece::Check => self.check(),
        }
    }

    fn write_all(&mut self, content: impl Fn(&Draft) -> &String) {
        let job = std::mem::take(&mut self.job);
        for draft in &job.drafts {
            self.edit(&draft.file, content(draft));
        }
        self.job = job;
    }

    fn look(&mut self) -> Survey {
        let call = self.tool("Glob", &json!({"pattern": "**/*"}));
        let survey = Survey::of(Path::new("."));
        let shown = survey.files.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join("\n");
        self.tool_done("Glob", &call, json!({"output": shown, "is_error": false}));
        survey
    }

    fn check(&mut self) {
        let command = self.job.check.clone();
        let exit = self.run_command(&command);
        let files: Vec<_> = self.job.drafts.iter().map(|draft| draft.file.as_str()).collect();
        let went = if exit == (Exit::Exited { code: 0 }) { "which went well" } else { "which did not go well" };
        let text = format!("I wrote {}, and ran `{command}`, {went}.", files.join(" and "));
        self.say(&text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn survey(files: &[&str]) -> Survey {
        Survey { files: files.iter().map(|file| (*file).to_owned()).collect(), test: None, is_git: true }
    }

    #[test]
    fn notes_grow_by_a_line_and_then_by_another() {
        let job = Job::of("mend the parser", &survey(&["a.c", "b.c"]), Some("# Notes\n\n- older\n"));
        let draft = &job.drafts[0];
        assert_eq!((draft.file.as_str(), job.check.as_str()), (NOTES, "git status --short"));
        assert_eq!(draft.first, "# Notes\n\n- older\n- mend the parser\n");
        assert_eq!(draft.second, "# Notes\n\n- older\n- mend the parser\n  - looked at 2 files\n");
    }

    #[test]
    fn a_module_gets_a_test_that_passes() {
        let dir = tempfile::tempdir().unwrap();
        let task = "say \"hello\" to Ümläut";
        for draft in python(task) {
            assert!(draft.second.starts_with(&draft.first), "the second change adds to the first");
            std::fs::write(dir.path().join(draft.file), draft.second).unwrap();
        }
        assert_eq!(module(task), "say_hello_ml");
        assert_eq!(module("Add a way to say goodbye, with its test"), "say_goodbye");
        assert_eq!(module("import"), "task_import");
        assert_eq!(module("…"), "task");
        if can_run(UNITTEST) {
            let words: Vec<_> = UNITTEST.split(' ').collect();
            let run = std::process::Command::new(words[0]).args(&words[1..]).current_dir(dir.path()).output().unwrap();
            assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        }
    }

    #[test]
    fn the_tests_of_the_repository_come_first() {
        let with_tests = Survey { test: Some("make test".to_owned()), ..survey(&["a.py"]) };
        assert_eq!(Job::of("x", &with_tests, None).check, "make test");
        let plain = Survey { is_git: false, ..survey(&["a.c"]) };
        assert_eq!(Job::of("x", &plain, None).check, "ls -l");
    }
}
