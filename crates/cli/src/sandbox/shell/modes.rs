//! What a program in a sandbox has switched on in the terminal that shows it, so that all of it can be switched off
//! when one leaves in the middle: the other screen, the mouse, a hidden cursor.

use std::collections::BTreeSet;

/// Private modes that outlive a program, as far as they would be in the way.
const KNOWN: &[u16] = &[1, 9, 47, 1000, 1001, 1002, 1003, 1004, 1005, 1006, 1015, 1047, 1049, 2004];
/// Off is what is unusual.
const CURSOR: u16 = 25;
/// No sequence that is meant is longer.
const LONGEST: usize = 64;

#[derive(Debug, Default)]
pub struct Modes {
    unusual: BTreeSet<u16>,
    /// The beginning of a sequence whose rest is to come.
    begun: Vec<u8>,
}

impl Modes {
    pub fn watch(&mut self, shown: &[u8]) {
        for byte in shown {
            match (self.begun.as_slice(), byte) {
                (_, 0x1b) => self.begun = vec![0x1b],
                ([], _) => {}
                ([0x1b], b'[') | ([0x1b, b'['], b'?') => self.begun.push(*byte),
                ([0x1b, b'[', b'?', ..], b'0'..=b'9' | b';') if self.begun.len() < LONGEST => self.begun.push(*byte),
                ([0x1b, b'[', b'?', numbers @ ..], b'h' | b'l') => {
                    let numbers = String::from_utf8_lossy(numbers).into_owned();
                    numbers.split(';').filter_map(|number| number.parse().ok()).for_each(|number| {
                        self.switch(number, *byte == b'h');
                    });
                    self.begun.clear();
                }
                (_, _) => self.begun.clear(),
            }
        }
    }

    fn switch(&mut self, number: u16, on: bool) {
        if number != CURSOR && !KNOWN.contains(&number) {
            return;
        }
        if on == (number != CURSOR) {
            self.unusual.insert(number);
        } else {
            self.unusual.remove(&number);
        }
    }

    /// What makes the terminal as it was; the other screen is left last.
    pub fn undo(&mut self) -> Vec<u8> {
        let mut bytes = b"\x1b[0m".to_vec();
        let unusual = std::mem::take(&mut self.unusual);
        let is_screen = |number: &u16| [47, 1047, 1049].contains(number);
        let (screens, others): (Vec<u16>, Vec<u16>) = unusual.into_iter().partition(is_screen);
        for number in others.into_iter().chain(screens) {
            let off = if number == CURSOR { 'h' } else { 'l' };
            bytes.extend(format!("\x1b[?{number}{off}").bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn undone(pieces: &[&[u8]]) -> String {
        let mut modes = Modes::default();
        pieces.iter().for_each(|piece| modes.watch(piece));
        String::from_utf8(modes.undo()).unwrap().replace('\x1b', "^")
    }

    #[test]
    fn what_was_switched_on_is_switched_off() {
        assert_eq!(undone(&[b"plain \x1b[31mtext\x1b[0m"]), "^[0m");
        assert_eq!(undone(&[b"\x1b[?1049h\x1b[?25l\x1b[?1;2004h"]), "^[0m^[?1l^[?25h^[?2004l^[?1049l");
        assert_eq!(undone(&[b"\x1b[?1049h\x1b[?25l", b"\x1b[?25h\x1b[?1049l"]), "^[0m");
        assert_eq!(undone(&[b"\x1b", b"[", b"?10", b"49", b"h"]), "^[0m^[?1049l", "in pieces");
        assert_eq!(undone(&[b"\x1b[?1049\x1b[?7h\x1b[1049h\x1b[?99999999h"]), "^[0m", "nothing that was not said");
    }
}
