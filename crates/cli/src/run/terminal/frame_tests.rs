//! Checks the bytes of frames with a minimal terminal emulator.

use super::*;
use crate::render::width;
use crate::run::terminal::footer::Footer;

/// A terminal that never scrolls, and rewraps its lines when its width changes.
struct FakeTerminal {
    columns: usize,
    rows: Vec<String>,
    row: usize,
    column: usize,
    wraps: bool,
}

impl FakeTerminal {
    fn new(columns: usize) -> Self {
        Self { columns, rows: vec![String::new()], row: 0, column: 0, wraps: true }
    }

    fn write(&mut self, bytes: &[u8]) {
        let text = std::str::from_utf8(bytes).unwrap();
        let mut characters = text.chars();
        while let Some(c) = characters.next() {
            match c {
                '\x1b' => {
                    assert_eq!(characters.next(), Some('['));
                    let mut arguments = String::new();
                    let end = loop {
                        match characters.next().unwrap() {
                            c @ ('A'..='Z' | 'a'..='z') => break c,
                            c => arguments.push(c),
                        }
                    };
                    self.apply_sequence(end, &arguments);
                }
                '\r' => self.column = 0,
                '\n' => self.move_down(1),
                c => self.put_char(c),
            }
        }
    }

    fn apply_sequence(&mut self, end: char, arguments: &str) {
        let number = arguments.parse::<usize>().unwrap_or(1);
        match (end, arguments) {
            ('A', _) => self.row = self.row.checked_sub(number).expect("the cursor stays below the first line"),
            ('B', _) => self.move_down(number),
            ('G', _) => self.column = number - 1,
            ('J', "" | "0") => {
                assert_eq!(self.column, 0);
                self.rows.truncate(self.row);
                self.rows.push(String::new());
            }
            ('h' | 'l', "?7") => self.wraps = end == 'h',
            ('h' | 'l', "?2026") | ('m', _) => {}
            _ => panic!("{arguments}{end}"),
        }
    }

    fn move_down(&mut self, by: usize) {
        self.row += by;
        while self.rows.len() <= self.row {
            self.rows.push(String::new());
        }
    }

    fn put_char(&mut self, c: char) {
        if self.column + width::char_width(c) > self.columns {
            if !self.wraps {
                return;
            }
            self.move_down(1);
            self.column = 0;
        }
        let row = &mut self.rows[self.row];
        let missing = self.column.saturating_sub(width::text_width(row));
        row.extend(std::iter::repeat_n(' ', missing));
        assert_eq!(width::text_width(row), self.column, "writes only at the end of a line: {row:?}");
        row.push(c);
        self.column += width::char_width(c);
    }

    /// Changes the width and rewraps the lines.
    fn resize(&mut self, columns: usize) {
        let (row, column) = (self.row, self.column);
        let mut rows = Vec::new();
        for (at, line) in self.rows.iter().enumerate() {
            if at == row {
                self.row = rows.len() + column / columns;
                self.column = column % columns;
            }
            let characters: Vec<char> = line.chars().collect();
            if characters.is_empty() {
                rows.push(String::new());
            }
            rows.extend(characters.chunks(columns).map(|piece| piece.iter().collect::<String>()));
        }
        rows.resize(rows.len().max(self.row + 1), String::new());
        (self.rows, self.columns) = (rows, columns);
    }

    fn screen_text(&self) -> String {
        self.rows.iter().map(|row| row.trim_end()).collect::<Vec<_>>().join("\n")
    }
}

fn plain_line(text: &str) -> Spans {
    Spans::new().plain(text)
}

fn footer_with(status: &str, input: &str) -> Footer {
    Footer {
        lines: vec![plain_line(""), plain_line(status), plain_line(input)],
        row: 2,
        column: width::text_width(input),
    }
}

#[test]
fn lines_scroll_above_a_fixed_footer() {
    let mut paper = FakeTerminal::new(20);
    paper.write(b"$ atoll run\r\n");
    let (bytes, drawn) =
        draw_frame(&DrawnFooter::default(), &[], Some(&footer_with("working", "> ")), 20, false).unwrap();
    paper.write(&bytes);
    assert_eq!(paper.screen_text(), "$ atoll run\n\nworking\n>");
    let (bytes, drawn) =
        draw_frame(&drawn, &[plain_line("one"), plain_line("two")], Some(&footer_with("Bash", "> h")), 20, true)
            .unwrap();
    paper.write(&bytes);
    assert_eq!(paper.screen_text(), "$ atoll run\none\ntwo\n\nBash\n> h");
    assert_eq!((paper.row, paper.column), (5, 3));
    let (bytes, drawn) = draw_frame(&drawn, &[plain_line("three")], None, 20, true).unwrap();
    paper.write(&bytes);
    assert_eq!(paper.screen_text(), "$ atoll run\none\ntwo\nthree\n", "the footer is gone");
    assert_eq!(move_below(&drawn).unwrap(), b"");
}

#[test]
fn a_resize_keeps_the_scrolled_lines() {
    for narrow in [7, 8, 10, 13, 19, 20, 40] {
        let mut paper = FakeTerminal::new(20);
        let bottom = footer_with("working           3s", "> say something");
        let (bytes, drawn) =
            draw_frame(&DrawnFooter::default(), &[plain_line("one")], Some(&bottom), 20, false).unwrap();
        paper.write(&bytes);
        paper.resize(narrow);
        let small = footer_with("work", "> s");
        let (bytes, _) = draw_frame(&drawn, &[plain_line("two")], Some(&small), narrow, false).unwrap();
        paper.write(&bytes);
        assert_eq!(paper.screen_text(), "one\ntwo\n\nwork\n> s", "{narrow}");
    }
}

#[test]
fn closing_leaves_the_footer_and_moves_below() {
    let mut paper = FakeTerminal::new(20);
    let bottom = Footer { row: 1, ..footer_with("working", "> x") };
    let (bytes, drawn) = draw_frame(&DrawnFooter::default(), &[], Some(&bottom), 20, false).unwrap();
    paper.write(&bytes);
    paper.write(&move_below(&drawn).unwrap());
    paper.write(b"$");
    assert_eq!(paper.screen_text(), "\nworking\n> x\n$");
}
