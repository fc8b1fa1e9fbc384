//! The last lines of what an agent, or a program beside it, complained about.

use std::collections::VecDeque;

const LINES: usize = 20;
/// Of one line; what is longer loses its end.
const LONGEST: usize = 1024;

#[derive(Debug, Default)]
pub struct Tail {
    lines: VecDeque<Vec<u8>>,
    begun: Vec<u8>,
}

impl Tail {
    pub fn push(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, whole) = match piece.split_last() {
                Some((b'\n', text)) => (text, true),
                Some(_) | None => (piece, false),
            };
            let room = LONGEST.saturating_sub(self.begun.len()).min(text.len());
            self.begun.extend_from_slice(&text[..room]);
            if whole {
                self.lines.push_back(std::mem::take(&mut self.begun));
            }
        }
        let extra = self.lines.len().saturating_sub(LINES);
        self.lines.drain(..extra);
    }

    pub fn text(&self) -> String {
        let begun = Some(&self.begun).filter(|begun| !begun.is_empty());
        let lines: Vec<_> = self.lines.iter().chain(begun).map(|line| String::from_utf8_lossy(line)).collect();
        lines[lines.len().saturating_sub(LINES)..].join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept_and_none_is_long() {
        let mut tail = Tail::default();
        assert_eq!(tail.text(), "");
        for n in 0..100 {
            tail.push(format!("line {n}\n").as_bytes());
        }
        tail.push(b"half a ");
        tail.push(b"line");
        let text = tail.text();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!((lines.len(), lines[0], lines[19]), (20, "line 81", "half a line"));
        tail.push(&vec![b'x'; 1 << 20]);
        tail.push(b"\n\xff\n");
        assert!(tail.text().len() < 21 * (LONGEST + 1));
        assert!(tail.text().ends_with("\u{fffd}"));
    }
}
