//! Suggests the known name nearest to a misspelt one.

/// The nearest name within a quarter of the letters; otherwise a known name that ends in the misspelt one.
pub(crate) fn find_nearest<'a>(written: &str, known: impl Iterator<Item = &'a str> + Clone) -> Option<String> {
    // The cost of the distance grows with the length.
    if written.len() > 100 {
        return None;
    }
    let max_distance = (written.chars().count() / 4).max(2);
    known
        .clone()
        .map(|name| (edit_distance(written, name), name))
        .filter(|(steps, _)| *steps <= max_distance)
        .min_by_key(|(steps, _)| *steps)
        .map(|(_, name)| name)
        .or_else(|| known.clone().find(|name| name.strip_suffix(written).is_some_and(|rest| rest.ends_with('.'))))
        .map(str::to_owned)
}

/// Levenshtein distance.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn computes_distances() {
        for (a, b, steps) in [("", "", 0), ("abc", "abc", 0), ("abc", "", 3), ("kitten", "sitting", 3), ("ab", "ba", 2)]
        {
            assert_eq!(edit_distance(a, b), steps, "{a} {b}");
            assert_eq!(edit_distance(b, a), steps, "{b} {a}");
        }
    }

    #[test]
    fn finds_typos_and_missing_sections() {
        let known = ["server.listen", "server.hosts", "log.level"];
        let near = |written| find_nearest(written, known.iter().copied());
        assert_eq!(near("server.lisen").as_deref(), Some("server.listen"));
        assert_eq!(near("listen").as_deref(), Some("server.listen"));
        assert_eq!(near("something.else"), None);
        assert_eq!(near(&"x".repeat(1000)), None);
    }
}
