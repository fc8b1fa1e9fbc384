//! URLs that may hold a password: checked, shown without it, and taken apart for the redactor.

const HIDDEN: &str = "***";

/// Why a URL with possible credentials is refused, in words that do not repeat any of it.
pub(crate) fn check_secret(url: &str, schemes: &[&str]) -> Result<(), String> {
    let Some(rest) = schemes.iter().find_map(|scheme| url.strip_prefix(scheme)) else {
        return Err(format!("it does not begin with {}", schemes.join(" or ")));
    };
    if url.starts_with("sqlite:") {
        return match sqlite_path(url) {
            Some(_) => Ok(()),
            None => Err("sqlite: is followed by the path of a file, without parameters".to_owned()),
        };
    }
    if rest.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err("it has white space in it".to_owned());
    }
    let before_query = rest.split(['?', '#']).next().unwrap_or_default();
    let (authority, path) = before_query.split_once('/').unwrap_or((before_query, ""));
    // A raw `/`, `?`, `#` or `@` in a password would make another part of the URL out of the password's end.
    if path.contains('@') || authority.matches('@').count() > 1 || rest.contains('#') {
        return Err("`@`, `/`, `?` and `#` in a user name or password are written %40, %2F, %3F and %23".to_owned());
    }
    if authority.is_empty() {
        return Err("it names no host".to_owned());
    }
    Ok(())
}

/// The file that a `sqlite:` URL names: `sqlite:PATH` or `sqlite://PATH`.
pub(crate) fn sqlite_path(url: &str) -> Option<&str> {
    let rest = url.strip_prefix("sqlite:")?;
    let path = rest.strip_prefix("//").unwrap_or(rest);
    let usable = !path.is_empty() && !path.starts_with(':') && !path.contains(['?', '#']);
    (usable && !path.chars().any(char::is_control)).then_some(path)
}

/// A base URL that others are made from by appending a path.
pub(crate) fn check_base(url: &str) -> Result<(), String> {
    let Some(rest) = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://")) else {
        return Err("it does not begin with http:// or https://".to_owned());
    };
    if rest.is_empty() || rest.starts_with(['/', ':']) {
        return Err("it names no host".to_owned());
    }
    if rest.contains(['?', '#', '@']) || rest.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err("it has a user, a query, a fragment or white space".to_owned());
    }
    Ok(())
}

/// The URL as people may see it.
pub(crate) fn shown(url: &str) -> String {
    let (base, query) = url.split_once('?').map_or((url, None), |(base, query)| (base, Some(query)));
    let mut shown = match user_password(base) {
        Some((start, end)) => format!("{}{HIDDEN}{}", &base[..start], &base[end..]),
        None => base.to_owned(),
    };
    for (n, pair) in query.into_iter().flat_map(|query| query.split('&')).enumerate() {
        shown.push(if n == 0 { '?' } else { '&' });
        match pair.split_once('=') {
            Some((name, _)) if is_password(name) => shown.push_str(&format!("{name}={HIDDEN}")),
            _ => shown.push_str(pair),
        }
    }
    shown
}

/// The passwords in a URL, as written and as meant.
pub(crate) fn passwords(url: &str) -> Vec<String> {
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let in_user = user_password(base).map(|(start, end)| &base[start..end]);
    let in_query = query.split('&').filter_map(|pair| pair.split_once('=')).filter(|(name, _)| is_password(name));
    let mut found = Vec::new();
    for written in in_user.into_iter().chain(in_query.map(|(_, value)| value)) {
        let meant = percent_decoded(written);
        if meant != written {
            found.push(meant);
        }
        found.push(written.to_owned());
    }
    found
}

fn is_password(name: &str) -> bool {
    name.to_ascii_lowercase().contains("password")
}

/// Where the password stands between the user's name and the last `@`.
fn user_password(base: &str) -> Option<(usize, usize)> {
    let start = base.find("://")? + 3;
    let end = start + base[start..].rfind('@')?;
    let colon = start + base[start..end].find(':')?;
    Some((colon + 1, end))
}

fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let digits = tail.get(..2).filter(|_| *first == b'%').and_then(|two| std::str::from_utf8(two).ok());
        match digits.and_then(|two| u8::from_str_radix(two, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATABASES: &[&str] = &["postgres://", "sqlite:"];

    #[test]
    fn a_url_is_shown_without_its_passwords() {
        for (url, expected) in [
            ("postgres://u:secret@h:5432/db", "postgres://u:***@h:5432/db"),
            ("postgres://u@h/db?sslmode=require&password=secret", "postgres://u@h/db?sslmode=require&password=***"),
            ("redis://:secret@h", "redis://:***@h"),
            ("postgres://h:1/db", "postgres://h:1/db"),
            ("sqlite:/a@b:c", "sqlite:/a@b:c"),
        ] {
            assert_eq!(shown(url), expected);
        }
    }

    #[test]
    fn passwords_are_found_as_written_and_as_meant() {
        assert_eq!(passwords("postgres://u:a%40b@h/db?sslpassword=x"), ["a@b", "a%40b", "x"]);
        assert!(passwords("postgres://u@h:5432/db").is_empty());
        assert_eq!(percent_decoded("%4"), "%4");
        assert_eq!(percent_decoded("%zz%41"), "%zzA");
    }

    #[test]
    fn what_would_be_read_otherwise_than_meant_is_refused() {
        for good in ["postgres://u:p@h/db", "postgres://h", "sqlite:a.db", "sqlite:///srv/a.db"] {
            assert_eq!(check_secret(good, DATABASES), Ok(()), "{good}");
        }
        for bad in [
            "mysql://h",
            "postgres://",
            "postgres:///db",
            "postgres://u:p/x@h/db",
            "postgres://u:p@x@h/db",
            "postgres://u:p#x@h/db",
            "postgres://h/a b",
            "sqlite:",
            "sqlite::memory:",
            "sqlite:a?mode=ro",
        ] {
            assert!(check_secret(bad, DATABASES).is_err(), "{bad}");
        }
        assert!(check_base("https://a.example/x").is_ok());
        for bad in ["a.example", "https://", "https://u@h", "http://h?x", "https://:80", "ftp://h"] {
            assert!(check_base(bad).is_err(), "{bad}");
        }
    }
}
