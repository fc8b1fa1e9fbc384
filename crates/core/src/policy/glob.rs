//! Patterns with `*`. Matching takes time proportional to pattern × text, because the texts come from an agent.

/// `*` matches any characters.
pub(super) fn matches_text(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    // Position of the last `*`, and the end of the text that it matches so far.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p, t));
            p += 1;
        } else if pattern.get(p) == text.get(t) {
            p += 1;
            t += 1;
        } else if let Some((at, matched_to)) = star {
            star = Some((at, matched_to + 1));
            p = at + 1;
            t = matched_to + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// Matches part by part; `**` matches any number of parts, and a match of a directory includes everything below it.
///
/// Ignores case, as for protected paths.
pub(crate) fn matches_path(pattern: &str, path: &str) -> bool {
    if pattern.starts_with('/') != path.starts_with('/') {
        return false;
    }
    let parts = |text: &str| -> Vec<String> {
        text.to_lowercase().split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect()
    };
    let (pattern, path) = (parts(pattern), parts(path));
    // Prefixes of the path that match the pattern so far.
    let mut fits = vec![false; path.len() + 1];
    fits[0] = true;
    for part in &pattern {
        let mut next = vec![false; path.len() + 1];
        for at in 0..=path.len() {
            next[at] = match part.as_str() {
                "**" => fits[at] || (at > 0 && next[at - 1]),
                part => at > 0 && fits[at - 1] && matches_text(part, &path[at - 1]),
            };
        }
        fits = next;
    }
    // A pattern without parts matches nothing, not even the root.
    !pattern.is_empty() && fits.iter().any(|fits| *fits)
}

/// Matches the first words of a command; the program's directory is ignored.
pub(super) fn matches_command(pattern: &str, words: &[String]) -> bool {
    let mut arguments = words.iter().map(String::as_str);
    let mut patterns = pattern.split_whitespace();
    let (Some(first), Some(program)) = (patterns.next(), arguments.next()) else { return false };
    let name = program.rsplit('/').next().unwrap_or(program);
    (matches_text(first, name) || matches_text(first, program))
        && patterns.all(|patterns| arguments.next().is_some_and(|arguments| matches_text(patterns, arguments)))
}
