//! Sign-ins of the page: a cookie in place of a token, valid only for requests of the page itself.

use super::current_principal;
use super::token_format::{self, equal_hashes};
use crate::app::sign_ins::idle_since;
use crate::problem::{Problem, Result};
use crate::state::App;
use atoll_core::id::SignInId;
use atoll_core::principal::Principal;
use atoll_store::sign_ins;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, header};
use secrecy::{ExposeSecret, SecretString};
use std::time::Duration;

pub const COOKIE: &str = "atoll_session";
/// The cookie's name over https. Because of the prefix, browsers let no other host set it.
pub const SECURE_COOKIE: &str = "__Host-atoll_session";
/// Pages of other origins cannot send this header.
const PAGE_HEADER: &str = "x-atoll-page";
/// The time of the last use is at most this old.
const USE_PRECISION: Duration = Duration::from_secs(60);

/// True if the cookie belongs to Atoll's own page.
pub fn is_page_cookie(name: &str) -> bool {
    // Browsers compare the prefix without case.
    [COOKIE, SECURE_COOKIE].iter().any(|own| name.eq_ignore_ascii_case(own))
}

/// The value of the cookie: the sign-in's id and its secret.
pub fn cookie_value(id: SignInId, secret: &SecretString) -> String {
    format!("{id}.{}", secret.expose_secret())
}

fn read_cookie(headers: &HeaderMap) -> Option<(SignInId, String)> {
    let value = [SECURE_COOKIE, COOKIE].iter().find_map(|wanted| {
        let lines = headers.get_all(header::COOKIE).iter().filter_map(|line| line.to_str().ok());
        let mut pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
        pairs.find(|(name, _)| name == wanted).map(|(_, value)| value)
    })?;
    let (id, secret) = value.split_once('.')?;
    Some((id.parse().ok()?, token_format::hash_secret(secret)))
}

/// Refuses requests that another page caused. `guard` has compared the origin with the host, if there is one.
fn require_own_page(parts: &Parts) -> Result<()> {
    let header = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
    let is_read = [Method::GET, Method::HEAD, Method::OPTIONS].contains(&parts.method);
    let is_own = if parts.headers.contains_key(header::UPGRADE) {
        header("origin").is_some()
    } else {
        is_read || header(PAGE_HEADER) == Some("1")
    };
    // A person who opens a URL causes `none`.
    let is_same_site = matches!(header("sec-fetch-site"), None | Some("same-origin" | "none"));
    if is_own && is_same_site { Ok(()) } else { Err(Problem::csrf()) }
}

/// Authenticates a request by its cookie.
pub async fn authenticate_cookie(parts: &Parts, app: &App) -> Result<(Principal, SignInId)> {
    let (id, hash) = read_cookie(&parts.headers).ok_or_else(Problem::unauthorized)?;
    require_own_page(parts)?;
    let (now, idle_since) = (app.clock.now(), idle_since(app));
    let (row, principal) = app
        .read(async move |tx| {
            let row = sign_ins::find_sign_in(tx, id).await?.filter(|row| equal_hashes(&row.hash, &hash));
            let row = row.ok_or_else(Problem::unauthorized)?;
            let principal = current_principal(tx, row.token, Some(id), now, idle_since).await?;
            Ok((row, principal))
        })
        .await?;
    let precision = USE_PRECISION.min(app.config.sign_in.idle / 10);
    if row.last_used_at <= now - precision {
        app.write(async move |work| Ok(sign_ins::record_use(work.tx, id, now).await?)).await?;
    }
    Ok((principal, id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::Request;

    fn parts(method: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().method(method);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn reads_the_cookie_among_others_and_prefers_the_secure_one() {
        let (id, other) = (SignInId::new(), SignInId::new());
        let secret = SecretString::from("s3cret");
        let line = format!(
            "a=b; {COOKIE}={}; {SECURE_COOKIE}={}; broken",
            cookie_value(other, &secret),
            cookie_value(id, &secret)
        );
        let read = |line: &str| read_cookie(&parts("GET", &[("cookie", line)]).headers);
        assert_eq!(read(&line), Some((id, token_format::hash_secret("s3cret"))));
        for bad in ["", "atoll_session", "atoll_session=x", "atoll_session=x.y", "Atoll_Session=sin_0.y"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    #[test]
    fn refuses_requests_that_other_pages_can_cause() {
        let is_own = |method: &str, headers: &[(&str, &str)]| require_own_page(&parts(method, headers)).is_ok();
        assert!(is_own("GET", &[]) && is_own("GET", &[("sec-fetch-site", "none")]));
        assert!(is_own("POST", &[("x-atoll-page", "1"), ("sec-fetch-site", "same-origin")]));
        assert!(is_own("GET", &[("upgrade", "websocket"), ("origin", "http://localhost:7700")]));
        for (method, headers) in [
            ("POST", &[][..]),
            ("DELETE", &[("x-atoll-page", "0")]),
            ("POST", &[("x-atoll-page", "1"), ("sec-fetch-site", "cross-site")]),
            ("GET", &[("sec-fetch-site", "same-site")]),
            ("GET", &[("upgrade", "websocket")]),
            ("GET", &[("upgrade", "websocket"), ("x-atoll-page", "1")]),
        ] {
            assert!(!is_own(method, headers), "{method} {headers:?}");
        }
    }
}
