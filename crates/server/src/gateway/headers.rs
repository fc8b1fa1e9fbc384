//! The headers of a request: the placeholder out, the real key in, everything else as it was.

use super::credential::{Key, KeyKind};
use super::path;
use crate::egress::headers::strip;
use atoll_core::model::{Api, Auth};
use axum::http::header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, TRANSFER_ENCODING};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use secrecy::ExposeSecret;
use subtle::ConstantTimeEq;

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const GOOGLE_KEY: HeaderName = HeaderName::from_static("x-goog-api-key");
const AZURE_KEY: HeaderName = HeaderName::from_static("api-key");
const BETA: HeaderName = HeaderName::from_static("anthropic-beta");
/// What Anthropic wants to see beside a subscription's token, and what those begin with.
const OAUTH: &str = "oauth-2025-04-20";
const OAUTH_TOKEN: &str = "sk-ant-oat";
/// What OpenAI wants to see beside the token of a ChatGPT login.
const ACCOUNT: HeaderName = HeaderName::from_static("chatgpt-account-id");

/// Whether the request shows this key, in any of the places that the APIs have for one.
pub fn shows(headers: &HeaderMap, query: &str, key: &str) -> bool {
    let plain = [API_KEY, GOOGLE_KEY, AZURE_KEY].into_iter().filter_map(|name| headers.get(name)?.to_str().ok());
    let bearer = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = bearer.and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
    });
    plain.chain(bearer).chain(path::key_in_query(query)).any(|shown| shown.as_bytes().ct_eq(key.as_bytes()).into())
}

/// As they go to the upstream. What a client says of its body no longer counts: it is written anew.
pub fn prepare(headers: &mut HeaderMap, api: Api, auth: Auth, key: Option<&Key>) {
    strip(headers, None);
    let (keys, framing) =
        ([API_KEY, GOOGLE_KEY, AZURE_KEY, AUTHORIZATION, COOKIE], [CONTENT_LENGTH, TRANSFER_ENCODING]);
    for name in keys.into_iter().chain(framing).chain([HOST, EXPECT]) {
        headers.remove(name);
    }
    // What is compressed can't be counted.
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    let Some(Key { text, kind }) = key else { return };
    let key = text.expose_secret();
    let (is_login, account) = match kind {
        KeyKind::Plain => (false, None),
        KeyKind::Login { account } => (true, account.as_deref()),
    };
    let is_oauth = api == Api::Anthropic && (is_login || key.starts_with(OAUTH_TOKEN));
    let (name, text) = match (api, auth) {
        (Api::Anthropic, Auth::ApiKey) if !is_oauth => (API_KEY, key.to_owned()),
        (Api::Gemini, Auth::ApiKey) if !is_login => (GOOGLE_KEY, key.to_owned()),
        (Api::Anthropic | Api::OpenAi | Api::Gemini, Auth::ApiKey | Auth::Bearer) => {
            (AUTHORIZATION, format!("Bearer {key}"))
        }
    };
    // A key that can't stand in a header is no key; the upstream will say so.
    if let Ok(mut value) = HeaderValue::from_str(&text) {
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    if let Some(account) = account.and_then(|account| HeaderValue::from_str(account).ok()) {
        headers.insert(ACCOUNT, account);
    }
    if is_oauth {
        add_beta(headers);
    }
}

fn add_beta(headers: &mut HeaderMap) {
    let told: Vec<&str> = headers.get_all(BETA).iter().filter_map(|value| value.to_str().ok()).collect();
    if told.iter().any(|value| value.split(',').any(|word| word.trim() == OAUTH)) {
        return;
    }
    let all = told.into_iter().chain([OAUTH]).collect::<Vec<_>>().join(",");
    if let Ok(value) = HeaderValue::from_str(&all) {
        headers.insert(BETA, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in lines {
            map.append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        }
        map
    }

    fn sent(lines: &[(&str, &str)], api: Api, auth: Auth, key: Option<&str>) -> Vec<(String, String)> {
        let mut map = headers(lines);
        prepare(&mut map, api, auth, key.map(|text| Key { text: text.into(), kind: KeyKind::Plain }).as_ref());
        let mut all: Vec<_> =
            map.iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect();
        all.sort();
        all
    }

    #[test]
    fn a_key_is_looked_for_wherever_the_apis_have_one() {
        for (name, value) in [
            ("x-api-key", "mine"),
            ("x-goog-api-key", "mine"),
            ("api-key", "mine"),
            ("authorization", "Bearer mine"),
            ("authorization", "bearer  mine"),
        ] {
            assert!(shows(&headers(&[(name, value)]), "", "mine"), "{name}: {value}");
        }
        assert!(shows(&HeaderMap::new(), "alt=sse&key=mine", "mine"));
        for (name, value) in
            [("x-api-key", "other"), ("authorization", "Basic mine"), ("authorization", "mine"), ("cookie", "mine")]
        {
            assert!(!shows(&headers(&[(name, value)]), "key=", "mine"), "{name}: {value}");
        }
    }

    #[test]
    fn the_placeholder_goes_and_the_key_comes() {
        let lines = [
            ("x-api-key", "placeholder"),
            ("authorization", "Bearer placeholder"),
            ("host", "127.0.0.1:7709"),
            ("connection", "keep-alive, x-hop"),
            ("x-hop", "1"),
            ("content-length", "12"),
            ("transfer-encoding", "chunked"),
            ("accept-encoding", "gzip, br"),
            ("anthropic-version", "2023-06-01"),
            ("anthropic-beta", "a-1,b-2"),
            ("user-agent", "agent/1"),
        ];
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let rest = [pair("anthropic-version", "2023-06-01"), pair("user-agent", "agent/1")];
        let expected = |more: &[(&str, &str)]| {
            let mut all = rest.to_vec();
            all.push(pair("accept-encoding", "identity"));
            all.extend(more.iter().map(|(name, value)| pair(name, value)));
            all.sort();
            all
        };
        let beta = ("anthropic-beta", "a-1,b-2");
        let (anthropic, openai, gemini) = (Api::Anthropic, Api::OpenAi, Api::Gemini);
        assert_eq!(sent(&lines, anthropic, Auth::ApiKey, Some("real")), expected(&[beta, ("x-api-key", "real")]));
        let bearer = ("authorization", "Bearer real");
        assert_eq!(sent(&lines, anthropic, Auth::Bearer, Some("real")), expected(&[beta, bearer]));
        assert_eq!(sent(&lines, openai, Auth::ApiKey, Some("real")), expected(&[beta, bearer]));
        assert_eq!(sent(&lines, gemini, Auth::ApiKey, Some("real")), expected(&[beta, ("x-goog-api-key", "real")]));
        assert_eq!(sent(&lines, openai, Auth::ApiKey, None), expected(&[beta]));
        let oauth = [("anthropic-beta", "a-1,b-2,oauth-2025-04-20"), ("authorization", "Bearer sk-ant-oat01-x")];
        assert_eq!(sent(&lines, anthropic, Auth::ApiKey, Some("sk-ant-oat01-x")), expected(&oauth));
    }

    #[test]
    fn a_login_is_shown_as_one() {
        let shown = |api, account: Option<&str>| {
            let mut map = HeaderMap::new();
            let kind = KeyKind::Login { account: account.map(str::to_owned) };
            prepare(&mut map, api, Auth::ApiKey, Some(&Key { text: "token".into(), kind }));
            let text = |name: HeaderName| map.get(name).map(|value| value.to_str().unwrap().to_owned());
            assert_eq!((text(API_KEY), text(GOOGLE_KEY)), (None, None));
            assert_eq!(text(AUTHORIZATION).as_deref(), Some("Bearer token"));
            (text(BETA), text(ACCOUNT))
        };
        assert_eq!(shown(Api::Anthropic, None), (Some(OAUTH.to_owned()), None));
        assert_eq!(shown(Api::OpenAi, Some("acc")), (None, Some("acc".to_owned())));
        assert_eq!(shown(Api::Gemini, None), (None, None));
    }

    #[test]
    fn a_beta_that_is_there_is_not_added_again() {
        let all =
            sent(&[("anthropic-beta", "x, oauth-2025-04-20")], Api::Anthropic, Auth::ApiKey, Some("sk-ant-oat-1"));
        assert!(all.contains(&("anthropic-beta".to_owned(), "x, oauth-2025-04-20".to_owned())), "{all:?}");
    }
}
