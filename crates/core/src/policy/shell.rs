//! Static analysis of a shell command line: it runs, resolves and expands nothing.

/// Maximum number of bytes analysed.
const MAX_LINE_BYTES: usize = 64 << 10;
/// Maximum nesting of commands: `sh -c '…'`, `$(…)`.
const MAX_NESTING: usize = 4;
const MAX_COMMANDS: usize = 500;

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ShellLine {
    pub commands: Vec<ShellCommand>,
    /// Reason why the analysis is incomplete.
    pub incomplete_reason: Option<&'static str>,
}

#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct ShellCommand {
    /// The program and its arguments, without wrappers such as `sudo`.
    pub words: Vec<String>,
    /// Files that its output is redirected to.
    pub output_files: Vec<String>,
}

pub(super) fn parse_line(text: &str) -> ShellLine {
    let mut line = ShellLine::default();
    parse_into(&mut line, text, 0);
    line
}

/// Analyses a command that is already split into words.
pub(super) fn parse_words(words: Vec<String>) -> ShellLine {
    let mut line = ShellLine::default();
    add_command(&mut line, ShellCommand { words, output_files: Vec::new() }, 0);
    line
}

fn parse_into(line: &mut ShellLine, text: &str, depth: usize) {
    if depth > MAX_NESTING {
        line.incomplete_reason = Some("the commands are nested too deeply");
        return;
    }
    if text.len() > MAX_LINE_BYTES {
        line.incomplete_reason = Some("the command is too long");
    }
    let text = &text[..text.floor_char_boundary(MAX_LINE_BYTES)];
    ShellParser { line, depth, command: ShellCommand::default(), word: None, target: WordTarget::Words }.run(text);
}

/// Destination of the current word.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WordTarget {
    Words,
    OutputFile,
    /// Input file or here-document delimiter: ignored.
    Ignored,
}

struct ShellParser<'a> {
    line: &'a mut ShellLine,
    depth: usize,
    command: ShellCommand,
    word: Option<String>,
    target: WordTarget,
}

impl ShellParser<'_> {
    fn run(mut self, text: &str) {
        let mut rest = text.chars().peekable();
        while let Some(letter) = rest.next() {
            match letter {
                '\'' => {
                    let closed = self.parse_quoted(&mut rest, '\'');
                    self.check_closed(closed);
                }
                '"' => {
                    let closed = self.parse_quoted(&mut rest, '"');
                    self.check_closed(closed);
                }
                '\\' => match rest.next() {
                    Some('\n') | None => {}
                    Some(next) => self.push_char(next),
                },
                '$' | '`' => self.parse_expansion(letter, &mut rest),
                '#' if self.word.is_none() => while rest.next_if(|next| *next != '\n').is_some() {},
                '>' => {
                    // The digits before a redirection are a file descriptor, not a word.
                    if self.word.as_ref().is_some_and(|word| word.bytes().all(|byte| byte.is_ascii_digit())) {
                        self.word = None;
                    }
                    self.end_word();
                    while rest.next_if(|next| matches!(next, '>' | '|')).is_some() {}
                    self.target =
                        if rest.next_if_eq(&'&').is_some() { WordTarget::Ignored } else { WordTarget::OutputFile };
                }
                '<' => {
                    self.end_word();
                    while rest.next_if(|next| matches!(next, '<' | '-')).is_some() {}
                    self.target = WordTarget::Ignored;
                }
                '&' if rest.peek() == Some(&'>') => self.end_word(),
                ';' | '&' | '|' | '\n' | '(' | ')' => self.end_command(),
                '{' | '}' if self.word.is_none() && rest.peek().is_none_or(|next| next.is_whitespace()) => {
                    self.end_command();
                }
                letter if letter.is_whitespace() => self.end_word(),
                letter => self.push_char(letter),
            }
        }
        self.end_command();
    }

    fn check_closed(&mut self, closed: bool) {
        if !closed {
            self.line.incomplete_reason = Some("a quotation mark is not closed");
        }
    }

    fn push_char(&mut self, letter: char) {
        self.word.get_or_insert_default().push(letter);
    }

    fn parse_quoted(&mut self, rest: &mut std::iter::Peekable<std::str::Chars<'_>>, end: char) -> bool {
        self.word.get_or_insert_default();
        while let Some(letter) = rest.next() {
            match letter {
                letter if letter == end => return true,
                '\\' if end == '"' => match rest.next() {
                    Some(next @ ('"' | '\\' | '$' | '`')) => self.push_char(next),
                    Some('\n') | None => {}
                    Some(next) => {
                        self.push_char('\\');
                        self.push_char(next);
                    }
                },
                '$' | '`' if end == '"' => self.parse_expansion(letter, rest),
                letter => self.push_char(letter),
            }
        }
        false
    }

    /// Marks the line as unclear, since values of variables and command output are unknown. Analyses a nested command.
    fn parse_expansion(&mut self, letter: char, rest: &mut std::iter::Peekable<std::str::Chars<'_>>) {
        self.push_char(letter);
        let inner: String = match (letter, rest.peek()) {
            ('`', _) => rest.by_ref().take_while(|next| *next != '`').collect(),
            ('$', Some('(')) => {
                rest.next();
                let mut open = 1_usize;
                let inner = rest.by_ref().take_while(|next| {
                    match next {
                        '(' => open += 1,
                        ')' => open -= 1,
                        _ => {}
                    }
                    open > 0
                });
                inner.collect()
            }
            ('$', Some('{' | '_' | '?' | '@' | '*' | '#' | '!')) => String::new(),
            ('$', Some(next)) if next.is_alphanumeric() => String::new(),
            _ => return,
        };
        self.line.incomplete_reason = Some("it contains a variable or a command substitution");
        if !inner.is_empty() {
            parse_into(self.line, &inner, self.depth + 1);
        }
    }

    fn end_word(&mut self) {
        let Some(word) = self.word.take() else { return };
        match std::mem::replace(&mut self.target, WordTarget::Words) {
            WordTarget::Words => self.command.words.push(word),
            WordTarget::OutputFile => self.command.output_files.push(word),
            WordTarget::Ignored => {}
        }
    }

    fn end_command(&mut self) {
        self.end_word();
        self.target = WordTarget::Words;
        let command = std::mem::take(&mut self.command);
        add_command(self.line, command, self.depth);
    }
}

/// Shell keywords that precede a command.
const KEYWORDS: &[&str] = &["if", "then", "else", "elif", "do", "while", "until", "!", "exec", "command", "builtin"];
/// Programs that run the command in their arguments.
const WRAPPERS: &[&str] = &["sudo", "env", "nohup", "time", "nice", "ionice", "setsid", "stdbuf", "xargs", "timeout"];
const SHELLS: &[&str] = &["sh", "bash", "dash", "zsh", "ash", "ksh"];

fn add_command(line: &mut ShellLine, mut command: ShellCommand, depth: usize) {
    if line.commands.len() >= MAX_COMMANDS {
        line.incomplete_reason = Some("it contains too many commands");
        return;
    }
    let bare = |word: &str| word.rsplit('/').next().unwrap_or(word).to_owned();
    while let Some(first) = command.words.first() {
        let name = bare(first);
        let is_assignment = first.split_once('=').is_some_and(|(name, _)| {
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        });
        if is_assignment || KEYWORDS.contains(&name.as_str()) {
            command.words.remove(0);
        } else if WRAPPERS.contains(&name.as_str()) && command.words.len() > 1 {
            command.words.remove(0);
            // Skip the wrapper's options, and the duration of `timeout`.
            while command.words.first().is_some_and(|word| {
                word.starts_with('-') || (name == "timeout" && word.starts_with(|c: char| c.is_ascii_digit()))
            }) {
                command.words.remove(0);
            }
        } else {
            break;
        }
    }
    let Some(first) = command.words.first() else {
        if !command.output_files.is_empty() {
            line.commands.push(command);
        }
        return;
    };
    let name = bare(first);
    if matches!(name.as_str(), "eval" | "source" | ".") {
        line.incomplete_reason = Some("it runs a dynamic command");
    }
    if SHELLS.contains(&name.as_str()) {
        let at = command
            .words
            .iter()
            .position(|word| word.starts_with('-') && !word.starts_with("--") && word.contains('c'));
        if let Some(script) = at.and_then(|at| command.words.get(at + 1)).cloned() {
            parse_into(line, &script, depth + 1);
        }
    }
    line.commands.push(command);
}
