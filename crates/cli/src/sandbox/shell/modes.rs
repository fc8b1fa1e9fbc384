//! Tracks the modes that a program in a sandbox sets in this terminal, such as the alternate screen, the mouse or a hidden
//! cursor, to reset them when the user detaches.

use std::collections::BTreeSet;

/// Private modes that outlive a program and would disturb the user's shell.
const TRACKED_MODES: &[u16] = &[1, 9, 47, 1000, 1001, 1002, 1003, 1004, 1005, 1006, 1015, 1047, 1049, 2004];
/// The cursor's visibility; unlike the other modes, it is on by default.
const CURSOR_MODE: u16 = 25;
/// Limit on the length of a sequence.
const MAX_SEQUENCE_BYTES: usize = 64;

#[derive(Debug, Default)]
pub struct TerminalModes {
    unusual: BTreeSet<u16>,
    /// The incomplete sequence at the end of the output so far.
    sequence: Vec<u8>,
}

impl TerminalModes {
    pub fn observe(&mut self, output: &[u8]) {
        for byte in output {
            match (self.sequence.as_slice(), byte) {
                (_, 0x1b) => self.sequence = vec![0x1b],
                ([], _) => {}
                ([0x1b], b'[') | ([0x1b, b'['], b'?') => self.sequence.push(*byte),
                ([0x1b, b'[', b'?', ..], b'0'..=b'9' | b';') if self.sequence.len() < MAX_SEQUENCE_BYTES => {
                    self.sequence.push(*byte)
                }
                ([0x1b, b'[', b'?', numbers @ ..], b'h' | b'l') => {
                    let numbers = String::from_utf8_lossy(numbers).into_owned();
                    numbers.split(';').filter_map(|number| number.parse().ok()).for_each(|number| {
                        self.set_mode(number, *byte == b'h');
                    });
                    self.sequence.clear();
                }
                (_, _) => self.sequence.clear(),
            }
        }
    }

    fn set_mode(&mut self, number: u16, on: bool) {
        if number != CURSOR_MODE && !TRACKED_MODES.contains(&number) {
            return;
        }
        if on == (number != CURSOR_MODE) {
            self.unusual.insert(number);
        } else {
            self.unusual.remove(&number);
        }
    }

    /// The sequence that resets the modes; it leaves the alternate screen last.
    pub fn reset_sequence(&mut self) -> Vec<u8> {
        let mut bytes = b"\x1b[0m".to_vec();
        let unusual = std::mem::take(&mut self.unusual);
        let is_screen = |number: &u16| [47, 1047, 1049].contains(number);
        let (screens, others): (Vec<u16>, Vec<u16>) = unusual.into_iter().partition(is_screen);
        for number in others.into_iter().chain(screens) {
            let off = if number == CURSOR_MODE { 'h' } else { 'l' };
            bytes.extend(format!("\x1b[?{number}{off}").bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reset_after(pieces: &[&[u8]]) -> String {
        let mut modes = TerminalModes::default();
        pieces.iter().for_each(|piece| modes.observe(piece));
        String::from_utf8(modes.reset_sequence()).unwrap().replace('\x1b', "^")
    }

    #[test]
    fn resets_modes_that_were_set() {
        assert_eq!(reset_after(&[b"plain \x1b[31mtext\x1b[0m"]), "^[0m");
        assert_eq!(reset_after(&[b"\x1b[?1049h\x1b[?25l\x1b[?1;2004h"]), "^[0m^[?1l^[?25h^[?2004l^[?1049l");
        assert_eq!(reset_after(&[b"\x1b[?1049h\x1b[?25l", b"\x1b[?25h\x1b[?1049l"]), "^[0m");
        assert_eq!(reset_after(&[b"\x1b", b"[", b"?10", b"49", b"h"]), "^[0m^[?1049l", "in pieces");
        assert_eq!(
            reset_after(&[b"\x1b[?1049\x1b[?7h\x1b[1049h\x1b[?99999999h"]),
            "^[0m",
            "ignores other modes and incomplete sequences"
        );
    }
}
