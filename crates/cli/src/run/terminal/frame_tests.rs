//! What the bytes do to a terminal, seen through one that knows just what is written here.

use super::*;
use crate::render::width;
use crate::run::terminal::bottom::Bottom;

/// A terminal that is large enough never to scroll; it breaks lines like most, also when it is
/// made narrower.
struct Paper {
    columns: usize,
    rows: Vec<String>,
    row: usize,
    column: usize,
    wraps: bool,
}

impl Paper {
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
                    self.obey(end, &arguments);
                }
                '\r' => self.column = 0,
                '\n' => self.down(1),
                c => self.put(c),
            }
        }
    }

    fn obey(&mut self, end: char, arguments: &str) {
        let number = arguments.parse::<usize>().unwrap_or(1);
        match (end, arguments) {
            ('A', _) => self.row = self.row.checked_sub(number).expect("never above the first line"),
            ('B', _) => self.down(number),
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

    fn down(&mut self, by: usize) {
        self.row += by;
        while self.rows.len() <= self.row {
            self.rows.push(String::new());
        }
    }

    fn put(&mut self, c: char) {
        if self.column + width::of_char(c) > self.columns {
            if !self.wraps {
                return;
            }
            self.down(1);
            self.column = 0;
        }
        let row = &mut self.rows[self.row];
        let missing = self.column.saturating_sub(width::of(row));
        row.extend(std::iter::repeat_n(' ', missing));
        assert_eq!(width::of(row), self.column, "it only writes at the end of a line: {row:?}");
        row.push(c);
        self.column += width::of_char(c);
    }

    /// Narrower or wider, as terminals that break lines anew do it.
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

    fn shown(&self) -> String {
        self.rows.iter().map(|row| row.trim_end()).collect::<Vec<_>>().join("\n")
    }
}

fn line(text: &str) -> Spans {
    Spans::new().plain(text)
}

fn at_bottom(status: &str, input: &str) -> Bottom {
    Bottom { lines: vec![line(""), line(status), line(input)], row: 2, column: width::of(input) }
}

#[test]
fn lines_scroll_by_above_a_bottom_that_stays() {
    let mut paper = Paper::new(20);
    paper.write(b"$ atoll run\r\n");
    let (bytes, drawn) = frame(&Drawn::default(), &[], Some(&at_bottom("working", "> ")), 20, false).unwrap();
    paper.write(&bytes);
    assert_eq!(paper.shown(), "$ atoll run\n\nworking\n>");
    let (bytes, drawn) = frame(&drawn, &[line("one"), line("two")], Some(&at_bottom("Bash", "> h")), 20, true).unwrap();
    paper.write(&bytes);
    assert_eq!(paper.shown(), "$ atoll run\none\ntwo\n\nBash\n> h");
    assert_eq!((paper.row, paper.column), (5, 3));
    let (bytes, drawn) = frame(&drawn, &[line("three")], None, 20, true).unwrap();
    paper.write(&bytes);
    assert_eq!(paper.shown(), "$ atoll run\none\ntwo\nthree\n", "nothing is left of the bottom");
    assert_eq!(below(&drawn).unwrap(), b"");
}

#[test]
fn a_terminal_that_changes_its_width_keeps_what_was_told() {
    for narrow in [7, 8, 10, 13, 19, 20, 40] {
        let mut paper = Paper::new(20);
        let bottom = at_bottom("working           3s", "> say something");
        let (bytes, drawn) = frame(&Drawn::default(), &[line("one")], Some(&bottom), 20, false).unwrap();
        paper.write(&bytes);
        paper.resize(narrow);
        let small = at_bottom("work", "> s");
        let (bytes, _) = frame(&drawn, &[line("two")], Some(&small), narrow, false).unwrap();
        paper.write(&bytes);
        assert_eq!(paper.shown(), "one\ntwo\n\nwork\n> s", "{narrow}");
    }
}

#[test]
fn what_breaks_off_leaves_the_bottom_and_goes_below() {
    let mut paper = Paper::new(20);
    let bottom = Bottom { row: 1, ..at_bottom("working", "> x") };
    let (bytes, drawn) = frame(&Drawn::default(), &[], Some(&bottom), 20, false).unwrap();
    paper.write(&bytes);
    paper.write(&below(&drawn).unwrap());
    paper.write(b"$");
    assert_eq!(paper.shown(), "\nworking\n> x\n$");
}
