//! Replaces the placeholder key in request headers with the real key.

use super::credential::{KeyKind, UpstreamKey};
use super::gateway_routes;
use crate::egress::hop_headers::strip_hop_headers;
use atoll_core::model::{AuthScheme, ModelApi};
use axum::http::header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, TRANSFER_ENCODING};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use secrecy::ExposeSecret;
use subtle::ConstantTimeEq;

const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const X_GOOG_API_KEY: HeaderName = HeaderName::from_static("x-goog-api-key");
const API_KEY: HeaderName = HeaderName::from_static("api-key");
const ANTHROPIC_BETA: HeaderName = HeaderName::from_static("anthropic-beta");
/// Beta flag that Anthropic requires with a subscription token, and the prefix of such tokens.
const OAUTH_BETA: &str = "oauth-2025-04-20";
const OAUTH_TOKEN_PREFIX: &str = "sk-ant-oat";
/// Header that OpenAI requires with the token of a ChatGPT login.
const CHATGPT_ACCOUNT_ID: HeaderName = HeaderName::from_static("chatgpt-account-id");

/// The request carries this key in one of the headers or the query parameter that the APIs use.
pub fn has_key(headers: &HeaderMap, query: &str, key: &str) -> bool {
    let plain = [X_API_KEY, X_GOOG_API_KEY, API_KEY].into_iter().filter_map(|name| headers.get(name)?.to_str().ok());
    let bearer = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = bearer.and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
    });
    plain
        .chain(bearer)
        .chain(gateway_routes::query_key(query))
        .any(|candidate| candidate.as_bytes().ct_eq(key.as_bytes()).into())
}

/// A header that could change the method of a request, which `gateway_routes` checked, or the account that it is charged
/// to, which belongs to the key.
fn is_foreign(name: &str) -> bool {
    let is_method = name.contains("method-override") || matches!(name, "x-http-method" | "x-method");
    let is_account =
        ["organization", "organisation", "workspace-id", "account-id"].iter().any(|part| name.contains(part))
            || matches!(name, "openai-project" | "x-goog-user-project");
    is_method || is_account
}

/// Prepares the headers for the upstream. hyper sets the framing headers again.
pub fn prepare_headers(headers: &mut HeaderMap, api: ModelApi, auth: AuthScheme, key: Option<&UpstreamKey>) {
    strip_hop_headers(headers, None);
    let (keys, framing) =
        ([X_API_KEY, X_GOOG_API_KEY, API_KEY, AUTHORIZATION, COOKIE], [CONTENT_LENGTH, TRANSFER_ENCODING]);
    for name in keys.into_iter().chain(framing).chain([HOST, EXPECT]) {
        headers.remove(name);
    }
    let foreign: Vec<HeaderName> = headers.keys().filter(|name| is_foreign(name.as_str())).cloned().collect();
    for name in foreign {
        headers.remove(name);
    }
    // The usage scanner cannot read compressed responses.
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    let Some(UpstreamKey { text, kind }) = key else { return };
    let key = text.expose_secret();
    let (is_login, account) = match kind {
        KeyKind::Plain => (false, None),
        KeyKind::Login { account } => (true, account.as_deref()),
    };
    let is_oauth = api == ModelApi::Anthropic && (is_login || key.starts_with(OAUTH_TOKEN_PREFIX));
    let (name, text) = match (api, auth) {
        (ModelApi::Anthropic, AuthScheme::ApiKey) if !is_oauth => (X_API_KEY, key.to_owned()),
        (ModelApi::Gemini, AuthScheme::ApiKey) if !is_login => (X_GOOG_API_KEY, key.to_owned()),
        (ModelApi::Anthropic | ModelApi::OpenAi | ModelApi::Gemini, AuthScheme::ApiKey | AuthScheme::Bearer) => {
            (AUTHORIZATION, format!("Bearer {key}"))
        }
    };
    // Without a valid header value the upstream rejects the request.
    if let Ok(mut value) = HeaderValue::from_str(&text) {
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    if let Some(account) = account.and_then(|account| HeaderValue::from_str(account).ok()) {
        headers.insert(CHATGPT_ACCOUNT_ID, account);
    }
    if is_oauth {
        add_oauth_beta(headers);
    }
}

fn add_oauth_beta(headers: &mut HeaderMap) {
    let values: Vec<&str> = headers.get_all(ANTHROPIC_BETA).iter().filter_map(|value| value.to_str().ok()).collect();
    if values.iter().any(|value| value.split(',').any(|word| word.trim() == OAUTH_BETA)) {
        return;
    }
    let all = values.into_iter().chain([OAUTH_BETA]).collect::<Vec<_>>().join(",");
    if let Ok(value) = HeaderValue::from_str(&all) {
        headers.insert(ANTHROPIC_BETA, value);
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

    fn sent(lines: &[(&str, &str)], api: ModelApi, auth: AuthScheme, key: Option<&str>) -> Vec<(String, String)> {
        let mut map = headers(lines);
        prepare_headers(
            &mut map,
            api,
            auth,
            key.map(|text| UpstreamKey { text: text.into(), kind: KeyKind::Plain }).as_ref(),
        );
        let mut all: Vec<_> =
            map.iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect();
        all.sort();
        all
    }

    #[test]
    fn finds_a_key_in_every_header_of_the_apis() {
        for (name, value) in [
            ("x-api-key", "mine"),
            ("x-goog-api-key", "mine"),
            ("api-key", "mine"),
            ("authorization", "Bearer mine"),
            ("authorization", "bearer  mine"),
        ] {
            assert!(has_key(&headers(&[(name, value)]), "", "mine"), "{name}: {value}");
        }
        assert!(has_key(&HeaderMap::new(), "alt=sse&key=mine", "mine"));
        for (name, value) in
            [("x-api-key", "other"), ("authorization", "Basic mine"), ("authorization", "mine"), ("cookie", "mine")]
        {
            assert!(!has_key(&headers(&[(name, value)]), "key=", "mine"), "{name}: {value}");
        }
    }

    #[test]
    fn replaces_the_placeholder_with_the_key() {
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
        let (anthropic, openai, gemini) = (ModelApi::Anthropic, ModelApi::OpenAi, ModelApi::Gemini);
        assert_eq!(sent(&lines, anthropic, AuthScheme::ApiKey, Some("real")), expected(&[beta, ("x-api-key", "real")]));
        let bearer = ("authorization", "Bearer real");
        assert_eq!(sent(&lines, anthropic, AuthScheme::Bearer, Some("real")), expected(&[beta, bearer]));
        assert_eq!(sent(&lines, openai, AuthScheme::ApiKey, Some("real")), expected(&[beta, bearer]));
        assert_eq!(
            sent(&lines, gemini, AuthScheme::ApiKey, Some("real")),
            expected(&[beta, ("x-goog-api-key", "real")])
        );
        assert_eq!(sent(&lines, openai, AuthScheme::ApiKey, None), expected(&[beta]));
        let oauth = [("anthropic-beta", "a-1,b-2,oauth-2025-04-20"), ("authorization", "Bearer sk-ant-oat01-x")];
        assert_eq!(sent(&lines, anthropic, AuthScheme::ApiKey, Some("sk-ant-oat01-x")), expected(&oauth));
    }

    #[test]
    fn a_login_is_sent_as_a_bearer_token() {
        let headers = |api, account: Option<&str>| {
            let mut map = HeaderMap::new();
            let kind = KeyKind::Login { account: account.map(str::to_owned) };
            prepare_headers(&mut map, api, AuthScheme::ApiKey, Some(&UpstreamKey { text: "token".into(), kind }));
            let text = |name: HeaderName| map.get(name).map(|value| value.to_str().unwrap().to_owned());
            assert_eq!((text(X_API_KEY), text(X_GOOG_API_KEY)), (None, None));
            assert_eq!(text(AUTHORIZATION).as_deref(), Some("Bearer token"));
            (text(ANTHROPIC_BETA), text(CHATGPT_ACCOUNT_ID))
        };
        assert_eq!(headers(ModelApi::Anthropic, None), (Some(OAUTH_BETA.to_owned()), None));
        assert_eq!(headers(ModelApi::OpenAi, Some("acc")), (None, Some("acc".to_owned())));
        assert_eq!(headers(ModelApi::Gemini, None), (None, None));
    }

    #[test]
    fn removes_method_overrides_and_organizations() {
        let lines = [
            ("x-http-method-override", "DELETE"),
            ("x-http-method", "DELETE"),
            ("x-method-override", "DELETE"),
            ("openai-organization", "org-1"),
            ("openai-project", "proj_1"),
            ("anthropic-organization-id", "1"),
            ("chatgpt-account-id", "acc"),
            ("x-goog-user-project", "other"),
            ("x-stainless-lang", "js"),
            ("session-id", "s"),
        ];
        let names: Vec<String> =
            sent(&lines, ModelApi::OpenAi, AuthScheme::ApiKey, None).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["accept-encoding", "session-id", "x-stainless-lang"]);
    }

    #[test]
    fn adds_the_beta_flag_once() {
        let all = sent(
            &[("anthropic-beta", "x, oauth-2025-04-20")],
            ModelApi::Anthropic,
            AuthScheme::ApiKey,
            Some("sk-ant-oat-1"),
        );
        assert!(all.contains(&("anthropic-beta".to_owned(), "x, oauth-2025-04-20".to_owned())), "{all:?}");
    }
}
