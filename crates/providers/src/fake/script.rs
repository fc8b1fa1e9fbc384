//! The few commands that exist in a fake sandbox, and just enough of a shell to join them.
//!
//! `true`, `false`, `echo …`, `cat [FILE]`, `ls`, `sleep SECONDS`, `pwd`, `exit [N]`; joined by `;`, `&&`
//! and line ends, quoted by `'` and `"`, sent to the error stream by `>&2`.

use super::process::ScriptOutput;
use super::tree;
use crate::lock_state;
use atoll_core::demo_line::parse_seconds;
use atoll_core::provider::{CommandExit, ExecCommand, OutputStream};
use bytes::Bytes;
use tokio::sync::mpsc;

#[derive(Debug, Clone, PartialEq, Eq)]
struct ScriptCommand {
    words: Vec<String>,
    /// Run only if the previous step succeeded.
    only_after_success: bool,
}

#[derive(Debug)]
pub(super) struct Script {
    steps: Vec<ScriptCommand>,
    cwd: String,
}

impl Script {
    pub(super) fn new(command: &ExecCommand, cwd: Option<&str>) -> Self {
        let steps = match command {
            ExecCommand::Argv(words) => vec![ScriptCommand { words: words.clone(), only_after_success: false }],
            ExecCommand::Shell(text) => parse_steps(text),
        };
        Self { steps, cwd: cwd.unwrap_or(tree::ROOT).to_owned() }
    }

    /// Runs to completion.
    pub(super) async fn run(self, output: &ScriptOutput, mut stdin: Option<mpsc::Receiver<Bytes>>) -> CommandExit {
        let mut code = 0;
        for step in &self.steps {
            output.environment.wait_until_thawed().await;
            if step.only_after_success && code != 0 {
                continue;
            }
            let mut words: Vec<&str> = step.words.iter().map(String::as_str).collect();
            let before = words.len();
            words.retain(|word| *word != ">&2");
            let out = if words.len() < before { OutputStream::Stderr } else { OutputStream::Stdout };
            code = match words.as_slice() {
                [] | ["true", ..] => 0,
                ["false", ..] => 1,
                ["echo", rest @ ..] => output.write_output(out, format!("{}\n", rest.join(" "))),
                ["pwd"] => output.write_output(out, format!("{}\n", self.cwd)),
                ["ls", ..] => output.write_output(out, list_files(&lock_state(&output.environment.tree))),
                ["cat"] => copy_stdin(output, out, stdin.take()).await,
                ["cat", files @ ..] => files.iter().map(|file| self.print_file(output, out, file)).max().unwrap_or(0),
                ["sleep", span] => match parse_seconds(span) {
                    Some(span) => {
                        tokio::time::sleep(span).await;
                        0
                    }
                    None => print_error(output, &format!("sleep: invalid time interval '{span}'"), 1),
                },
                ["exit"] => return CommandExit::Exited { code },
                ["exit", argument] => match argument.parse::<u8>() {
                    Ok(code) => return CommandExit::Exited { code: code.into() },
                    Err(_) => print_error(output, &format!("exit: {argument}: numeric argument required"), 2),
                },
                [unknown, ..] => print_error(output, &format!("{unknown}: not found"), 127),
            };
        }
        output.environment.wait_until_thawed().await;
        CommandExit::Exited { code }
    }

    fn print_file(&self, output: &ScriptOutput, out: OutputStream, file: &str) -> i32 {
        let path = if file.starts_with('/') { file.to_owned() } else { format!("{}/{file}", self.cwd) };
        let read = lock_state(&output.environment.tree).read(&path);
        match read {
            Ok(data) => output.write_output(out, data),
            Err(_) => print_error(output, &format!("cat: {file}: No such file or directory"), 1),
        }
    }
}

fn print_error(output: &ScriptOutput, text: &str, code: i32) -> i32 {
    output.write_output(OutputStream::Stderr, format!("{text}\n"));
    code
}

/// Lists all files of the workspace, one per line.
fn list_files(tree: &tree::Tree) -> String {
    tree.files_below("").map(|(path, _)| format!("{path}\n")).collect()
}

async fn copy_stdin(output: &ScriptOutput, out: OutputStream, stdin: Option<mpsc::Receiver<Bytes>>) -> i32 {
    if let Some(mut stdin) = stdin {
        while let Some(data) = stdin.recv().await {
            output.environment.wait_until_thawed().await;
            output.write_output(out, data);
        }
    }
    0
}

/// Splits text into steps like a shell, without expansions.
fn parse_steps(text: &str) -> Vec<ScriptCommand> {
    let mut steps = vec![ScriptCommand { words: Vec::new(), only_after_success: false }];
    let mut word: Option<String> = None;
    let mut quote: Option<char> = None;
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        match (quote, character) {
            (Some(open), _) if open == character => quote = None,
            (Some(_), _) => word.get_or_insert_default().push(character),
            (None, '\'' | '"') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (None, ' ' | '\t') => end_word(&mut steps, &mut word),
            (None, ';' | '\n') => {
                end_word(&mut steps, &mut word);
                steps.push(ScriptCommand { words: Vec::new(), only_after_success: false });
            }
            (None, '&') if characters.peek() == Some(&'&') => {
                characters.next();
                end_word(&mut steps, &mut word);
                steps.push(ScriptCommand { words: Vec::new(), only_after_success: true });
            }
            (None, _) => word.get_or_insert_default().push(character),
        }
    }
    end_word(&mut steps, &mut word);
    steps.retain(|step| !step.words.is_empty());
    steps
}

fn end_word(steps: &mut [ScriptCommand], word: &mut Option<String>) {
    if let (Some(step), Some(word)) = (steps.last_mut(), word.take()) {
        step.words.push(word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_text_like_a_shell() {
        let words = |text: &str| -> Vec<(Vec<String>, bool)> {
            parse_steps(text).into_iter().map(|step| (step.words, step.only_after_success)).collect()
        };
        let step = |words: &[&str], after| (words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>(), after);
        assert_eq!(words("echo a 'b  c' \"\""), [step(&["echo", "a", "b  c", ""], false)]);
        assert_eq!(
            words("false && echo x; echo y >&2\ntrue"),
            [
                step(&["false"], false),
                step(&["echo", "x"], true),
                step(&["echo", "y", ">&2"], false),
                step(&["true"], false)
            ]
        );
        assert_eq!(words(" ; "), []);
    }
}
