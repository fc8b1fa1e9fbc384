//! Cursors: opaque outside, a place in one kind of list inside.

use crate::problem::{Code, Problem, Result};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

pub fn bad() -> Problem {
    Problem::new(Code::BadCursor, "take it from `next_cursor` of the same list, as it is")
}

/// `list` says which list the place is of, so that another list's cursor is refused.
pub fn write(list: &str, place: &str) -> String {
    URL_SAFE_NO_PAD.encode(format!("{list}:{place}"))
}

pub fn read(list: &str, cursor: Option<&str>) -> Result<Option<String>> {
    let Some(cursor) = cursor else { return Ok(None) };
    let bytes = URL_SAFE_NO_PAD.decode(cursor).map_err(|_| bad())?;
    let text = String::from_utf8(bytes).map_err(|_| bad())?;
    let place = text.strip_prefix(list).and_then(|rest| rest.strip_prefix(':')).ok_or_else(bad)?;
    Ok(Some(place.to_owned()))
}

pub fn read_number(list: &str, cursor: Option<&str>) -> Result<Option<i64>> {
    let place = read(list, cursor)?;
    place.map(|text| text.parse().ok().filter(|number| *number >= 0).ok_or_else(bad)).transpose()
}

/// A place that is an id of the list's kind.
pub fn read_id<T: std::str::FromStr>(list: &str, cursor: Option<&str>) -> Result<Option<String>> {
    let place = read(list, cursor)?;
    place.map(|text| if text.parse::<T>().is_ok() { Ok(text) } else { Err(bad()) }).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_place_survives_and_belongs_to_its_list(place in ".{0,40}") {
            let cursor = write("events", &place);
            prop_assert_eq!(read("events", Some(&cursor)).unwrap(), Some(place));
            prop_assert!(read("sandboxes", Some(&cursor)).is_err());
        }

        #[test]
        fn any_text_is_a_cursor_or_refused(text in ".{0,40}") {
            drop(read("events", Some(&text)));
            if let Ok(Some(number)) = read_number("events", Some(&text)) {
                prop_assert!(number >= 0);
            }
        }
    }
}
