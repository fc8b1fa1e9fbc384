//! Protects against hostile web pages: checks the Host and Origin headers of every request.

use crate::auth::LinkedWorker;
use crate::previews::{self, PreviewHosts};
use crate::problem::{Code, Problem};
use crate::state::App;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// The host names that this server accepts.
#[derive(Debug)]
pub struct Hosts {
    names: Vec<String>,
    /// The listen address, unless it is unspecified ("every address").
    address: Option<IpAddr>,
    /// Host and port of the public URL.
    public: Option<String>,
}

impl Hosts {
    pub fn new(listen: SocketAddr, further: &[String], public_url: Option<&str>) -> Self {
        let mut names: Vec<String> = ["localhost".to_owned()].into_iter().collect();
        names.extend(further.iter().map(|name| name.to_ascii_lowercase()));
        let public = public_url.and_then(|url| url.parse::<Uri>().ok());
        names.extend(public.as_ref().and_then(|uri| uri.host().map(str::to_ascii_lowercase)));
        let public = public.and_then(|uri| uri.authority().map(|found| found.as_str().to_ascii_lowercase()));
        let address = Some(listen.ip()).filter(|ip| !ip.is_unspecified());
        Self { names, address, public }
    }

    fn serves(&self, host: &str) -> bool {
        let host = host.to_ascii_lowercase();
        if let Ok(ip) = host.trim_matches(['[', ']']).parse::<IpAddr>() {
            return ip.is_loopback() || self.address == Some(ip);
        }
        self.names.contains(&host)
    }
}

/// Parses `host[:port]`. Rejects user info and non-numeric ports.
fn parse_host(authority: &str) -> Option<String> {
    let authority: axum::http::uri::Authority = authority.parse().ok()?;
    let behind = authority.as_str().strip_prefix(authority.host())?;
    let is_port = behind.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok());
    (behind.is_empty() || is_port).then(|| authority.host().to_owned())
}

/// Host and port of the request. Several hosts, or another one in the URL, are none.
fn request_authority(request: &Request) -> Option<String> {
    let mut named = request.headers().get_all(header::HOST).iter();
    let in_url = request.uri().authority().map(|authority| authority.as_str().to_ascii_lowercase());
    match (named.next(), named.next()) {
        (Some(value), None) => {
            let host = value.to_str().ok().map(str::to_ascii_lowercase)?;
            in_url.is_none_or(|in_url| in_url == host).then_some(host)
        }
        (None, _) => in_url,
        (Some(_), Some(_)) => None,
    }
}

/// True if a page of a preview caused the request.
fn is_from_preview(previews: &PreviewHosts, request: &Request) -> bool {
    let origin = request.headers().get(header::ORIGIN).and_then(|origin| origin.to_str().ok()).unwrap_or_default();
    let host = origin.split_once("://").and_then(|(_, authority)| parse_host(&authority.to_ascii_lowercase()));
    host.is_some_and(|host| previews.find_token(&host).is_some())
}

/// True for requests from our own pages and from programs, which send no Origin. Another port is another origin.
fn origin_is_own(hosts: &Hosts, request: &Request) -> bool {
    let Some(origin) = request.headers().get(header::ORIGIN) else { return true };
    let origin = origin.to_str().unwrap_or_default().to_ascii_lowercase();
    let Some((_, page)) = origin.split_once("://") else { return false };
    request_authority(request).is_some_and(|own| own == page) || hosts.public.as_deref() == Some(page)
}

fn refuse_request(app: &App, hosts: &Hosts, host: &str, request: &Request) -> Option<Problem> {
    if !hosts.serves(host) {
        let detail = "use an address that the server listens on, or add the name to server.hosts";
        return Some(Problem::new(Code::ForeignHost, detail));
    }
    let reads = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    let upgrades = request.headers().contains_key(header::UPGRADE);
    let is_foreign = (!reads || upgrades) && !origin_is_own(hosts, request);
    (is_foreign || is_from_preview(&app.preview_hosts, request))
        .then(|| Problem::new(Code::ForeignOrigin, "pages of other origins cannot write or open WebSockets"))
}

/// Serves requests to the host of a preview, which have no access to the API, and checks all others.
pub async fn check_host_and_origin(
    State((app, hosts)): State<(Arc<App>, Arc<Hosts>)>,
    request: Request,
    next: Next,
) -> Response {
    let authority = request_authority(&request).unwrap_or_default();
    let host = parse_host(&authority).unwrap_or_default();
    let is_linked = request.extensions().get::<LinkedWorker>().is_some();
    if let Some(token) = app.preview_hosts.find_token(&host).filter(|_| !is_linked).map(str::to_owned) {
        return previews::serve_preview(app, token, authority, request).await;
    }
    let mut response = match refuse_request(&app, &hosts, &host, &request) {
        Some(problem) => problem.into_response(),
        None => next.run(request).await,
    };
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    headers
        .entry(header::CONTENT_SECURITY_POLICY)
        .or_insert(HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'; sandbox"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serves_only_its_own_names() {
        let hosts = Hosts::new("10.1.2.3:80".parse().unwrap(), &["Box.example".into()], Some("https://pub.example:8"));
        for good in
            ["localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "[::1]", "10.1.2.3", "box.example", "pub.example"]
        {
            assert!(hosts.serves(good), "{good}");
        }
        for bad in ["evil.example", "10.1.2.4", "localhost.evil.example", "", "0.0.0.0"] {
            assert!(!hosts.serves(bad), "{bad}");
        }
    }

    #[test]
    fn parses_ports_and_rejects_user_info() {
        assert_eq!(parse_host("localhost:7700").as_deref(), Some("localhost"));
        assert_eq!(parse_host("[::1]:7700").as_deref(), Some("[::1]"));
        assert_eq!(parse_host("localhost@evil.example"), None);
        assert_eq!(parse_host("localhost:port"), None);
        assert_eq!(parse_host("a b"), None);
    }
}
