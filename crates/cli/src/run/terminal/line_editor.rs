//! A line editor with history. Pure.

use crate::render::{text, width};
use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

#[derive(Debug, Default)]
pub struct LineEditor {
    text: String,
    /// The cursor, as a byte offset.
    at: usize,
    /// Sent lines, oldest first.
    history: Vec<String>,
    /// The recalled line, counted from the newest; 0 for none.
    recalled: usize,
}

/// The answer to an approval by one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuickAnswer {
    Approve,
    ApproveAlways,
    Deny,
}

/// An action beyond editing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EditorAction {
    Send(String),
    Interrupt,
    /// Ctrl-D on an empty line.
    Finish,
}

impl LineEditor {
    pub fn handle_key(&mut self, key: KeyEvent) -> Option<EditorAction> {
        if key.kind == KeyEventKind::Release {
            return None;
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        let alt = key.modifiers.contains(KeyModifiers::ALT);
        match key.code {
            KeyCode::Char('c') if control => return Some(EditorAction::Interrupt),
            KeyCode::Char('d') if control && self.text.is_empty() => return Some(EditorAction::Finish),
            KeyCode::Char('d') if control => self.delete_range(self.at, self.next_boundary()),
            KeyCode::Char('a') if control => self.at = 0,
            KeyCode::Char('e') if control => self.at = self.text.len(),
            KeyCode::Char('u') if control => self.delete_range(0, self.at),
            KeyCode::Char('k') if control => self.delete_range(self.at, self.text.len()),
            KeyCode::Char('w') if control => self.delete_range(self.word_start(), self.at),
            KeyCode::Backspace if alt => self.delete_range(self.word_start(), self.at),
            KeyCode::Char('b') if control => self.at = self.previous_boundary(),
            KeyCode::Char('f') if control => self.at = self.next_boundary(),
            // Ctrl-J inserts a line break.
            KeyCode::Char('j') if control => self.insert_text("\n"),
            KeyCode::Char('h') if control => self.delete_range(self.previous_boundary(), self.at),
            KeyCode::Char(_) if control || alt => {}
            KeyCode::Char(c) => self.insert_text(&c.to_string()),
            KeyCode::Backspace => self.delete_range(self.previous_boundary(), self.at),
            KeyCode::Delete => self.delete_range(self.at, self.next_boundary()),
            KeyCode::Left => self.at = self.previous_boundary(),
            KeyCode::Right => self.at = self.next_boundary(),
            KeyCode::Home => self.at = 0,
            KeyCode::End => self.at = self.text.len(),
            KeyCode::Up => self.recall_history(self.recalled + 1),
            KeyCode::Down => self.recall_history(self.recalled.saturating_sub(1)),
            KeyCode::Enter => return self.submit(),
            _ => {}
        }
        None
    }

    pub fn insert_text(&mut self, text: &str) {
        self.text.insert_str(self.at, text);
        self.at += text.len();
    }

    /// The answer to an approval, if the line is one of its keys.
    pub fn quick_answer(&self) -> Option<QuickAnswer> {
        match self.text.as_str() {
            "y" => Some(QuickAnswer::Approve),
            "a" => Some(QuickAnswer::ApproveAlways),
            "n" => Some(QuickAnswer::Deny),
            _ => None,
        }
    }

    pub fn clear(&mut self) {
        self.delete_range(0, self.text.len());
    }

    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Restores text that could not be sent, unless the user has typed something else.
    pub fn restore_text(&mut self, text: String) {
        if self.text.is_empty() {
            self.at = text.len();
            self.text = text;
        }
    }

    /// The text that fits into `room` columns, and the cursor's column.
    pub fn visible_text(&self, room: usize) -> (String, usize) {
        let (before, after) = (text::escape_line(&self.text[..self.at]), text::escape_line(&self.text[self.at..]));
        // The cursor needs one column after the text.
        let mut start = 0;
        while width::text_width(&before[start..]) + 1 > room.max(1) {
            start += before[start..].chars().next().map_or(1, char::len_utf8);
        }
        let visible = format!("{}{after}", &before[start..]);
        let end = width::fitting_prefix(&visible, room);
        (visible[..end].to_owned(), width::text_width(&before[start..]))
    }

    fn submit(&mut self) -> Option<EditorAction> {
        let text = std::mem::take(&mut self.text);
        (self.at, self.recalled) = (0, 0);
        let words = text.trim();
        if words.is_empty() {
            return None;
        }
        if self.history.last().is_none_or(|last| last != words) {
            self.history.push(words.to_owned());
        }
        Some(EditorAction::Send(words.to_owned()))
    }

    /// Recalls the `back`-th newest line; 0 is an empty line.
    fn recall_history(&mut self, back: usize) {
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

    fn previous_boundary(&self) -> usize {
        self.text[..self.at].char_indices().next_back().map_or(0, |(at, _)| at)
    }

    fn next_boundary(&self) -> usize {
        self.at + self.text[self.at..].chars().next().map_or(0, char::len_utf8)
    }

    fn word_start(&self) -> usize {
        let words = self.text[..self.at].trim_end();
        words.char_indices().rev().find(|(_, c)| c.is_whitespace()).map_or(0, |(at, c)| at + c.len_utf8())
    }

    fn delete_range(&mut self, from: usize, to: usize) {
        self.text.replace_range(from..to, "");
        self.at = from;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn press_key(input: &mut LineEditor, code: KeyCode) -> Option<EditorAction> {
        input.handle_key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn press_control(input: &mut LineEditor, c: char) -> Option<EditorAction> {
        input.handle_key(KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL))
    }

    fn editor_with(text: &str) -> LineEditor {
        let mut input = LineEditor::default();
        text.chars().for_each(|c| assert_eq!(press_key(&mut input, KeyCode::Char(c)), None));
        input
    }

    #[test]
    fn edits_and_sends_a_line() {
        let mut input = editor_with("leave teh tests");
        assert_eq!(press_control(&mut input, 'w'), None);
        assert_eq!(press_control(&mut input, 'w'), None);
        "the tests  ".chars().for_each(|c| drop(press_key(&mut input, KeyCode::Char(c))));
        assert_eq!(input.visible_text(40), ("leave the tests  ".to_owned(), 17));
        assert_eq!(press_key(&mut input, KeyCode::Enter), Some(EditorAction::Send("leave the tests".into())));
        assert_eq!(press_key(&mut input, KeyCode::Enter), None, "the line is empty");
        press_key(&mut input, KeyCode::Up);
        assert_eq!(input.visible_text(40).0, "leave the tests");
        press_key(&mut input, KeyCode::Down);
        assert!(input.is_empty());
    }

    #[test]
    fn one_key_is_an_answer_and_a_word_is_not() {
        assert_eq!(editor_with("y").quick_answer(), Some(QuickAnswer::Approve));
        assert_eq!(editor_with("a").quick_answer(), Some(QuickAnswer::ApproveAlways));
        let mut input = editor_with("n");
        assert_eq!(input.quick_answer(), Some(QuickAnswer::Deny));
        input.clear();
        assert_eq!((input.is_empty(), input.quick_answer()), (true, None));
        assert_eq!(editor_with("approve").quick_answer(), None);
    }

    #[test]
    fn ctrl_d_finishes_only_on_an_empty_line() {
        let mut input = editor_with("x");
        input.handle_key(KeyEvent::new(KeyCode::Home, KeyModifiers::NONE));
        assert_eq!(press_control(&mut input, 'd'), None);
        assert_eq!(press_control(&mut input, 'd'), Some(EditorAction::Finish));
        assert_eq!(press_control(&mut input, 'c'), Some(EditorAction::Interrupt));
    }

    #[test]
    fn keeps_pasted_line_breaks() {
        let mut input = LineEditor::default();
        input.insert_text("one\ntwo");
        press_control(&mut input, 'j');
        input.insert_text("three");
        assert_eq!(input.visible_text(40).0, "one⏎two⏎three");
        assert_eq!(press_key(&mut input, KeyCode::Enter), Some(EditorAction::Send("one\ntwo\nthree".into())));
    }

    #[test]
    fn restores_unsent_text_into_an_empty_line() {
        let mut input = LineEditor::default();
        input.restore_text("lost".into());
        assert_eq!(input.visible_text(9), ("lost".to_owned(), 4));
        input.restore_text("other".into());
        assert_eq!(input.visible_text(9).0, "lost");
    }

    proptest! {
        #[test]
        fn the_cursor_is_always_visible(
            text in "[a-z日🙂\t ]{0,30}",
            moves in prop::collection::vec(0..8usize, 0..40),
            room in 1usize..20,
        ) {
            let mut input = LineEditor::default();
            input.insert_text(&text);
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
                press_key(&mut input, code);
                let (visible, column) = input.visible_text(room);
                prop_assert!(column < room && width::text_width(&visible) <= room, "{visible:?} {column} {room}");
            }
            press_control(&mut input, 'w');
            press_control(&mut input, 'u');
            press_control(&mut input, 'k');
            prop_assert!(input.is_empty());
        }
    }
}
