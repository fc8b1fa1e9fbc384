//! A strict patch implementation, which proves that diffs are correct.

/// Applies a diff; checks all context lines, removed lines and counts.
pub fn apply_patch(old: &str, diff: &str) -> Result<String, String> {
    if diff.is_empty() {
        return Ok(old.to_owned());
    }
    let old: Vec<&str> = old.split_inclusive('\n').collect();
    let mut lines = diff.split_inclusive('\n').peekable();
    for start in ["--- ", "+++ "] {
        let line = lines.next().unwrap_or_default();
        if !line.starts_with(start) {
            return Err(format!("no header {start:?}: {line:?}"));
        }
    }
    let mut new = String::new();
    let mut at = 0;
    let mut written = 0;
    while let Some(header) = lines.next() {
        let spans = header.strip_prefix("@@ -").and_then(|rest| rest.split(" @@").next());
        let (old_span, new_span) = spans.and_then(|spans| spans.split_once(" +")).ok_or(format!("hunk: {header:?}"))?;
        let ((start, mut removed), (new_start, mut added)) = (span(old_span)?, span(new_span)?);
        while at < start {
            new.push_str(old.get(at).ok_or("beyond the end")?);
            at += 1;
            written += 1;
        }
        if written != new_start {
            return Err(format!("hunk says line {new_start}, it is {written}"));
        }
        while removed + added > 0 {
            let line = lines.next().ok_or("the hunk ends too soon")?;
            let (mark, text) = line.split_at(1);
            let bare = lines.next_if(|next| next.starts_with('\\')).is_some();
            let text = if bare { text.strip_suffix('\n').ok_or("no line end")? } else { text };
            if matches!(mark, " " | "-") {
                if old.get(at) != Some(&text) {
                    return Err(format!("line {at} is {:?}, the diff says {text:?}", old.get(at)));
                }
                at += 1;
                removed -= 1;
            }
            if matches!(mark, " " | "+") {
                new.push_str(text);
                added -= 1;
                written += 1;
            }
        }
    }
    old[at..].iter().for_each(|line| new.push_str(line));
    Ok(new)
}

/// Parses a span into the number of lines before it and its length.
fn span(text: &str) -> Result<(usize, usize), String> {
    let number = |text: &str| text.parse::<usize>().map_err(|error| format!("{text:?}: {error}"));
    match text.split_once(',') {
        Some((start, "0")) => Ok((number(start)?, 0)),
        Some((start, length)) => Ok((number(start)? - 1, number(length)?)),
        None => Ok((number(text)? - 1, 1)),
    }
}
