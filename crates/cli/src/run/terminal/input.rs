//! The line that a person types, as a small editor. Pure.

use crate::render::{text, width};
use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

#[derive(Debug, Default)]
pub struct Input {
    text: String,
    /// Where the next character goes, in bytes.
    at: usize,
    /// What was sent before, oldest first.
    history: Vec<String>,
    /// Which of them is shown, counted from the newest.
    recalled: usize,
}

/// What a key asks for beyond editing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    Send(String),
    Interrupt,
    /// The end of what there is to say.
    Finish,
}

impl Input {
    pub fn key(&mut self, key: KeyEvent) -> Option<Asked> {
        if key.kind == KeyEventKind::Release {
            return None;
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        let alt = key.modifiers.contains(KeyModifiers::ALT);
        match key.code {
            KeyCode::Char('c') if control => return Some(Asked::Interrupt),
            KeyCode::Char('d') if control && self.text.is_empty() => return Some(Asked::Finish),
            KeyCode::Char('d') if control => self.delete(self.at, self.after()),
            KeyCode::Char('a') if control => self.at = 0,
            KeyCode::Char('e') if control => self.at = self.text.len(),
            KeyCode::Char('u') if control => self.delete(0, self.at),
            KeyCode::Char('k') if control => self.delete(self.at, self.text.len()),
            KeyCode::Char('w') if control => self.delete(self.word_start(), self.at),
            KeyCode::Backspace if alt => self.delete(self.word_start(), self.at),
            KeyCode::Char('b') if control => self.at = self.before(),
            KeyCode::Char('f') if control => self.at = self.after(),
            // A line break that does not send.
            KeyCode::Char('j') if control => self.insert("\n"),
            KeyCode::Char('h') if control => self.delete(self.before(), self.at),
            KeyCode::Char(_) if control || alt => {}
            KeyCode::Char(c) => self.insert(&c.to_string()),
            KeyCode::Backspace => self.delete(self.before(), self.at),
            KeyCode::Delete => self.delete(self.at, self.after()),
            KeyCode::Left => self.at = self.before(),
            KeyCode::Right => self.at = self.after(),
            KeyCode::Home => self.at = 0,
            KeyCode::End => self.at = self.text.len(),
            KeyCode::Up => self.recall(self.recalled + 1),
            KeyCode::Down => self.recall(self.recalled.saturating_sub(1)),
            KeyCode::Enter => return self.send(),
            _ => {}
        }
        None
    }

    pub fn insert(&mut self, text: &str) {
        self.text.insert_str(self.at, text);
        self.at += text.len();
    }

    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Puts back what could not be sent, unless something else stands there by now.
    pub fn put_back(&mut self, text: String) {
        if self.text.is_empty() {
            self.at = text.len();
            self.text = text;
        }
    }

    /// What is seen of it in `room` columns, and the cursor's column.
    pub fn seen(&self, room: usize) -> (String, usize) {
        let (before, after) = (text::inline(&self.text[..self.at]), text::inline(&self.text[self.at..]));
        // The cursor itself needs a column after the text.
        let mut start = 0;
        while width::of(&before[start..]) + 1 > room.max(1) {
            start += before[start..].chars().next().map_or(1, char::len_utf8);
        }
        let seen = format!("{}{after}", &before[start..]);
        let end = width::fitting(&seen, room);
        (seen[..end].to_owned(), width::of(&before[start..]))
    }

    fn send(&mut self) -> Option<Asked> {
        let text = std::mem::take(&mut self.text);
        (self.at, self.recalled) = (0, 0);
        let words = text.trim();
        if words.is_empty() {
            return None;
        }
        if self.history.last().is_none_or(|last| last != words) {
            self.history.push(words.to_owned());
        }
        Some(Asked::Send(words.to_owned()))
    }

    /// The `back`-th newest of what was sent; 0 is an empty line.
    fn recall(&mut self, back: usize) {
        if back > self.history.len() {
            return;
        }
        self.recalled = back;
        self.text = match back {
            0 => String::new(),
            _ => self.history[self.history.len() - back].clone(),
        };
        self.at = self.text.len();
    }

    fn before(&self) -> usize {
        self.text[..self.at].char_indices().next_back().map_or(0, |(at, _)| at)
    }

    fn after(&self) -> usize {
        self.at + self.text[self.at..].chars().next().map_or(0, char::len_utf8)
    }

    fn word_start(&self) -> usize {
        let words = self.text[..self.at].trim_end();
        words.char_indices().rev().find(|(_, c)| c.is_whitespace()).map_or(0, |(at, c)| at + c.len_utf8())
    }

    fn delete(&mut self, from: usize, to: usize) {
        self.text.replace_range(from..to, "");
        self.at = from;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn press(input: &mut Input, code: KeyCode) -> Option<Asked> {
        input.key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn control(input: &mut Input, c: char) -> Option<Asked> {
        input.key(KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL))
    }

    fn typed(text: &str) -> Input {
        let mut input = Input::default();
        text.chars().for_each(|c| assert_eq!(press(&mut input, KeyCode::Char(c)), None));
        input
    }

    #[test]
    fn a_line_is_edited_and_sent() {
        let mut input = typed("leave teh tests");
        assert_eq!(control(&mut input, 'w'), None);
        assert_eq!(control(&mut input, 'w'), None);
        "the tests  ".chars().for_each(|c| drop(press(&mut input, KeyCode::Char(c))));
        assert_eq!(input.seen(40), ("leave the tests  ".to_owned(), 17));
        assert_eq!(press(&mut input, KeyCode::Enter), Some(Asked::Send("leave the tests".into())));
        assert_eq!(press(&mut input, KeyCode::Enter), None, "there is nothing left to send");
        press(&mut input, KeyCode::Up);
        assert_eq!(input.seen(40).0, "leave the tests");
        press(&mut input, KeyCode::Down);
        assert!(input.is_empty());
    }

    #[test]
    fn the_end_of_input_only_where_there_is_none() {
        let mut input = typed("x");
        input.key(KeyEvent::new(KeyCode::Home, KeyModifiers::NONE));
        assert_eq!(control(&mut input, 'd'), None);
        assert_eq!(control(&mut input, 'd'), Some(Asked::Finish));
        assert_eq!(control(&mut input, 'c'), Some(Asked::Interrupt));
    }

    #[test]
    fn pasted_lines_stay_lines() {
        let mut input = Input::default();
        input.insert("one\ntwo");
        control(&mut input, 'j');
        input.insert("three");
        assert_eq!(input.seen(40).0, "one⏎two⏎three");
        assert_eq!(press(&mut input, KeyCode::Enter), Some(Asked::Send("one\ntwo\nthree".into())));
    }

    #[test]
    fn what_was_not_sent_comes_back_unless_something_else_is_there() {
        let mut input = Input::default();
        input.put_back("lost".into());
        assert_eq!(input.seen(9), ("lost".to_owned(), 4));
        input.put_back("other".into());
        assert_eq!(input.seen(9).0, "lost");
    }

    proptest! {
        #[test]
        fn the_cursor_is_always_seen(
            text in "[a-z日🙂\t ]{0,30}",
            moves in prop::collection::vec(0..8usize, 0..40),
            room in 1usize..20,
        ) {
            let mut input = Input::default();
            input.insert(&text);
            for step in moves {
                let code = match step {
                    0 => KeyCode::Left,
                    1 => KeyCode::Right,
                    2 => KeyCode::Home,
                    3 => KeyCode::End,
                    4 => KeyCode::Backspace,
                    5 => KeyCode::Delete,
                    6 => KeyCode::Char('ö'),
                    _ => KeyCode::Up,
                };
                press(&mut input, code);
                let (seen, column) = input.seen(room);
                prop_assert!(column < room && width::of(&seen) <= room, "{seen:?} {column} {room}");
            }
            control(&mut input, 'w');
            control(&mut input, 'u');
            control(&mut input, 'k');
            prop_assert!(input.is_empty());
        }
    }
}
