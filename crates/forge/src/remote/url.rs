//! The URL of a remote repository: which ones git may connect to, and which of them name the same repository.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use url::{Host, Url};

const MAX_URL_BYTES: usize = 2048;

/// The protocols that git may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    Https,
    /// Without encryption: only to this machine.
    Http,
    Ssh,
    /// A directory of this machine.
    File,
}

impl Protocol {
    /// The name in `GIT_ALLOW_PROTOCOL`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Https => "https",
            Self::Http => "http",
            Self::Ssh => "ssh",
            Self::File => "file",
        }
    }
}

/// A URL that cannot name a repository.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the repository's URL {reason}")]
pub struct InvalidUrl {
    reason: String,
}

fn refuse<T>(reason: impl Into<String>) -> Result<T, InvalidUrl> {
    Err(InvalidUrl { reason: reason.into() })
}

/// A checked URL. It contains no credentials, so it may appear in arguments, logs and events.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RemoteUrl {
    text: String,
    key: String,
    protocol: Protocol,
    /// Lower case; empty for a directory.
    host: String,
    port: Option<u16>,
    user: Option<String>,
    path: String,
}

impl RemoteUrl {
    /// Parses `https://…`, `ssh://…`, `user@host:path`, `file:///…`, or `http://…` of this machine.
    pub fn parse(text: &str) -> Result<Self, InvalidUrl> {
        if text.is_empty() || text.len() > MAX_URL_BYTES {
            return refuse(format!("must have 1 to {MAX_URL_BYTES} bytes"));
        }
        if text.starts_with('-') || text.contains(|character: char| character.is_control() || character.is_whitespace())
        {
            return refuse("begins with `-`, or contains spaces or control characters; check it");
        }
        if text.contains("://") { Self::parse_url(text) } else { Self::parse_scp(text) }
    }

    /// True if the text is a URL or of the form `user@host:path`, and no path.
    pub fn is_url(text: &str) -> bool {
        let is_scp = || text.split_once(':').is_some_and(|(host, path)| host.contains('@') && !path.is_empty());
        text.contains("://") || (is_scp() && !text.starts_with('/'))
    }

    fn parse_url(text: &str) -> Result<Self, InvalidUrl> {
        let Ok(url) = Url::parse(text) else { return refuse("is malformed; use https://HOST/PATH") };
        let protocol = match url.scheme() {
            "https" => Protocol::Https,
            "http" => Protocol::Http,
            "ssh" => Protocol::Ssh,
            "file" => Protocol::File,
            // The scheme has only letters, digits and `+-.`.
            other => return refuse(format!("has the protocol `{other}`; use https, ssh or file")),
        };
        if url.query().is_some() || url.fragment().is_some() {
            return refuse("has a query or a fragment; remove it");
        }
        let has_user = !url.username().is_empty();
        if url.password().is_some() || (has_user && protocol != Protocol::Ssh) {
            return refuse("contains credentials; remove them and configure git.credentials");
        }
        if protocol == Protocol::Http && !url.host().is_some_and(is_loopback) {
            return refuse("uses http, which encrypts nothing; use https");
        }
        let host = url.host_str().unwrap_or_default().to_ascii_lowercase();
        match protocol {
            Protocol::File if !(host.is_empty() || host == "localhost") => {
                return refuse("names a file of another machine; use https or ssh");
            }
            Protocol::Https | Protocol::Http | Protocol::Ssh if host.is_empty() => return refuse("has no host"),
            Protocol::File | Protocol::Https | Protocol::Http | Protocol::Ssh => {}
        }
        let user = has_user.then(|| url.username().to_owned());
        check_ssh_names(&host, user.as_deref())?;
        let path = trim_path(url.path());
        if path.is_empty() {
            return refuse("has no path of a repository");
        }
        // The parser removes `..`, which would make the text name another repository than the key.
        let text = if protocol == Protocol::Ssh { text.to_owned() } else { url.as_str().to_owned() };
        if text.split('/').any(|part| part == "..") {
            return refuse("contains `..`; use the path without it");
        }
        let host = if protocol == Protocol::File { String::new() } else { host };
        let at = user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
        let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
        let key = format!("{}://{at}{host}{port}/{path}", protocol.name());
        Ok(Self { text, key, protocol, host, port: url.port(), user, path })
    }

    /// Parses `user@host:path`; a relative path begins at the user's home directory.
    fn parse_scp(text: &str) -> Result<Self, InvalidUrl> {
        let form = "is neither https://HOST/PATH, ssh://USER@HOST/PATH, USER@HOST:PATH nor file:///PATH";
        let Some((login, path)) = text.split_once(':') else { return refuse(form) };
        let Some((user, host)) = login.split_once('@') else { return refuse(form) };
        if user.is_empty() || host.is_empty() || path.starts_with([':', '-']) {
            return refuse(form);
        }
        let host = host.to_ascii_lowercase();
        check_ssh_names(&host, Some(user))?;
        if path.split('/').any(|part| part == "..") {
            return refuse("contains `..`; use the path without it");
        }
        let (key_path, trimmed) = match path.strip_prefix('/') {
            Some(absolute) => (trim_path(absolute), trim_path(absolute)),
            None => (format!("~/{}", trim_path(path)), trim_path(path)),
        };
        if trimmed.is_empty() {
            return refuse("has no path of a repository");
        }
        let key = format!("ssh://{user}@{host}/{key_path}");
        let user = Some(user.to_owned());
        Ok(Self { text: text.to_owned(), key, protocol: Protocol::Ssh, host, port: None, user, path: trimmed })
    }

    /// The URL for git and for people.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Equal for URLs of the same repository that differ only in their spelling.
    pub fn identity_key(&self) -> &str {
        &self.key
    }

    pub const fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// The host in lower case; empty for a directory.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The host, with the port if it is not the protocol's default one.
    pub fn host_and_port(&self) -> String {
        self.port.map_or_else(|| self.host.clone(), |port| format!("{}:{port}", self.host))
    }

    /// The path without slashes at its ends and without `.git`, such as `owner/name`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The arguments of ssh that name the server. They are no options.
    pub(super) fn ssh_destination(&self) -> Vec<String> {
        let port = self.port.map(|port| ["-p".to_owned(), port.to_string()]);
        let user = self.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        port.into_iter().flatten().chain(["--".to_owned(), format!("{user}{host}")]).collect()
    }

    /// The path as programs on an ssh server get it; `None` for another protocol.
    pub(super) fn ssh_path(&self) -> Option<&str> {
        let (_, rest) = match self.text.split_once("://") {
            Some((_, rest)) => rest.split_once('/')?,
            None => self.text.split_once(':')?,
        };
        (self.protocol == Protocol::Ssh).then_some(rest)
    }

    /// True for a repository on this machine, which only its administrator may name.
    pub fn is_local(&self) -> bool {
        match self.protocol {
            Protocol::File => true,
            Protocol::Https | Protocol::Http | Protocol::Ssh => self.is_loopback_host(),
        }
    }

    /// True if the host is this machine.
    pub(crate) fn is_loopback_host(&self) -> bool {
        let address = self.host.trim_start_matches('[').trim_end_matches(']');
        self.host == "localhost" || address.parse().is_ok_and(|address: IpAddr| address.is_loopback())
    }

    /// The directory of a `file` URL.
    pub fn directory(&self) -> Option<PathBuf> {
        (self.protocol == Protocol::File).then(|| Url::parse(&self.text).ok()?.to_file_path().ok()).flatten()
    }

    /// Resolves the URL of a submodule, which may be relative (`../name`).
    pub fn resolve_submodule(&self, url: &str) -> Result<Self, InvalidUrl> {
        if !(url.starts_with("./") || url.starts_with("../")) {
            return Self::parse(url);
        }
        let base = self.text.trim_end_matches('/');
        let (mut base, mut rest) = (base.to_owned(), url);
        loop {
            if let Some(next) = rest.strip_prefix("./") {
                rest = next;
            } else if let Some(next) = rest.strip_prefix("../") {
                rest = next;
                // A path of the form `user@host:name` has no slash before its only component.
                let Some(end) = base.rfind('/').or_else(|| base.rfind(':').map(|colon| colon + 1)) else { break };
                base.truncate(end);
            } else {
                break;
            }
        }
        let separator = if base.ends_with([':', '/']) { "" } else { "/" };
        Self::parse(&format!("{base}{separator}{rest}"))
    }
}

impl fmt::Display for RemoteUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

pub(super) fn is_loopback(host: Host<&str>) -> bool {
    match host {
        Host::Domain(name) => name.eq_ignore_ascii_case("localhost"),
        Host::Ipv4(address) => address.is_loopback(),
        Host::Ipv6(address) => address.is_loopback(),
    }
}

/// Host and user are arguments of ssh, so neither may look like an option or contain unusual characters.
fn check_ssh_names(host: &str, user: Option<&str>) -> Result<(), InvalidUrl> {
    let is_word = |text: &str, more: &str| {
        text.chars().all(|character| character.is_ascii_alphanumeric() || more.contains(character))
            && !text.starts_with('-')
    };
    if !is_word(host, "-._:[]") {
        return refuse("has an unusual host name; check it");
    }
    if user.is_some_and(|user| user.is_empty() || !is_word(user, "-._")) {
        return refuse("has an unusual user name; check it");
    }
    Ok(())
}

fn trim_path(path: &str) -> String {
    let path = path.trim_matches('/');
    path.strip_suffix(".git").unwrap_or(path).trim_end_matches('/').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> String {
        RemoteUrl::parse(text).unwrap().identity_key().to_owned()
    }

    #[test]
    fn spellings_of_one_repository_have_one_key() {
        for same in [
            "https://Example.org/a/b",
            "https://example.org/a/b.git",
            "https://example.org:443/a/b.git/",
            "https://example.org/a/./b",
        ] {
            assert_eq!(key(same), "https://example.org/a/b", "{same}");
        }
        assert_eq!(key("git@example.org:a/b.git"), "ssh://git@example.org/~/a/b");
        assert_eq!(key("git@example.org:/srv/b"), key("ssh://git@example.org/srv/b.git"));
        assert_ne!(key("ssh://git@example.org/a"), key("git@example.org:a"), "one begins at the home directory");
        assert_ne!(key("https://example.org:8443/a"), key("https://example.org/a"));
        assert_ne!(key("https://example.org/A"), key("https://example.org/a"));
        assert_eq!(key("file:///srv/x.git"), key("file://localhost/srv/x/"));
    }

    #[test]
    fn names_its_parts() {
        let url = RemoteUrl::parse("https://example.org:8443/owner/name.git").unwrap();
        assert_eq!((url.host(), url.path(), url.protocol()), ("example.org", "owner/name", Protocol::Https));
        assert_eq!(url.host_and_port(), "example.org:8443");
        assert!(!url.is_local());
        let file = RemoteUrl::parse("file:///srv/a%20b.git").unwrap();
        assert!(file.is_local() && file.host().is_empty());
        assert_eq!(file.directory().unwrap(), PathBuf::from("/srv/a b.git"));
        for local in ["http://127.0.0.1:1/x", "http://localhost/x", "http://[::1]:80/x", "ssh://a@127.0.0.1:2/x"] {
            assert!(RemoteUrl::parse(local).unwrap().is_local(), "{local}");
        }
    }

    #[test]
    fn names_the_server_and_the_path_for_ssh() {
        let parts = |text: &str| {
            let url = RemoteUrl::parse(text).unwrap();
            (url.ssh_destination().join(" "), url.ssh_path().map(str::to_owned))
        };
        let expected = |destination: &str, path: &str| (destination.to_owned(), Some(path.to_owned()));
        assert_eq!(parts("git@h.example:a/b.git"), expected("-- git@h.example", "a/b.git"));
        assert_eq!(parts("ssh://git@h.example:2222/a/b.git"), expected("-p 2222 -- git@h.example", "a/b.git"));
        assert_eq!(parts("ssh://[::1]/a"), expected("-- ::1", "a"));
        assert_eq!(parts("https://h.example/a").1, None);
    }

    #[test]
    fn refuses_other_protocols_credentials_and_options() {
        for (text, reason) in [
            ("", "bytes"),
            ("-u@h:x", "begins with"),
            ("--upload-pack=x", "begins with"),
            ("https://h/a b", "spaces"),
            ("https://h/a\nb", "control"),
            ("ext::sh -c x", "spaces"),
            ("ext::x", "neither"),
            ("a@ext::x", "neither"),
            ("a@h:-x", "neither"),
            ("fd::3", "neither"),
            ("host:path", "neither"),
            ("/srv/x", "neither"),
            ("git://example.org/x", "protocol `git`"),
            ("ftp://example.org/x", "protocol `ftp`"),
            ("ext://x/y", "protocol `ext`"),
            ("http://example.org/x", "http, which"),
            ("https://user@example.org/x", "credentials"),
            ("https://user:pass@example.org/x", "credentials"),
            ("ssh://git:pass@example.org/x", "credentials"),
            ("https://example.org", "no path"),
            ("https://example.org/.git", "no path"),
            ("https://example.org/x?y", "query"),
            ("https://example.org/x#y", "query"),
            ("ssh://-oProxyCommand=x/y", "unusual"),
            ("ssh://-x@example.org/y", "unusual"),
            ("a$b@h:x", "unusual"),
            ("a@h;x:y", "unusual"),
            ("a@h:../x", ".."),
            ("file://other/x", "another machine"),
        ] {
            let error = RemoteUrl::parse(text).expect_err(text).to_string();
            assert!(error.contains(reason), "{text}: {error}");
            assert!(!error.contains("pass"), "{error}");
        }
    }

    #[test]
    fn submodules_are_relative_to_their_repository() {
        let resolve = |base: &str, url: &str| {
            RemoteUrl::parse(base).unwrap().resolve_submodule(url).map(|url| url.as_str().to_owned())
        };
        assert_eq!(resolve("https://h/a/b.git", "../c.git").unwrap(), "https://h/a/c.git");
        assert_eq!(resolve("https://h/a/b", "../../x/c").unwrap(), "https://h/x/c");
        assert_eq!(resolve("https://h/a/b", "./c").unwrap(), "https://h/a/b/c");
        assert_eq!(resolve("git@h:a/b", "../c").unwrap(), "git@h:a/c");
        assert_eq!(resolve("git@h:b", "../c").unwrap(), "git@h:c");
        assert_eq!(resolve("https://h/a/b", "https://other/x").unwrap(), "https://other/x");
        for refused in ["ext::x", "-x", "git://h/x", "../a b", "/srv/x", "https://u:p@h/x"] {
            assert!(resolve("https://h/a/b", refused).is_err(), "{refused}");
        }
    }
}
