//! "Did you mean": the known name that is nearest to a mistyped one.

/// The nearest name, if it is near enough to be a slip; else a known name that ends in what was written.
pub(crate) fn nearest<'a>(written: &str, known: impl Iterator<Item = &'a str> + Clone) -> Option<String> {
    // Nobody slips this far, and the distance takes time with the length.
    if written.len() > 100 {
        return None;
    }
    let slip = (written.chars().count() / 4).max(2);
    known
        .clone()
        .map(|name| (distance(written, name), name))
        .filter(|(steps, _)| *steps <= slip)
        .min_by_key(|(steps, _)| *steps)
        .map(|(_, name)| name)
        .or_else(|| known.clone().find(|name| name.strip_suffix(written).is_some_and(|rest| rest.ends_with('.'))))
        .map(str::to_owned)
}

/// Letters to insert, remove or replace (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
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
    fn distances() {
        for (a, b, steps) in [("", "", 0), ("abc", "abc", 0), ("abc", "", 3), ("kitten", "sitting", 3), ("ab", "ba", 2)]
        {
            assert_eq!(distance(a, b), steps, "{a} {b}");
            assert_eq!(distance(b, a), steps, "{b} {a}");
        }
    }

    #[test]
    fn a_slip_or_a_forgotten_section_is_found() {
        let known = ["server.listen", "server.hosts", "log.level"];
        let near = |written| nearest(written, known.iter().copied());
        assert_eq!(near("server.lisen").as_deref(), Some("server.listen"));
        assert_eq!(near("listen").as_deref(), Some("server.listen"));
        assert_eq!(near("something.else"), None);
        assert_eq!(near(&"x".repeat(1000)), None);
    }
}
