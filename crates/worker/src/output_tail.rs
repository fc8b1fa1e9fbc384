//! Keeps the last lines of a process's output.

use std::collections::VecDeque;

const MAX_LINES: usize = 20;
/// Longer lines are truncated.
const MAX_LINE_LENGTH: usize = 1024;

#[derive(Debug, Default)]
pub struct OutputTail {
    lines: VecDeque<Vec<u8>>,
    partial: Vec<u8>,
}

impl OutputTail {
    pub fn push(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, whole) = match piece.split_last() {
                Some((b'\n', text)) => (text, true),
                Some(_) | None => (piece, false),
            };
            let room = MAX_LINE_LENGTH.saturating_sub(self.partial.len()).min(text.len());
            self.partial.extend_from_slice(&text[..room]);
            if whole {
                self.lines.push_back(std::mem::take(&mut self.partial));
            }
        }
        let extra = self.lines.len().saturating_sub(MAX_LINES);
        self.lines.drain(..extra);
    }

    pub fn text(&self) -> String {
        let partial = Some(&self.partial).filter(|partial| !partial.is_empty());
        let lines: Vec<_> = self.lines.iter().chain(partial).map(|line| String::from_utf8_lossy(line)).collect();
        lines[lines.len().saturating_sub(MAX_LINES)..].join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_last_lines_and_truncates_long_ones() {
        let mut tail = OutputTail::default();
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
        assert!(tail.text().len() < 21 * (MAX_LINE_LENGTH + 1));
        assert!(tail.text().ends_with("\u{fffd}"));
    }
}
