//! Page cursors: opaque to clients, a position in one kind of list to the server.

use crate::problem::{Code, Problem, Result};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

pub fn bad_cursor() -> Problem {
    Problem::new(Code::BadCursor, "use `next_cursor` of the same list unchanged")
}

/// Encodes a position. `list` names the list, so that cursors of other lists are rejected.
pub fn encode_cursor(list: &str, place: &str) -> String {
    URL_SAFE_NO_PAD.encode(format!("{list}:{place}"))
}

pub fn decode_cursor(list: &str, cursor: Option<&str>) -> Result<Option<String>> {
    let Some(cursor) = cursor else { return Ok(None) };
    let bytes = URL_SAFE_NO_PAD.decode(cursor).map_err(|_| bad_cursor())?;
    let text = String::from_utf8(bytes).map_err(|_| bad_cursor())?;
    let place = text.strip_prefix(list).and_then(|rest| rest.strip_prefix(':')).ok_or_else(bad_cursor)?;
    Ok(Some(place.to_owned()))
}

pub fn decode_number(list: &str, cursor: Option<&str>) -> Result<Option<i64>> {
    let place = decode_cursor(list, cursor)?;
    place.map(|text| text.parse().ok().filter(|number| *number >= 0).ok_or_else(bad_cursor)).transpose()
}

/// Decodes a position that is an id.
pub fn decode_id<T: std::str::FromStr>(list: &str, cursor: Option<&str>) -> Result<Option<String>> {
    let place = decode_cursor(list, cursor)?;
    place.map(|text| if text.parse::<T>().is_ok() { Ok(text) } else { Err(bad_cursor()) }).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn round_trips_and_belongs_to_its_list(place in ".{0,40}") {
            let cursor = encode_cursor("events", &place);
            prop_assert_eq!(decode_cursor("events", Some(&cursor)).unwrap(), Some(place));
            prop_assert!(decode_cursor("sandboxes", Some(&cursor)).is_err());
        }

        #[test]
        fn arbitrary_text_never_panics(text in ".{0,40}") {
            drop(decode_cursor("events", Some(&text)));
            if let Ok(Some(number)) = decode_number("events", Some(&text)) {
                prop_assert!(number >= 0);
            }
        }
    }
}
