//! The demo agent's task for prose: it surveys the repository, writes a small change, extends it, checks it and
//! reports. Short pauses let people watch.

use super::phrase_function::{find_phrase, plan_phrase_function};
use super::repository_survey::{RepositorySurvey, UNITTEST_COMMAND};
use super::tool::clip_text;
use super::turn::DemoStep;
use super::{DemoAgent, DemoHost};
use atoll_core::provider::CommandExit;
use serde_json::json;
use std::time::Duration;

const NOTES_FILE: &str = "NOTES.md";
const MAX_LISTED_FILES: usize = 50;
const MAX_NOTE_BYTES: usize = 200;

/// One step of the task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TaskStep {
    Look { task: String },
    Change,
    ChangeAgain,
    Check,
}

pub(super) fn plan_task(prose: &str, pause: Duration) -> Vec<DemoStep> {
    let task = clip_text(prose.lines().next().unwrap_or_default(), MAX_NOTE_BYTES).to_owned();
    let steps = [TaskStep::Look { task }, TaskStep::Change, TaskStep::ChangeAgain, TaskStep::Check];
    steps.into_iter().flat_map(|step| [DemoStep::Pause(pause), DemoStep::Work(step)]).collect()
}

/// The files to write and the command that checks them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ProseTask {
    drafts: Vec<FileDraft>,
    check: String,
}

/// A file with its content after the first and the second change. `None`: the change leaves the file alone.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FileDraft {
    pub file: String,
    pub first: Option<String>,
    pub second: Option<String>,
}

impl FileDraft {
    /// A file that only the first change writes.
    pub(super) fn unchanged_later(file: &str, content: String) -> Self {
        Self { file: file.to_owned(), first: Some(content), second: None }
    }
}

impl ProseTask {
    /// Chooses a function with its test for Python repositories, otherwise a note.
    fn for_repository(task: &str, survey: &RepositorySurvey, read_file: impl Fn(&str) -> Option<String>) -> Self {
        let unit_tests = survey.has_python.then(|| UNITTEST_COMMAND.to_owned());
        let (drafts, tests) = match find_phrase(task) {
            Some(phrase) if survey.is_python() => (plan_phrase_function(phrase, &survey.files, read_file), unit_tests),
            None if survey.is_python() && survey.has_python => (python_drafts(task), unit_tests),
            Some(_) | None => (vec![note_draft(task, survey, read_file(NOTES_FILE).as_deref())], None),
        };
        let looks = if survey.is_git { "git status --short" } else { "ls -l" };
        let check = survey.test_command.clone().or(tests).unwrap_or_else(|| looks.to_owned());
        Self { drafts, check }
    }
}

fn note_draft(task: &str, survey: &RepositorySurvey, notes: Option<&str>) -> FileDraft {
    let first = format!("{}- {task}\n", notes.unwrap_or("# Notes\n\n"));
    let files = survey.files.len();
    let second = format!("{first}  - looked at {files} file{}\n", if files == 1 { "" } else { "s" });
    FileDraft { file: NOTES_FILE.to_owned(), first: Some(first), second: Some(second) }
}

fn python_drafts(task: &str) -> Vec<FileDraft> {
    let name = module_name(task);
    // A JSON string is a valid Python string.
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
        FileDraft { file: format!("{name}.py"), second: Some(format!("{function}{and_more}")), first: Some(function) },
        FileDraft { file: format!("test_{name}.py"), second: Some(format!("{test}{and_one}")), first: Some(test) },
    ]
}

/// Words that do not describe the task.
const STOP_WORDS: [&str; 14] =
    ["a", "an", "the", "to", "of", "in", "for", "and", "with", "its", "add", "way", "please", "test"];

/// Builds a valid module name that is not a Python keyword.
fn module_name(task: &str) -> String {
    let words = task.split(|c: char| !c.is_ascii_alphanumeric()).map(str::to_lowercase);
    let words = words.filter(|word| !word.is_empty() && !STOP_WORDS.contains(&word.as_str()));
    let words: Vec<_> = words.take(3).collect();
    let name = match words.as_slice() {
        [first, _, ..] if first.starts_with(|c: char| c.is_ascii_alphabetic()) => words.join("_"),
        words => ["task"].into_iter().chain(words.iter().map(String::as_str)).collect::<Vec<_>>().join("_"),
    };
    clip_text(&name, 60).to_owned()
}

impl<H: DemoHost> DemoAgent<H> {
    pub(super) async fn run_task_step(&mut self, step: TaskStep) {
        match step {
            TaskStep::Look { task } => {
                let survey = self.survey_repository().await;
                self.task = ProseTask::for_repository(&task, &survey, |file| self.host.read_file(file));
            }
            TaskStep::Change => self.write_drafts(|draft| draft.first.as_ref()).await,
            TaskStep::ChangeAgain => self.write_drafts(|draft| draft.second.as_ref()).await,
            TaskStep::Check => self.run_check().await,
        }
    }

    async fn write_drafts(&mut self, content: fn(&FileDraft) -> Option<&String>) {
        let task = std::mem::take(&mut self.task);
        for draft in &task.drafts {
            if let Some(content) = content(draft) {
                self.write_file(&draft.file, content).await;
            }
        }
        self.task = task;
    }

    async fn survey_repository(&mut self) -> RepositorySurvey {
        let call = self.start_tool("Glob", &json!({"pattern": "**/*"}));
        let survey = RepositorySurvey::scan_workspace(&self.host);
        let listing = survey.files.iter().take(MAX_LISTED_FILES).map(String::as_str).collect::<Vec<_>>().join("\n");
        self.end_tool("Glob", &call, Ok(listing), None).await;
        survey
    }

    async fn run_check(&mut self) {
        let command = self.task.check.clone();
        let exit = self.run_command(&command).await;
        let work = describe_work(&self.task.drafts);
        let went = if exit == (CommandExit::Exited { code: 0 }) { "which went well" } else { "which did not go well" };
        self.say_text(&format!("{work}, and ran `{command}`, {went}."));
    }
}

fn describe_work(drafts: &[FileDraft]) -> String {
    let files: Vec<_> = drafts.iter().map(|draft| draft.file.as_str()).collect();
    match files.as_slice() {
        [] => "I found that the work is already there".to_owned(),
        [file] => format!("I wrote {file}"),
        [files @ .., last] => format!("I wrote {} and {last}", files.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn survey_of(files: &[&str]) -> RepositorySurvey {
        RepositorySurvey {
            files: files.iter().map(|file| (*file).to_owned()).collect(),
            is_git: true,
            ..RepositorySurvey::default()
        }
    }

    #[test]
    fn each_change_adds_a_line_to_the_notes() {
        let notes = |_: &str| Some("# Notes\n\n- older\n".to_owned());
        let task = ProseTask::for_repository("mend the parser", &survey_of(&["a.c", "b.c"]), notes);
        let draft = &task.drafts[0];
        assert_eq!((draft.file.as_str(), task.check.as_str()), (NOTES_FILE, "git status --short"));
        assert_eq!(draft.first.as_deref(), Some("# Notes\n\n- older\n- mend the parser\n"));
        let second = "# Notes\n\n- older\n- mend the parser\n  - looked at 2 files\n";
        assert_eq!(draft.second.as_deref(), Some(second));
    }

    #[test]
    fn the_generated_test_passes() {
        let dir = tempfile::tempdir().unwrap();
        let task = "say \"hello\" to Ümläut";
        for draft in python_drafts(task) {
            let (first, second) = (draft.first.unwrap(), draft.second.unwrap());
            assert!(second.starts_with(&first), "the second change adds to the first");
            std::fs::write(dir.path().join(draft.file), second).unwrap();
        }
        assert_eq!(module_name(task), "say_hello_ml");
        assert_eq!(module_name("Add a way to say goodbye, with its test"), "say_goodbye");
        assert_eq!(module_name("import"), "task_import");
        assert_eq!(module_name("…"), "task");
        let words: Vec<_> = UNITTEST_COMMAND.split(' ').collect();
        if let Ok(run) = std::process::Command::new(words[0]).args(&words[1..]).current_dir(dir.path()).output() {
            assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        }
    }

    #[test]
    fn a_phrase_in_the_prompt_becomes_a_function() {
        let task = "Add a way to say goodbye, with its test";
        let files_of = |survey| {
            let task = ProseTask::for_repository(task, &survey, |_| Some(String::new()));
            task.drafts.into_iter().map(|draft| draft.file).collect::<Vec<_>>()
        };
        let expected = ["say_goodbye.py", "test_say_goodbye.py", "README.md"];
        assert_eq!(files_of(RepositorySurvey { has_python: true, ..survey_of(&["a.py"]) }), expected);
        assert_eq!(files_of(survey_of(&["a.py"])), expected, "the change needs no Python program");
        assert_eq!(files_of(survey_of(&["a.c"])), [NOTES_FILE]);
    }

    #[test]
    fn prefers_the_repository_s_tests() {
        let with_tests = RepositorySurvey { test_command: Some("make test".to_owned()), ..survey_of(&["a.py"]) };
        assert_eq!(ProseTask::for_repository("x", &with_tests, |_| None).check, "make test");
        let plain = RepositorySurvey { is_git: false, ..survey_of(&["a.c"]) };
        assert_eq!(ProseTask::for_repository("x", &plain, |_| None).check, "ls -l");
    }
}
