//! Patterns with `*`, each in time that grows with pattern and text only: texts come from an agent.

/// `*` stands for any letters.
pub(super) fn word(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    // Where the last `*` was, and up to where it has taken.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p, t));
            p += 1;
        } else if pattern.get(p) == text.get(t) {
            p += 1;
            t += 1;
        } else if let Some((at, taken)) = star {
            star = Some((at, taken + 1));
            p = at + 1;
            t = taken + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// Each part by itself, `**` for any number of them; a pattern that fits the beginning fits all that is below. Letters'
/// case does not matter, as for protected paths.
pub(super) fn path(pattern: &str, path: &str) -> bool {
    if pattern.starts_with('/') != path.starts_with('/') {
        return false;
    }
    let parts = |text: &str| -> Vec<String> {
        text.to_lowercase().split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect()
    };
    let (pattern, path) = (parts(pattern), parts(path));
    // Which beginnings of the path the pattern so far fits.
    let mut fits = vec![false; path.len() + 1];
    fits[0] = true;
    for part in &pattern {
        let mut next = vec![false; path.len() + 1];
        for at in 0..=path.len() {
            next[at] = match part.as_str() {
                "**" => fits[at] || (at > 0 && next[at - 1]),
                part => at > 0 && fits[at - 1] && word(part, &path[at - 1]),
            };
        }
        fits = next;
    }
    // The root itself is what everything is below of, not something that a pattern without parts names.
    !pattern.is_empty() && fits.iter().any(|fits| *fits)
}

/// The first words of a command, the program's without its directory.
pub(super) fn command(pattern: &str, words: &[String]) -> bool {
    let mut given = words.iter().map(String::as_str);
    let mut wanted = pattern.split_whitespace();
    let (Some(first), Some(program)) = (wanted.next(), given.next()) else { return false };
    let name = program.rsplit('/').next().unwrap_or(program);
    (word(first, name) || word(first, program))
        && wanted.all(|wanted| given.next().is_some_and(|given| word(wanted, given)))
}
