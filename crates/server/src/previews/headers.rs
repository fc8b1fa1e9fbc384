//! Headers of requests to a preview and of its responses.
//!
//! The program in the sandbox sees a request to `localhost:PORT`, with neither the preview's host, whose token is a
//! secret, nor anything that belongs to Atoll. Its response cannot reach beyond the preview's own host.

use crate::auth::sign_in::is_page_cookie;
use crate::egress::hop_headers::strip_hop_headers;
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};

/// Prefix of Atoll's tokens in `Authorization`.
const TOKEN_PREFIX: &str = "atoll_";

/// Prepares a request's headers for the program. `origin` is the preview's own origin.
pub fn prepare_request(headers: &mut HeaderMap, origin: &str, port: u16, upgrade: Option<&HeaderValue>) {
    strip_hop_headers(headers, upgrade);
    let foreign: Vec<HeaderName> = headers.keys().filter(|name| is_of_proxies(name.as_str())).cloned().collect();
    for name in foreign {
        headers.remove(name);
    }
    let is_atoll_token = |value: &HeaderValue| value.to_str().is_ok_and(|text| text.contains(TOKEN_PREFIX));
    if headers.get_all(header::AUTHORIZATION).iter().any(is_atoll_token) {
        headers.remove(header::AUTHORIZATION);
    }
    remove_page_cookies(headers);
    let target = format!("localhost:{port}");
    for name in [header::ORIGIN, header::REFERER] {
        let replaced = headers.get(&name).and_then(|value| value.to_str().ok()).and_then(|text| {
            let rest = text.strip_prefix(origin).filter(|rest| rest.is_empty() || rest.starts_with('/'))?;
            HeaderValue::from_str(&format!("http://{target}{rest}")).ok()
        });
        if let Some(value) = replaced {
            headers.insert(name, value);
        }
    }
    headers.remove(header::HOST);
    if let Ok(value) = HeaderValue::from_str(&target) {
        headers.insert(header::HOST, value);
    }
}

/// Headers of Atoll, and those by which proxies describe the client's request.
fn is_of_proxies(name: &str) -> bool {
    name.starts_with("x-atoll-")
        || name.starts_with("x-forwarded-")
        || ["forwarded", "via", "x-real-ip", "x-original-host"].contains(&name)
}

fn remove_page_cookies(headers: &mut HeaderMap) {
    let lines: Vec<HeaderValue> = headers.get_all(header::COOKIE).iter().cloned().collect();
    headers.remove(header::COOKIE);
    for line in lines {
        // A line that is not text cannot be checked.
        let Ok(text) = line.to_str() else { continue };
        let is_other = |pair: &&str| !is_page_cookie(pair.split('=').next().unwrap_or_default().trim());
        let kept: Vec<&str> = text.split(';').map(str::trim).filter(is_other).collect();
        if let Ok(value) = HeaderValue::from_str(&kept.join("; "))
            && !kept.is_empty()
        {
            headers.append(header::COOKIE, value);
        }
    }
}

/// Confines a response of the program to the preview's own host, and lets the page show it in a frame.
pub fn confine_response(headers: &mut HeaderMap, origin: &str, port: u16, upgrade: Option<&HeaderValue>) {
    strip_hop_headers(headers, upgrade);
    let cookies: Vec<HeaderValue> = headers.get_all(header::SET_COOKIE).iter().cloned().collect();
    headers.remove(header::SET_COOKIE);
    for cookie in cookies.iter().filter_map(host_only_cookie) {
        headers.append(header::SET_COOKIE, cookie);
    }
    let location = headers.get(header::LOCATION).and_then(|value| value.to_str().ok());
    if let Some(location) = location.and_then(|text| own_location(text, origin, port)) {
        headers.insert(header::LOCATION, location);
    }
    headers.remove(header::X_FRAME_OPTIONS);
    // It would clear cookies of the whole domain.
    headers.remove("clear-site-data");
    for name in [header::CONTENT_SECURITY_POLICY, header::CONTENT_SECURITY_POLICY_REPORT_ONLY] {
        let policies: Vec<HeaderValue> = headers.get_all(&name).iter().cloned().collect();
        headers.remove(&name);
        for policy in policies.iter().filter_map(|policy| without_frame_ancestors(policy.to_str().ok()?)) {
            headers.append(name.clone(), policy);
        }
    }
    // The host name holds the token, so no other origin may learn it from `Referer`.
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("same-origin"));
}

/// The cookie without `Domain`; `None` if it has the name of Atoll's own.
fn host_only_cookie(cookie: &HeaderValue) -> Option<HeaderValue> {
    let text = cookie.to_str().ok()?;
    let mut parts = text.split(';');
    let pair = parts.next()?;
    if is_page_cookie(pair.split('=').next()?.trim()) {
        return None;
    }
    let is_domain = |part: &&str| part.split('=').next().is_some_and(|name| name.trim().eq_ignore_ascii_case("domain"));
    let kept: Vec<&str> = std::iter::once(pair).chain(parts.filter(|part| !is_domain(part))).collect();
    HeaderValue::from_str(&kept.join(";")).ok()
}

/// A redirect to the program's own address, as the browser reaches it.
fn own_location(location: &str, origin: &str, port: u16) -> Option<HeaderValue> {
    let (_, rest) = location.split_once("://")?;
    let hosts = ["localhost", "127.0.0.1", "[::1]", "0.0.0.0"];
    let rest = hosts.iter().find_map(|host| rest.strip_prefix(&format!("{host}:{port}")))?;
    let is_whole = rest.is_empty() || rest.starts_with(['/', '?', '#']);
    HeaderValue::from_str(&format!("{origin}{rest}")).ok().filter(|_| is_whole)
}

fn without_frame_ancestors(policy: &str) -> Option<HeaderValue> {
    let is_other = |directive: &&str| {
        !directive.split_ascii_whitespace().next().is_some_and(|name| name.eq_ignore_ascii_case("frame-ancestors"))
    };
    let kept: Vec<&str> = policy.split(';').filter(is_other).collect();
    HeaderValue::from_str(&kept.join(";")).ok().filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGIN: &str = "http://token.localhost:7700";

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        lines.iter().map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap())).collect()
    }

    fn sorted(map: &HeaderMap) -> Vec<(String, String)> {
        let mut lines: Vec<_> =
            map.iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect();
        lines.sort();
        lines
    }

    fn lines(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        sorted(&headers(pairs))
    }

    #[test]
    fn the_program_sees_neither_the_token_nor_what_belongs_to_atoll() {
        let mut map = headers(&[
            ("host", "token.localhost:7700"),
            ("cookie", "a=1; atoll_session=sin_x.y; __host-atoll_session=z; b=atoll_session"),
            ("cookie", "atoll_session=only"),
            ("authorization", "Bearer atoll_0_secret"),
            ("x-atoll-page", "1"),
            ("x-forwarded-host", "token.localhost:7700"),
            ("forwarded", "host=token.localhost"),
            ("connection", "keep-alive, x-hop"),
            ("x-hop", "1"),
            ("origin", ORIGIN),
            ("referer", "http://token.localhost:7700/a?b"),
            ("accept", "*/*"),
        ]);
        prepare_request(&mut map, ORIGIN, 3000, None);
        let expected = lines(&[
            ("host", "localhost:3000"),
            ("cookie", "a=1; b=atoll_session"),
            ("origin", "http://localhost:3000"),
            ("referer", "http://localhost:3000/a?b"),
            ("accept", "*/*"),
        ]);
        assert_eq!(sorted(&map), expected);
    }

    #[test]
    fn keeps_what_belongs_to_the_program_and_other_origins() {
        let same = [
            ("authorization", "Basic dXNlcjpwYXNz"),
            ("origin", "http://token.localhost:77001"),
            ("referer", "https://other.example/"),
            ("host", "localhost:80"),
        ];
        let mut map = headers(&same);
        prepare_request(&mut map, ORIGIN, 80, None);
        assert_eq!(sorted(&map), lines(&same));
    }

    #[test]
    fn a_response_reaches_only_its_own_host() {
        let mut map = headers(&[
            ("set-cookie", "id=1; Domain=localhost; Path=/; HttpOnly"),
            ("set-cookie", "id2=1; DOMAIN = .example.org;Secure"),
            ("set-cookie", "atoll_session=stolen; Path=/"),
            ("set-cookie", " __Host-Atoll_session =x; Secure"),
            ("location", "http://127.0.0.1:3000/next?x#y"),
            ("x-frame-options", "DENY"),
            ("clear-site-data", "\"cookies\""),
            ("content-security-policy", "default-src 'self'; Frame-Ancestors 'none'; img-src *"),
            ("content-security-policy", "frame-ancestors 'none'"),
            ("referrer-policy", "unsafe-url"),
        ]);
        confine_response(&mut map, ORIGIN, 3000, None);
        let expected = lines(&[
            ("set-cookie", "id=1; Path=/; HttpOnly"),
            ("set-cookie", "id2=1;Secure"),
            ("location", "http://token.localhost:7700/next?x#y"),
            ("content-security-policy", "default-src 'self'; img-src *"),
            ("referrer-policy", "same-origin"),
        ]);
        assert_eq!(sorted(&map), expected);
    }

    #[test]
    fn other_redirects_stay_as_they_are() {
        for location in
            ["/next", "http://localhost:30001/", "http://localhost:3000.evil.example/", "https://x.example/"]
        {
            assert_eq!(own_location(location, ORIGIN, 3000), None, "{location}");
        }
    }
}
