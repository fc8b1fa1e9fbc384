//! Formats of URLs. A URL with a password is shown without it, and the redactor gets the password.

use super::{BaseDirs, Format, Mismatch, PlainFormat, RawInput, resolve_path};
use crate::values::Database;
use secrecy::{ExposeSecret, SecretString};

/// A base URL without credentials and without a trailing slash.
pub(crate) const BASE_URL: PlainFormat<String> = PlainFormat {
    expected: "a URL that begins with http:// or https://, without user, query and fragment",
    parse: |input, _| {
        let (text, _) = input.scalar_text()?;
        check_base_url(text).map_err(|detail| Mismatch::with_detail(text, detail))?;
        Ok(text.trim_end_matches('/').to_owned())
    },
    show: String::clone,
};

/// A URL with one of these schemes that may hold a password.
pub(crate) struct SecretUrl(pub(crate) &'static [&'static str]);

impl Format for SecretUrl {
    type Value = SecretString;
    const IS_SECRET: bool = true;

    fn describe_expected(&self) -> String {
        let schemes = self.0.join(" or ");
        format!("a URL that begins with {schemes}, with special characters percent-encoded (the value is not shown)")
    }

    fn parse_value(&self, input: &RawInput<'_>, _: &BaseDirs<'_>) -> Result<SecretString, Mismatch> {
        let (text, _) = input.scalar_text()?;
        super::check_line(text).map_err(|detail| Mismatch::with_detail(text, detail))?;
        check_secret_url(text, self.0).map_err(|detail| Mismatch::with_detail(text, detail))?;
        Ok(text.into())
    }

    fn show_value(&self, value: &SecretString) -> String {
        hide_passwords(value.expose_secret())
    }

    fn secret_parts(&self, value: &SecretString) -> Vec<SecretString> {
        let passwords = find_passwords(value.expose_secret());
        let whole = (!passwords.is_empty()).then(|| value.clone());
        passwords.into_iter().map(SecretString::from).chain(whole).collect()
    }
}

/// `postgres://…` or `sqlite:PATH`.
pub(crate) struct DatabaseUrl;

const DATABASE_URL_FORMAT: SecretUrl = SecretUrl(&["postgres://", "postgresql://", "sqlite:"]);

impl Format for DatabaseUrl {
    type Value = Database;
    const IS_SECRET: bool = true;

    fn describe_expected(&self) -> String {
        DATABASE_URL_FORMAT.describe_expected()
    }

    fn parse_value(&self, input: &RawInput<'_>, dirs: &BaseDirs<'_>) -> Result<Database, Mismatch> {
        let url = DATABASE_URL_FORMAT.parse_value(input, dirs)?;
        match sqlite_path(url.expose_secret()) {
            Some(file) => Ok(Database::Sqlite { path: resolve_path(file, dirs)? }),
            None => Ok(Database::Postgres { url }),
        }
    }

    fn show_value(&self, value: &Database) -> String {
        match value {
            Database::Sqlite { path } => format!("sqlite:{}", path.display()),
            Database::Postgres { url } => DATABASE_URL_FORMAT.show_value(url),
        }
    }

    fn secret_parts(&self, value: &Database) -> Vec<SecretString> {
        match value {
            Database::Sqlite { .. } => Vec::new(),
            Database::Postgres { url } => DATABASE_URL_FORMAT.secret_parts(url),
        }
    }
}

const HIDDEN: &str = "***";

/// Checks a URL that may hold credentials. The error repeats no part of it.
fn check_secret_url(url: &str, schemes: &[&str]) -> Result<(), String> {
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
    // After a raw `/`, `?`, `#` or `@` in a password, the rest of the password would parse as another part of the URL.
    if path.contains('@') || authority.matches('@').count() > 1 || rest.contains('#') {
        return Err("`@`, `/`, `?` and `#` in a user name or password must be written %40, %2F, %3F and %23".to_owned());
    }
    if authority.is_empty() {
        return Err("it names no host".to_owned());
    }
    Ok(())
}

/// The file that a `sqlite:` URL names: `sqlite:PATH` or `sqlite://PATH`.
fn sqlite_path(url: &str) -> Option<&str> {
    let rest = url.strip_prefix("sqlite:")?;
    let path = rest.strip_prefix("//").unwrap_or(rest);
    let usable = !path.is_empty() && !path.starts_with(':') && !path.contains(['?', '#']);
    (usable && !path.chars().any(char::is_control)).then_some(path)
}

/// Checks a URL to which Atoll appends paths.
pub(crate) fn check_base_url(url: &str) -> Result<(), String> {
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

/// Replaces the passwords of a URL with `***`.
fn hide_passwords(url: &str) -> String {
    let (base, query) = url.split_once('?').map_or((url, None), |(base, query)| (base, Some(query)));
    let mut hidden = match password_range(base) {
        Some((start, end)) => format!("{}{HIDDEN}{}", &base[..start], &base[end..]),
        None => base.to_owned(),
    };
    for (n, pair) in query.into_iter().flat_map(|query| query.split('&')).enumerate() {
        hidden.push(if n == 0 { '?' } else { '&' });
        match pair.split_once('=') {
            Some((name, _)) if is_password_name(name) => hidden.push_str(&format!("{name}={HIDDEN}")),
            _ => hidden.push_str(pair),
        }
    }
    hidden
}

/// The passwords in a URL, both percent-encoded and decoded.
fn find_passwords(url: &str) -> Vec<String> {
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let in_user = password_range(base).map(|(start, end)| &base[start..end]);
    let in_query = query.split('&').filter_map(|pair| pair.split_once('=')).filter(|(name, _)| is_password_name(name));
    let mut found = Vec::new();
    for encoded in in_user.into_iter().chain(in_query.map(|(_, value)| value)) {
        let decoded = percent_decode(encoded);
        if decoded != encoded {
            found.push(decoded);
        }
        found.push(encoded.to_owned());
    }
    found
}

fn is_password_name(name: &str) -> bool {
    name.to_ascii_lowercase().contains("password")
}

/// The byte range of the password between the user name and the last `@`.
fn password_range(base: &str) -> Option<(usize, usize)> {
    let start = base.find("://")? + 3;
    let end = start + base[start..].rfind('@')?;
    let colon = start + base[start..end].find(':')?;
    Some((colon + 1, end))
}

fn percent_decode(text: &str) -> String {
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

    #[test]
    fn hides_passwords() {
        for (url, expected) in [
            ("postgres://u:secret@h:5432/db", "postgres://u:***@h:5432/db"),
            ("postgres://u@h/db?sslmode=require&password=secret", "postgres://u@h/db?sslmode=require&password=***"),
            ("redis://:secret@h", "redis://:***@h"),
            ("postgres://h:1/db", "postgres://h:1/db"),
            ("sqlite:/a@b:c", "sqlite:/a@b:c"),
        ] {
            assert_eq!(hide_passwords(url), expected);
        }
    }

    #[test]
    fn finds_passwords_encoded_and_decoded() {
        assert_eq!(find_passwords("postgres://u:a%40b@h/db?sslpassword=x"), ["a@b", "a%40b", "x"]);
        assert!(find_passwords("postgres://u@h:5432/db").is_empty());
        assert_eq!(percent_decode("%4"), "%4");
        assert_eq!(percent_decode("%zz%41"), "%zzA");
    }

    #[test]
    fn rejects_ambiguous_urls() {
        for good in ["postgres://u:p@h/db", "postgres://h", "sqlite:a.db", "sqlite:///srv/a.db"] {
            assert_eq!(check_secret_url(good, DATABASE_URL_FORMAT.0), Ok(()), "{good}");
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
            assert!(check_secret_url(bad, DATABASE_URL_FORMAT.0).is_err(), "{bad}");
        }
        assert!(check_base_url("https://a.example/x").is_ok());
        for bad in ["a.example", "https://", "https://u@h", "http://h?x", "https://:80", "ftp://h"] {
            assert!(check_base_url(bad).is_err(), "{bad}");
        }
    }
}
