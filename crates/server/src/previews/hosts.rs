//! The host names of previews.

use atoll_config::Config;
use std::net::IpAddr;

const TOKEN_ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
/// Five random bits each.
const TOKEN_CHARS: usize = 32;
/// Browsers resolve its subdomains to their own machine.
const LOCAL_DOMAIN: &str = "localhost";

/// Generates a token with 160 random bits, which is a valid label of a host name.
pub fn generate_token() -> String {
    let random = rand::random::<[u8; TOKEN_CHARS]>();
    random.iter().map(|byte| char::from(TOKEN_ALPHABET[usize::from(byte & 31)])).collect()
}

fn is_token(label: &str) -> bool {
    label.len() == TOKEN_CHARS && label.bytes().all(|byte| TOKEN_ALPHABET.contains(&byte))
}

/// The domain of previews for clients on other machines.
#[derive(Debug, Clone)]
struct PreviewDomain {
    scheme: &'static str,
    name: String,
    /// With its colon; empty for the scheme's own port.
    port: String,
}

#[derive(Debug, Clone, Default)]
pub struct PreviewHosts {
    domain: Option<PreviewDomain>,
    has_tls: bool,
}

impl PreviewHosts {
    pub fn new(config: &Config) -> Self {
        let public = config.server.public_url.as_deref().and_then(|url| url.split_once("://"));
        let has_tls = config.server.tls().is_some();
        let is_https = public.map_or(has_tls, |(scheme, _)| scheme == "https");
        let domain = config.preview.domain.as_deref().map(|text| {
            let text = text.to_ascii_lowercase();
            let (name, port) = text.split_at(text.find(':').unwrap_or(text.len()));
            PreviewDomain {
                scheme: if is_https { "https" } else { "http" },
                name: name.to_owned(),
                port: port.to_owned(),
            }
        });
        Self { domain, has_tls }
    }

    /// The token in a host name, if it is one of a preview.
    pub fn find_token<'h>(&self, host: &'h str) -> Option<&'h str> {
        let (label, domain) = host.split_once('.')?;
        let is_known = domain == LOCAL_DOMAIN || self.domain.as_ref().is_some_and(|known| known.name == domain);
        Some(label).filter(|label| is_known && is_token(label))
    }

    /// The URL of a preview for a client that reaches the page at `authority`. `None` if that is another machine and there
    /// is no domain for previews.
    pub fn preview_url(&self, token: &str, authority: &str) -> Option<String> {
        if let Some(PreviewDomain { scheme, name, port }) = &self.domain {
            return Some(format!("{scheme}://{token}.{name}{port}/"));
        }
        let port = local_port(authority)?;
        Some(format!("{}://{token}.{LOCAL_DOMAIN}{port}/", self.local_scheme()))
    }

    /// The origins of all previews, for a content security policy of the page at `authority`.
    pub fn frame_sources(&self, authority: &str) -> String {
        let domain = self.domain.as_ref().map(|domain| format!("{}://*.{}{}", domain.scheme, domain.name, domain.port));
        let local = local_port(authority).map(|port| format!("{}://*.{LOCAL_DOMAIN}{port}", self.local_scheme()));
        let sources: Vec<String> = domain.into_iter().chain(local).collect();
        if sources.is_empty() { "'none'".to_owned() } else { sources.join(" ") }
    }

    /// The scheme of requests to a preview's host.
    pub fn scheme_of(&self, host: &str) -> &'static str {
        let domain = self.domain.as_ref().filter(|domain| host.strip_suffix(&domain.name).is_some());
        domain.map_or(self.local_scheme(), |domain| domain.scheme)
    }

    const fn local_scheme(&self) -> &'static str {
        if self.has_tls { "https" } else { "http" }
    }
}

/// The port of a loopback host, with its colon.
fn local_port(authority: &str) -> Option<&str> {
    let end = authority.rfind(']').map_or(0, |bracket| bracket + 1);
    let (host, port) = authority.split_at(authority[end..].find(':').map_or(authority.len(), |colon| end + colon));
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    let is_local = host == LOCAL_DOMAIN
        || host.strip_suffix(LOCAL_DOMAIN).is_some_and(|name| name.ends_with('.'))
        || address.is_ok_and(|address| address.is_loopback());
    is_local.then_some(port)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_domain(domain: &str, public_url: Option<&str>) -> PreviewHosts {
        let mut config = Config::default();
        config.preview.domain = Some(domain.to_owned());
        config.server.public_url = public_url.map(str::to_owned);
        PreviewHosts::new(&config)
    }

    #[test]
    fn finds_the_token_only_in_hosts_of_previews() {
        let token = generate_token();
        let hosts = with_domain("Previews.example.net", None);
        for domain in ["localhost", "previews.example.net"] {
            assert_eq!(hosts.find_token(&format!("{token}.{domain}")), Some(token.as_str()));
        }
        for bad in [
            "localhost".to_owned(),
            format!("{token}.example.net"),
            format!("{token}.localhost.evil.example"),
            format!("{token}.localhost."),
            format!("a.{token}.localhost"),
            format!("{}.localhost", &token[1..]),
            format!("{}.localhost", token.to_uppercase()),
            format!("{}1.localhost", &token[1..]),
            format!(".{token}.localhost"),
        ] {
            assert_eq!(hosts.find_token(&bad), None, "{bad}");
        }
        assert_eq!(PreviewHosts::default().find_token(&format!("{token}.previews.example.net")), None);
    }

    #[test]
    fn the_url_has_the_port_that_the_client_uses() {
        let local = PreviewHosts::default();
        for (authority, expected) in [
            ("localhost:7700", Some("http://t.localhost:7700/")),
            ("127.0.0.1:8800", Some("http://t.localhost:8800/")),
            ("[::1]:7700", Some("http://t.localhost:7700/")),
            ("[::1]", Some("http://t.localhost/")),
            ("atoll.localhost:1", Some("http://t.localhost:1/")),
            ("atoll.example.org", None),
            ("10.0.0.1:7700", None),
            ("notlocalhost:1", None),
        ] {
            assert_eq!(local.preview_url("t", authority).as_deref(), expected, "{authority}");
        }
        let public = with_domain("previews.example.net:8443", Some("https://atoll.example.org"));
        let url = public.preview_url("t", "atoll.example.org").unwrap();
        assert_eq!(url, "https://t.previews.example.net:8443/");
        assert_eq!(public.frame_sources("atoll.example.org"), "https://*.previews.example.net:8443");
        assert_eq!(local.frame_sources("localhost:7700"), "http://*.localhost:7700");
        assert_eq!(local.frame_sources("atoll.example.org"), "'none'");
    }
}
