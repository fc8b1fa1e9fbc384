//! The demo agent's change for a prompt such as "Add a way to say goodbye, with its test" in a Python repository: a
//! function that says the phrase, its tests and a line in the README.

use super::prose_task::FileDraft;

const README_FILE: &str = "README.md";

/// The phrases that the agent knows, longest first.
const PHRASES: [&str; 9] = [
    "happy birthday",
    "good morning",
    "good evening",
    "good night",
    "thank you",
    "farewell",
    "goodbye",
    "welcome",
    "hello",
];

/// Returns the known phrase that the task asks to say.
pub(super) fn find_phrase(task: &str) -> Option<&'static str> {
    let words = task.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).map(str::to_lowercase);
    let words: Vec<_> = words.collect();
    let starts = words.iter().enumerate().filter(|(_, word)| matches!(word.as_str(), "say" | "says" | "saying"));
    starts.map(|(at, _)| &words[at + 1..]).find_map(|rest| {
        PHRASES.into_iter().find(|phrase| phrase.split(' ').eq(rest.iter().take(phrase.split(' ').count())))
    })
}

/// Files that are longer stay as they are.
const MAX_EXTENDED_BYTES: usize = 16 << 10;

/// Plans the change. Empty if a module already has the function.
pub(super) fn plan_phrase_function(
    phrase: &str,
    files: &[String],
    read_file: impl Fn(&str) -> Option<String>,
) -> Vec<FileDraft> {
    let function = format!("say_{}", phrase.replace(' ', "_"));
    let modules = files.iter().filter(|file| file.ends_with(".py") && !file.contains('/') && !is_test(file));
    let modules: Vec<(&str, String)> = modules.filter_map(|file| Some((file.as_str(), read_file(file)?))).collect();
    if modules.iter().any(|(_, content)| content.contains(&format!("def {function}("))) {
        return Vec::new();
    }
    // Extend the module that greets people already; otherwise create one.
    let greeter = modules.iter().find(|(_, content)| content.len() < MAX_EXTENDED_BYTES && greets_by_name(content));
    let new_file = format!("{function}.py");
    let (file, content) = greeter.map_or((new_file.as_str(), ""), |(file, content)| (*file, content.as_str()));
    let module = file.trim_end_matches(".py");
    let spoken = capitalize(phrase);
    let code = format!(
        "def {function}(name: str) -> str:\n    \"\"\"Says {phrase} to `name`.\"\"\"\n    \
         return f\"{spoken}, {{name}}!\"\n"
    );
    let code = insert_definition(content, &code);
    let mut drafts = vec![FileDraft::unchanged_later(file, code), draft_test(module, &function, &spoken, &read_file)];
    if let Some(readme) = read_file(README_FILE).filter(|readme| readme.len() < MAX_EXTENDED_BYTES) {
        let usage = format!("\n`{function}(\"Ada\")` in `{file}` returns `{spoken}, Ada!`.\n");
        let second = format!("{}\n{usage}", readme.trim_end());
        drafts.push(FileDraft { file: README_FILE.to_owned(), first: None, second: Some(second) });
    }
    drafts
}

/// Adds tests to the module's test file if it has the usual form; otherwise writes a new one.
fn draft_test(module: &str, function: &str, spoken: &str, read_file: impl Fn(&str) -> Option<String>) -> FileDraft {
    let import = format!("import {module}");
    let has_imports = |content: &String| {
        let has = |line: &str| content.lines().any(|it| it == line);
        content.len() < MAX_EXTENDED_BYTES && has("import unittest") && has(&import)
    };
    let present = Some(format!("test_{module}.py")).and_then(|file| Some((read_file(&file)?, file)));
    let present = present.filter(|(content, _)| has_imports(content));
    let (content, file) =
        present.unwrap_or_else(|| (format!("import unittest\n\n{import}\n"), format!("test_{function}.py")));
    let class: String = function.split('_').map(capitalize).collect();
    let case = |name: &str, person: &str| {
        format!(
            "    def test_{name}(self):\n        \
             self.assertEqual({module}.{function}(\"{person}\"), \"{spoken}, {person}!\")\n"
        )
    };
    let first = format!("class {class}(unittest.TestCase):\n{}", case("names_the_person", "Ada"));
    let second = format!("{first}\n{}", case("keeps_the_whole_name", "Ada Lovelace"));
    FileDraft {
        file,
        first: Some(insert_definition(&content, &first)),
        second: Some(insert_definition(&content, &second)),
    }
}

/// Inserts a top-level definition at the end, but before the module's main part.
fn insert_definition(content: &str, definition: &str) -> String {
    let main_part = content.find("\nif __name__ ==").map_or(content.len(), |at| at + 1);
    let (before, after) = content.split_at(main_part);
    let before = before.trim_end();
    let separator = if before.is_empty() { "" } else { "\n\n\n" };
    let end = if after.is_empty() { String::new() } else { format!("\n\n{after}") };
    format!("{before}{separator}{definition}{end}")
}

fn greets_by_name(content: &str) -> bool {
    content.lines().any(|line| line.starts_with("def ") && line.ends_with("(name: str) -> str:"))
}

fn is_test(file: &str) -> bool {
    file.starts_with("test_") || file.ends_with("_test.py")
}

fn capitalize(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const PROMPT: &str = "Add a way to say goodbye, with its test";

    fn plan_in(files: &BTreeMap<String, String>) -> Vec<FileDraft> {
        let names: Vec<_> = files.keys().cloned().collect();
        plan_phrase_function(find_phrase(PROMPT).unwrap(), &names, |file| files.get(file).cloned())
    }

    fn sample_files() -> BTreeMap<String, String> {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/greeting");
        let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        let files = files.filter(|path| path.is_file());
        files
            .map(|path| {
                let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                (name, std::fs::read_to_string(path).unwrap())
            })
            .collect()
    }

    fn apply_drafts(files: &mut BTreeMap<String, String>, drafts: Vec<FileDraft>) {
        for draft in drafts {
            files.insert(draft.file, draft.second.or(draft.first).unwrap());
        }
    }

    #[test]
    fn finds_the_phrase_that_the_prompt_names() {
        assert_eq!(find_phrase(PROMPT), Some("goodbye"));
        assert_eq!(find_phrase("The program should say Good  Morning!"), Some("good morning"));
        assert_eq!(find_phrase("fix what users say about the parser"), None);
        assert_eq!(find_phrase("remove the goodbye"), None);
        assert_eq!(find_phrase("say"), None);
    }

    #[test]
    fn extends_the_sample_with_a_function_and_its_tests() {
        let mut files = sample_files();
        let before = files.clone();
        let drafts = plan_in(&files);
        let names: Vec<_> = drafts.iter().map(|draft| draft.file.as_str()).collect();
        assert_eq!(names, ["greeting.py", "test_greeting.py", "README.md"]);
        apply_drafts(&mut files, drafts);
        assert!(files["greeting.py"].contains(
            "\n\ndef say_goodbye(name: str) -> str:\n    \"\"\"Says goodbye to `name`.\"\"\"\n    \
             return f\"Goodbye, {name}!\"\n\n\nif __name__ == \"__main__\":\n"
        ));
        for (file, content) in &before {
            let kept = content.lines().filter(|line| !line.is_empty());
            assert!(kept.clone().all(|line| files[file].lines().any(|it| it == line)), "{file} lost a line");
        }
        assert_eq!(plan_in(&files), Vec::new(), "a second task finds the function");
    }

    #[test]
    fn the_sample_s_tests_pass_after_the_change() {
        let mut files = sample_files();
        let drafts = plan_in(&files);
        apply_drafts(&mut files, drafts);
        check_python_tests(&files);
    }

    #[test]
    fn a_repository_without_a_greeting_gets_a_module() {
        let mut files =
            BTreeMap::from([("sum.py".to_owned(), "def total(values):\n    return sum(values)\n".to_owned())]);
        let drafts = plan_in(&files);
        let names: Vec<_> = drafts.iter().map(|draft| draft.file.as_str()).collect();
        assert_eq!(names, ["say_goodbye.py", "test_say_goodbye.py"]);
        apply_drafts(&mut files, drafts);
        check_python_tests(&files);
    }

    fn check_python_tests(files: &BTreeMap<String, String>) {
        let dir = tempfile::tempdir().unwrap();
        for (file, content) in files {
            std::fs::write(dir.path().join(file), content).unwrap();
        }
        let words: Vec<_> = super::super::repository_survey::UNITTEST_COMMAND.split(' ').collect();
        if let Ok(run) = std::process::Command::new(words[0]).args(&words[1..]).current_dir(dir.path()).output() {
            assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        }
    }
}
