//! The web page, which the program embeds. Without it, `/` says how to build it.

use crate::previews::PreviewHosts;
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};
use std::collections::HashMap;

/// A file of the page, with its compressed forms if they are smaller.
#[derive(Debug, Clone, Copy)]
pub struct PageFile {
    /// Its path without the leading slash.
    pub path: &'static str,
    pub content: &'static [u8],
    pub brotli: Option<&'static [u8]>,
    pub gzip: Option<&'static [u8]>,
}

const INDEX: &str = "index.html";
/// Files in this directory have a hash of their content in their names.
const HASHED_DIR: &str = "assets/";

const NOT_BUILT: &str = "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Atoll</title>\
    <h1>Atoll</h1><p>The server runs, but this program was built without the page.</p>\
    <p>Run <code>make build</code> in the source directory to build both. The command line works without the page.</p>\
    </html>\n";

pub struct Page {
    files: HashMap<&'static str, (PageFile, HeaderValue)>,
}

impl Page {
    pub fn new(files: &'static [PageFile]) -> Self {
        let entry = |file: &PageFile| (file.path, (*file, entity_tag(file.content)));
        Self { files: files.iter().map(entry).collect() }
    }

    /// Answers a request for a file or for one of the page's own routes. `None` if the path belongs to neither.
    pub fn respond(
        &self,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
        previews: &PreviewHosts,
    ) -> Option<Response> {
        if !matches!(*method, Method::GET | Method::HEAD) {
            return None;
        }
        let path = path.trim_start_matches('/');
        let is_root = path.is_empty() || path == INDEX;
        let wanted = if is_root || is_page_route(path) && accepts_html(headers) { INDEX } else { path };
        let mut response = match self.files.get(wanted) {
            Some((file, tag)) => file_response(file, tag, headers),
            None if is_root => ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], NOT_BUILT).into_response(),
            None => return None,
        };
        let host = headers.get(header::HOST).and_then(|value| value.to_str().ok()).unwrap_or_default();
        // Also for scripts: a worker has the policy of its own script.
        set_page_headers(response.headers_mut(), &previews.frame_sources(&host.to_ascii_lowercase()));
        Some(response)
    }
}

/// The page's routes have no file extension, and are not below the API's or the files' paths.
fn is_page_route(path: &str) -> bool {
    let is_other = ["api/", "docs/", HASHED_DIR].iter().any(|prefix| path.starts_with(prefix));
    !is_other && !path.rsplit('/').next().is_some_and(|name| name.contains('.'))
}

fn accepts_html(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted.flat_map(|value| value.split(',')).any(|kind| kind.trim().starts_with("text/html"))
}

fn entity_tag(content: &[u8]) -> HeaderValue {
    let hash: String = Sha256::digest(content).iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    HeaderValue::from_str(&format!("W/\"{hash}\"")).unwrap_or(HeaderValue::from_static("W/\"page\""))
}

fn file_response(file: &PageFile, tag: &HeaderValue, request: &HeaderMap) -> Response {
    let known = request.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let is_known = known.flat_map(|value| value.split(',')).any(|known| known.trim().as_bytes() == tag.as_bytes());
    let (content, encoding) = choose_encoding(file, request);
    let mut response = if is_known { StatusCode::NOT_MODIFIED.into_response() } else { content.into_response() };
    let headers = response.headers_mut();
    headers.insert(header::ETAG, tag.clone());
    headers.insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    let caching = if file.path.starts_with(HASHED_DIR) { "public, max-age=31536000, immutable" } else { "no-cache" };
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(caching));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type(file.path)));
    if let Some(encoding) = encoding.filter(|_| !is_known) {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(encoding));
    }
    response
}

/// The smallest form that the client accepts.
fn choose_encoding(file: &PageFile, request: &HeaderMap) -> (&'static [u8], Option<&'static str>) {
    let accepted = request.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    let accepted: Vec<&str> = accepted.flat_map(|value| value.split(',')).collect();
    let accepts = |encoding: &str| {
        accepted.iter().any(|entry| {
            let (name, quality) = entry.split_once(';').unwrap_or((entry, ""));
            let quality = quality.trim().strip_prefix("q=").unwrap_or("1").parse::<f32>();
            name.trim().eq_ignore_ascii_case(encoding) && quality.is_ok_and(|quality| quality > 0.0)
        })
    };
    match (file.brotli.filter(|_| accepts("br")), file.gzip.filter(|_| accepts("gzip"))) {
        (Some(content), _) => (content, Some("br")),
        (None, Some(content)) => (content, Some("gzip")),
        (None, None) => (file.content, None),
    }
}

fn content_type(path: &str) -> &'static str {
    match path.rsplit('.').next().unwrap_or_default() {
        "html" => "text/html; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "json" | "map" => "application/json",
        "webmanifest" => "application/manifest+json",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "ico" => "image/x-icon",
        "webp" => "image/webp",
        "woff2" => "font/woff2",
        "txt" => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

/// Confines the page: it runs only its own scripts, talks only to this server, and is in no frame.
fn set_page_headers(headers: &mut HeaderMap, frames: &str) {
    let policy = format!(
        "default-src 'none'; script-src 'self'; worker-src 'self'; connect-src 'self'; \
         style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self'; manifest-src 'self'; \
         frame-src {frames}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    if let Ok(policy) = HeaderValue::from_str(&policy) {
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    let others = [
        ("x-frame-options", "DENY"),
        ("cross-origin-opener-policy", "same-origin"),
        ("origin-agent-cluster", "?1"),
        ("permissions-policy", "camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
    ];
    for (name, value) in others {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: &[PageFile] = &[
        PageFile { path: "index.html", content: b"<html>", brotli: Some(b"BR"), gzip: Some(b"GZ") },
        PageFile { path: "assets/app-1a2b.js", content: b"script", brotli: Some(b"BR"), gzip: Some(b"GZ") },
        PageFile { path: "icon.svg", content: b"<svg/>", brotli: None, gzip: None },
    ];

    fn get(page: &Page, path: &str, lines: &[(&'static str, &str)]) -> Option<Response> {
        let headers = lines.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()));
        let headers: HeaderMap = headers.chain([(header::HOST, HeaderValue::from_static("localhost:7700"))]).collect();
        page.respond(&Method::GET, path, &headers, &PreviewHosts::default())
    }

    async fn body(response: Response) -> Vec<u8> {
        axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap().to_vec()
    }

    #[tokio::test]
    async fn serves_each_file_in_the_smallest_accepted_form() {
        let page = Page::new(FILES);
        for (accepted, encoding, expected) in [
            ("gzip, deflate, br", Some("br"), &b"BR"[..]),
            ("br;q=0, gzip;q=0.5", Some("gzip"), b"GZ"),
            ("identity", None, b"script"),
        ] {
            let response = get(&page, "/assets/app-1a2b.js", &[("accept-encoding", accepted)]).unwrap();
            let headers = response.headers();
            assert_eq!(headers.get("content-encoding").map(|value| value.to_str().unwrap()), encoding, "{accepted}");
            assert_eq!(headers["cache-control"], "public, max-age=31536000, immutable");
            assert_eq!(headers["content-type"], "text/javascript; charset=utf-8");
            assert!(headers["content-security-policy"].to_str().unwrap().contains("connect-src 'self'"));
            assert_eq!(body(response).await, expected);
        }
        let plain = get(&page, "/icon.svg", &[("accept-encoding", "br")]).unwrap();
        assert!(!plain.headers().contains_key("content-encoding"));
        assert_eq!(plain.headers()["cache-control"], "no-cache");
    }

    #[tokio::test]
    async fn routes_of_the_page_get_the_index() {
        let page = Page::new(FILES);
        let html = [("accept", "text/html,application/xhtml+xml")];
        for path in ["/", "/index.html", "/sandboxes/sbx_1", "/sign-in"] {
            let response = get(&page, path, &html).unwrap();
            assert_eq!(response.headers()["content-type"], "text/html; charset=utf-8", "{path}");
            let policy = response.headers()["content-security-policy"].to_str().unwrap().to_owned();
            assert!(policy.contains("script-src 'self';") && policy.contains("frame-ancestors 'none'"), "{policy}");
            assert!(policy.contains("frame-src http://*.localhost:7700;"), "{policy}");
        }
        for path in ["/api/v1/nope", "/assets/gone.js", "/favicon.ico", "/docs/errors/nope"] {
            assert!(get(&page, path, &html).is_none(), "{path}");
        }
        assert!(get(&page, "/sandboxes/sbx_1", &[("accept", "*/*")]).is_none(), "programs get the API's 404");
    }

    #[tokio::test]
    async fn the_index_is_revalidated() {
        let page = Page::new(FILES);
        let first = get(&page, "/", &[]).unwrap();
        let tag = first.headers()["etag"].to_str().unwrap().to_owned();
        assert_eq!(first.headers()["cache-control"], "no-cache");
        let again = get(&page, "/", &[("if-none-match", format!("\"x\", {tag}").as_str())]).unwrap();
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
        assert!(body(again).await.is_empty());
    }

    #[tokio::test]
    async fn without_the_page_the_root_says_how_to_build_it() {
        let page = Page::new(&[]);
        let text = body(get(&page, "/", &[]).unwrap()).await;
        assert!(String::from_utf8(text).unwrap().contains("make build"));
        assert!(get(&page, "/sandboxes", &[("accept", "text/html")]).is_none());
    }
}
