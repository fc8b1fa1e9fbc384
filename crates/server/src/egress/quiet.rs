//! A program that is refused tries again, perhaps a thousand times a second: told once a minute, with how often.

use std::collections::HashMap;
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_secs(60);
/// What is told of one sandbox in a minute, whatever it makes up.
const MOST: usize = 60;

type Key = (String, u16, &'static str);

struct Told {
    at: Instant,
    since: u64,
}

#[derive(Default)]
pub struct Quiet(HashMap<Key, Told>);

impl Quiet {
    /// How often it happened since it was last told, this time included; nothing if it is not to be told now.
    pub fn note(&mut self, key: Key, now: Instant) -> Option<u64> {
        let over = |told: &Told| now.saturating_duration_since(told.at) >= PAUSE;
        if let Some(told) = self.0.get_mut(&key) {
            told.since += 1;
            if !over(told) {
                return None;
            }
            let since = told.since;
            *told = Told { at: now, since: 0 };
            return Some(since);
        }
        if self.0.len() >= MOST {
            self.0.retain(|_, told| !over(told));
        }
        if self.0.len() >= MOST {
            return None;
        }
        self.0.insert(key, Told { at: now, since: 0 });
        Some(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(host: &str) -> Key {
        (host.to_owned(), 443, "policy")
    }

    #[test]
    fn the_first_is_told_and_the_rest_is_counted() {
        let (mut quiet, start) = (Quiet::default(), Instant::now());
        assert_eq!(quiet.note(key("a"), start), Some(1));
        for second in 1..60 {
            assert_eq!(quiet.note(key("a"), start + Duration::from_secs(second)), None);
        }
        assert_eq!(quiet.note(key("b"), start), Some(1));
        assert_eq!(quiet.note(key("a"), start + PAUSE), Some(60));
        assert_eq!(quiet.note(key("a"), start + PAUSE), None);
    }

    #[test]
    fn a_flood_of_hosts_is_bounded() {
        let (mut quiet, start) = (Quiet::default(), Instant::now());
        let told = (0..10_000).filter(|index| quiet.note(key(&index.to_string()), start).is_some()).count();
        assert_eq!(told, MOST);
        assert_eq!(quiet.note(key("later"), start + PAUSE), Some(1));
        assert!(quiet.0.len() <= MOST);
    }
}
