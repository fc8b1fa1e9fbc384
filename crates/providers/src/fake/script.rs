//! The few commands that exist in a fake sandbox, and just enough of a shell to join them.
//!
//! `true`, `false`, `echo …`, `cat [FILE]`, `sleep SECONDS`, `pwd`, `exit [N]`; joined by `;`, `&&`
//! and line ends, quoted by `'` and `"`, sent to the error stream by `>&2`.

use super::process::Voice;
use super::tree;
use crate::locked;
use atoll_core::demo_line::seconds;
use atoll_core::provider::{Command, Exit, OutputStream};
use bytes::Bytes;
use tokio::sync::mpsc;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Step {
    words: Vec<String>,
    /// Run only when the one before it went well.
    only_after_success: bool,
}

#[derive(Debug)]
pub(super) struct Script {
    steps: Vec<Step>,
    cwd: String,
}

impl Script {
    pub(super) fn new(command: &Command, cwd: Option<&str>) -> Self {
        let steps = match command {
            Command::Argv(words) => vec![Step { words: words.clone(), only_after_success: false }],
            Command::Shell(text) => split(text),
        };
        Self { steps, cwd: cwd.unwrap_or(tree::ROOT).to_owned() }
    }

    /// Runs to its end. `stdin` is `None` when it was never open.
    pub(super) async fn run(self, voice: &Voice, mut stdin: Option<mpsc::Receiver<Bytes>>) -> Exit {
        let mut code = 0;
        for step in &self.steps {
            voice.ground.thawed().await;
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
                ["echo", rest @ ..] => voice.say(out, format!("{}\n", rest.join(" "))),
                ["pwd"] => voice.say(out, format!("{}\n", self.cwd)),
                ["cat"] => copy(voice, out, stdin.take()).await,
                ["cat", files @ ..] => files.iter().map(|file| self.cat(voice, out, file)).max().unwrap_or(0),
                ["sleep", span] => match seconds(span) {
                    Some(span) => {
                        tokio::time::sleep(span).await;
                        0
                    }
                    None => complain(voice, &format!("sleep: invalid time interval '{span}'"), 1),
                },
                ["exit"] => return Exit::Exited { code },
                ["exit", given] => match given.parse::<u8>() {
                    Ok(code) => return Exit::Exited { code: code.into() },
                    Err(_) => complain(voice, &format!("exit: {given}: numeric argument required"), 2),
                },
                [unknown, ..] => complain(voice, &format!("{unknown}: not found"), 127),
            };
        }
        voice.ground.thawed().await;
        Exit::Exited { code }
    }

    fn cat(&self, voice: &Voice, out: OutputStream, file: &str) -> i32 {
        let path = if file.starts_with('/') { file.to_owned() } else { format!("{}/{file}", self.cwd) };
        let read = locked(&voice.ground.tree).read(&path);
        match read {
            Ok(data) => voice.say(out, data),
            Err(_) => complain(voice, &format!("cat: {file}: No such file or directory"), 1),
        }
    }
}

fn complain(voice: &Voice, text: &str, code: i32) -> i32 {
    voice.say(OutputStream::Stderr, format!("{text}\n"));
    code
}

async fn copy(voice: &Voice, out: OutputStream, stdin: Option<mpsc::Receiver<Bytes>>) -> i32 {
    if let Some(mut stdin) = stdin {
        while let Some(data) = stdin.recv().await {
            voice.ground.thawed().await;
            voice.say(out, data);
        }
    }
    0
}

/// Text as steps: the way a shell would, without its expansions.
fn split(text: &str) -> Vec<Step> {
    let mut steps = vec![Step { words: Vec::new(), only_after_success: false }];
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
                steps.push(Step { words: Vec::new(), only_after_success: false });
            }
            (None, '&') if characters.peek() == Some(&'&') => {
                characters.next();
                end_word(&mut steps, &mut word);
                steps.push(Step { words: Vec::new(), only_after_success: true });
            }
            (None, _) => word.get_or_insert_default().push(character),
        }
    }
    end_word(&mut steps, &mut word);
    steps.retain(|step| !step.words.is_empty());
    steps
}

fn end_word(steps: &mut [Step], word: &mut Option<String>) {
    if let (Some(step), Some(word)) = (steps.last_mut(), word.take()) {
        step.words.push(word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_split_like_a_shell_would() {
        let words = |text: &str| -> Vec<(Vec<String>, bool)> {
            split(text).into_iter().map(|step| (step.words, step.only_after_success)).collect()
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
