//! The commands in a line of shell, as far as reading tells: nothing is run, looked up or expanded.

/// A line that is longer is not read to its end.
const LONGEST: usize = 64 << 10;
/// How deep commands stand in each other: `sh -c '…'`, `$(…)`.
const DEEPEST: usize = 4;
const MOST_COMMANDS: usize = 500;

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    pub commands: Vec<Command>,
    /// Why this is not all of it.
    pub unclear: Option<&'static str>,
}

#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Command {
    /// The program first, without what only stands before it.
    pub words: Vec<String>,
    /// What its output is written to.
    pub into: Vec<String>,
}

pub(super) fn read(text: &str) -> Line {
    let mut line = Line::default();
    read_into(&mut line, text, 0);
    line
}

/// A command that comes as words already.
pub(super) fn read_words(words: Vec<String>) -> Line {
    let mut line = Line::default();
    add(&mut line, Command { words, into: Vec::new() }, 0);
    line
}

fn read_into(line: &mut Line, text: &str, depth: usize) {
    if depth > DEEPEST {
        line.unclear = Some("commands stand too deep in each other");
        return;
    }
    if text.len() > LONGEST {
        line.unclear = Some("the command is too long to be read");
    }
    let text = &text[..text.floor_char_boundary(LONGEST)];
    Reader { line, depth, command: Command::default(), word: None, target: Target::Words }.run(text);
}

/// Where the word that is being read goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Words,
    Into,
    /// What is read from, or the word that ends a text: not looked at.
    Nowhere,
}

struct Reader<'a> {
    line: &'a mut Line,
    depth: usize,
    command: Command,
    word: Option<String>,
    target: Target,
}

impl Reader<'_> {
    fn run(mut self, text: &str) {
        let mut rest = text.chars().peekable();
        while let Some(letter) = rest.next() {
            match letter {
                '\'' => {
                    let closed = self.quoted(&mut rest, '\'');
                    self.must(closed);
                }
                '"' => {
                    let closed = self.quoted(&mut rest, '"');
                    self.must(closed);
                }
                '\\' => match rest.next() {
                    Some('\n') | None => {}
                    Some(next) => self.push(next),
                },
                '$' | '`' => self.expansion(letter, &mut rest),
                '#' if self.word.is_none() => while rest.next_if(|next| *next != '\n').is_some() {},
                '>' => {
                    // The number before it is the output's, not a word.
                    if self.word.as_ref().is_some_and(|word| word.bytes().all(|byte| byte.is_ascii_digit())) {
                        self.word = None;
                    }
                    self.end_word();
                    while rest.next_if(|next| matches!(next, '>' | '|')).is_some() {}
                    self.target = if rest.next_if_eq(&'&').is_some() { Target::Nowhere } else { Target::Into };
                }
                '<' => {
                    self.end_word();
                    while rest.next_if(|next| matches!(next, '<' | '-')).is_some() {}
                    self.target = Target::Nowhere;
                }
                '&' if rest.peek() == Some(&'>') => self.end_word(),
                ';' | '&' | '|' | '\n' | '(' | ')' => self.end_command(),
                '{' | '}' if self.word.is_none() && rest.peek().is_none_or(|next| next.is_whitespace()) => {
                    self.end_command();
                }
                letter if letter.is_whitespace() => self.end_word(),
                letter => self.push(letter),
            }
        }
        self.end_command();
    }

    fn must(&mut self, closed: bool) {
        if !closed {
            self.line.unclear = Some("a quotation mark is not closed");
        }
    }

    fn push(&mut self, letter: char) {
        self.word.get_or_insert_default().push(letter);
    }

    fn quoted(&mut self, rest: &mut std::iter::Peekable<std::str::Chars<'_>>, end: char) -> bool {
        self.word.get_or_insert_default();
        while let Some(letter) = rest.next() {
            match letter {
                letter if letter == end => return true,
                '\\' if end == '"' => match rest.next() {
                    Some(next @ ('"' | '\\' | '$' | '`')) => self.push(next),
                    Some('\n') | None => {}
                    Some(next) => {
                        self.push('\\');
                        self.push(next);
                    }
                },
                '$' | '`' if end == '"' => self.expansion(letter, rest),
                letter => self.push(letter),
            }
        }
        false
    }

    /// What a variable holds or a command gives, nobody knows here; the command itself is looked at.
    fn expansion(&mut self, letter: char, rest: &mut std::iter::Peekable<std::str::Chars<'_>>) {
        self.push(letter);
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
        self.line.unclear = Some("it holds a variable or the output of another command");
        if !inner.is_empty() {
            read_into(self.line, &inner, self.depth + 1);
        }
    }

    fn end_word(&mut self) {
        let Some(word) = self.word.take() else { return };
        match std::mem::replace(&mut self.target, Target::Words) {
            Target::Words => self.command.words.push(word),
            Target::Into => self.command.into.push(word),
            Target::Nowhere => {}
        }
    }

    fn end_command(&mut self) {
        self.end_word();
        self.target = Target::Words;
        let command = std::mem::take(&mut self.command);
        add(self.line, command, self.depth);
    }
}

/// Words of the shell's own that stand before a command.
const KEYWORDS: &[&str] = &["if", "then", "else", "elif", "do", "while", "until", "!", "exec", "command", "builtin"];
/// Programs that run the one after them.
const CARRIERS: &[&str] = &["sudo", "env", "nohup", "time", "nice", "ionice", "setsid", "stdbuf", "xargs", "timeout"];
const SHELLS: &[&str] = &["sh", "bash", "dash", "zsh", "ash", "ksh"];

fn add(line: &mut Line, mut command: Command, depth: usize) {
    if line.commands.len() >= MOST_COMMANDS {
        line.unclear = Some("there are too many commands in it");
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
        } else if CARRIERS.contains(&name.as_str()) && command.words.len() > 1 {
            command.words.remove(0);
            // Its own options, and for `timeout` how long.
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
        if !command.into.is_empty() {
            line.commands.push(command);
        }
        return;
    };
    let name = bare(first);
    if matches!(name.as_str(), "eval" | "source" | ".") {
        line.unclear = Some("it runs what only the shell knows");
    }
    if SHELLS.contains(&name.as_str()) {
        let at = command
            .words
            .iter()
            .position(|word| word.starts_with('-') && !word.starts_with("--") && word.contains('c'));
        if let Some(script) = at.and_then(|at| command.words.get(at + 1)).cloned() {
            read_into(line, &script, depth + 1);
        }
    }
    line.commands.push(command);
}
