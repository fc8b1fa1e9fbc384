//! Forwards downloads from package registries that need a token. Tools in a sandbox use the gateway's address; the
//! gateway adds the token. Only reads pass, and only if the sandbox's network policy permits the registry's host.

use super::Body;
use super::credential::is_bound_to;
use super::download_body::{DownloadBody, OriginRewriter};
use super::key_mask::KeyMask;
use super::upstream_client::root_cause;
use crate::egress::hop_headers::strip_hop_headers;
use crate::secrets::seal::open_secret;
use crate::state::App;
use atoll_config::{Registries, RegistryEntry};
use atoll_core::id::{ProjectId, SandboxId};
use atoll_core::network::NetworkTarget;
use atoll_core::registry::{RegistryAddress, RegistryKind};
use atoll_store::secrets;
use axum::http::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, IF_MODIFIED_SINCE,
    IF_NONE_MATCH, LOCATION, RANGE, SET_COOKIE, USER_AGENT,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use secrecy::{ExposeSecret, SecretString};
use std::sync::Arc;

const PREFIX: &str = "/registry/";
/// The part of a path that only tarballs of the npm registry have.
const NPM_TARBALL_PART: &str = "/-/";
const FORWARDED_HEADERS: [HeaderName; 5] = [ACCEPT, IF_NONE_MATCH, IF_MODIFIED_SINCE, RANGE, USER_AGENT];

/// A download that the gateway forwards.
#[derive(Debug, PartialEq, Eq)]
pub struct Download<'a> {
    kind: RegistryKind,
    entry: &'a RegistryEntry,
    /// Path at the registry's host, with the query.
    path: String,
}

/// The registries as programs in a sandbox reach them: those with a token at the gateway, the others directly.
pub fn registry_addresses(registries: &Registries) -> Vec<RegistryAddress> {
    let address = |(kind, entry): (&RegistryKind, &RegistryEntry)| {
        let url = match &entry.secret {
            Some(_) => format!("{}{}", inner_origin(*kind), entry.path()),
            None => entry.url.clone(),
        };
        RegistryAddress { kind: *kind, url }
    };
    registries.iter().map(address).collect()
}

/// The counterpart of the registry's origin in a sandbox. The paths below it are the same.
fn inner_origin(kind: RegistryKind) -> String {
    format!("http://127.0.0.1:{}{PREFIX}{kind}", atoll_protocol::PROXY_PORT)
}

/// Finds the registry of a request.
pub fn match_download<'a>(registries: &'a Registries, uri: &Uri) -> Option<Download<'a>> {
    let path = uri.path();
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let with_token = |kind: RegistryKind| registries.get(&kind).filter(|entry| entry.secret.is_some());
    if let Some(below) = path.strip_prefix(PREFIX) {
        let (kind, rest) = below.split_once('/').unwrap_or((below, ""));
        let kind = kind.parse().ok()?;
        return Some(Download { kind, entry: with_token(kind)?, path: format!("/{rest}{query}") });
    }
    // npm replaces the host of a tarball's URL in a lock file and drops the path of the registry.
    let entry = with_token(RegistryKind::Npm).filter(|_| path.contains(NPM_TARBALL_PART))?;
    Some(Download { kind: RegistryKind::Npm, entry, path: format!("{}{path}{query}", entry.path()) })
}

/// Forwards a download; a refusal is one sentence.
pub async fn forward_download(
    app: &Arc<App>,
    sandbox: SandboxId,
    download: Download<'_>,
    request: Request<Incoming>,
) -> Response<Body> {
    match send_download(app, sandbox, &download, request).await {
        Ok(response) => response,
        Err((status, sentence)) => {
            let mut response =
                Response::new(Full::from(format!("{sentence}\n")).map_err(|never| match never {}).boxed());
            *response.status_mut() = status;
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
            response
        }
    }
}

type Refusal = (StatusCode, String);

async fn send_download(
    app: &Arc<App>,
    sandbox: SandboxId,
    download: &Download<'_>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Refusal> {
    let Download { kind, entry, path } = download;
    let refuse = |status, sentence: String| Err((status, sentence));
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return refuse(StatusCode::METHOD_NOT_ALLOWED, format!("the registry {kind} is read-only in a sandbox"));
    }
    if has_parent_part(path) {
        return refuse(StatusCode::BAD_REQUEST, "the path contains `..`".to_owned());
    }
    let uri = format!("{}{path}", entry.origin()).parse::<Uri>();
    let uri = uri.map_err(|_| (StatusCode::BAD_REQUEST, "the path is not valid".to_owned()))?;
    let target =
        target_of(&uri).ok_or((StatusCode::BAD_GATEWAY, format!("the URL of registry {kind} is not valid")))?;
    app.egress.check_download(sandbox, &target).map_err(|sentence| (StatusCode::FORBIDDEN, sentence))?;
    let project = app.gateway.sandbox_budget(app, sandbox).await;
    let project = project.map_err(|_| (StatusCode::SERVICE_UNAVAILABLE, "try again".to_owned()))?.project.project;
    let token = find_token(app, project, *kind, entry).await?;
    let mut headers = HeaderMap::new();
    for name in FORWARDED_HEADERS {
        headers.extend(request.headers().get(&name).map(|value| (name, value.clone())));
    }
    // The rewriter cannot read compressed responses.
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    headers.insert(AUTHORIZATION, authorization(*kind, entry, &token).ok_or_else(|| unusable_token(*kind))?);
    let mut upstream_request = Request::new(Full::default());
    (*upstream_request.method_mut(), *upstream_request.uri_mut()) = (request.method().clone(), uri);
    *upstream_request.headers_mut() = headers;
    let answered = app.gateway.client.request(upstream_request).await;
    let response = answered.map_err(|error| {
        (StatusCode::BAD_GATEWAY, format!("the registry {kind} is unreachable: {}", root_cause(&error)))
    })?;
    // The tool cannot correct the token, and would ask for another.
    if response.status() == StatusCode::UNAUTHORIZED {
        let secret = entry.secret.as_deref().unwrap_or_default();
        let sentence = format!("the registry {kind} refused the token of the secret {secret}: set it again");
        return refuse(StatusCode::FORBIDDEN, sentence);
    }
    Ok(pass_response(app, sandbox, &target, *kind, entry, &token, response))
}

fn pass_response(
    app: &Arc<App>,
    sandbox: SandboxId,
    target: &NetworkTarget,
    kind: RegistryKind,
    entry: &RegistryEntry,
    token: &SecretString,
    mut response: Response<Incoming>,
) -> Response<Body> {
    *response.version_mut() = Version::HTTP_11;
    let headers = response.headers_mut();
    strip_hop_headers(headers, None);
    headers.remove(SET_COOKIE);
    let (outer, inner) = (entry.origin(), inner_origin(kind));
    if let Some(place) = headers.get(LOCATION).and_then(|value| rewrite_location(value, outer, &inner)) {
        headers.insert(LOCATION, place);
    }
    let is_text = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).is_some_and(is_text_type);
    let rewriter = (is_text && !headers.contains_key(CONTENT_ENCODING)).then(|| {
        headers.remove(CONTENT_LENGTH);
        OriginRewriter::new(outer, &inner)
    });
    let mask = KeyMask::new(Some(token));
    mask.mask_headers(headers);
    let counter = app.egress.download_counter(sandbox, target);
    response.map(|body| DownloadBody::new(body, mask, rewriter, counter).boxed())
}

/// Types that contain URLs of the registry.
fn is_text_type(content_type: &str) -> bool {
    ["text/", "json", "xml"].iter().any(|part| content_type.contains(part))
}

fn rewrite_location(value: &HeaderValue, outer: &str, inner: &str) -> Option<HeaderValue> {
    let place = value.to_str().ok()?;
    let path = match place.strip_prefix(outer) {
        Some(path) if path.is_empty() || path.starts_with('/') => path,
        _ if place.starts_with('/') && !place.starts_with("//") => place,
        _ => return None,
    };
    HeaderValue::try_from(format!("{inner}{path}")).ok()
}

fn has_parent_part(path: &str) -> bool {
    let plain = path.to_ascii_lowercase().replace("%2e", ".").replace("%2f", "/").replace("%5c", "/");
    plain.split(['/', '\\', '?']).any(|part| part == "..")
}

fn target_of(uri: &Uri) -> Option<NetworkTarget> {
    let port = if uri.scheme_str() == Some("https") { 443 } else { 80 };
    NetworkTarget::parse(uri.authority()?.as_str(), Some(port))
}

fn authorization(kind: RegistryKind, entry: &RegistryEntry, token: &SecretString) -> Option<HeaderValue> {
    let token = token.expose_secret().trim();
    let text = match (&entry.user, kind) {
        (Some(user), _) => format!("Basic {}", BASE64.encode(format!("{user}:{token}"))),
        // Cargo sends its token as it is, so that tokens of registries with another scheme name that scheme.
        (None, RegistryKind::Cargo) => token.to_owned(),
        (None, _) => format!("Bearer {token}"),
    };
    let mut value = HeaderValue::try_from(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

fn unusable_token(kind: RegistryKind) -> Refusal {
    (StatusCode::BAD_GATEWAY, format!("the token of registry {kind} is not one line of printable characters"))
}

/// The token: the project's secret of this name, else the deployment's.
async fn find_token(
    app: &App,
    project: ProjectId,
    kind: RegistryKind,
    entry: &RegistryEntry,
) -> Result<SecretString, Refusal> {
    let name = entry.secret.clone().unwrap_or_default();
    let host = entry.origin().rsplit('/').next().unwrap_or_default();
    let remedy = format!("run `atoll secret set {name} --upstream {host}`");
    let read_name = name.clone();
    let found = app.read(async move |tx| Ok(secrets::resolve_secret(tx, project, &read_name).await?)).await;
    let found = found.map_err(|_| (StatusCode::SERVICE_UNAVAILABLE, "try again".to_owned()))?;
    let secret = found.ok_or_else(|| {
        (StatusCode::BAD_GATEWAY, format!("the registry {kind} needs the secret {name}, which is not set: {remedy}"))
    })?;
    if !is_bound_to(&secret, &entry.url) {
        let sentence = format!("the secret {name} is not for {host}: {remedy}");
        return Err((StatusCode::BAD_GATEWAY, sentence));
    }
    app.secrets.key_ring().and_then(|keys| open_secret(&secret, &keys)).map_err(|error| {
        tracing::warn!(%kind, %error, "failed to open the token of a registry");
        (StatusCode::BAD_GATEWAY, format!("the secret {name} cannot be opened: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registries() -> Registries {
        let entry = |url: &str, secret: Option<&str>| RegistryEntry {
            url: url.to_owned(),
            secret: secret.map(str::to_owned),
            user: None,
        };
        let npm = entry("https://npm.example/repository/npm", Some("NPM_TOKEN"));
        let pip = entry("https://pypi.example/simple", Some("PIP_TOKEN"));
        [(RegistryKind::Npm, npm), (RegistryKind::Pip, pip), (RegistryKind::Go, entry("https://go.example", None))]
            .into()
    }

    #[test]
    fn registries_with_a_token_are_at_the_gateway() {
        let addresses: Vec<String> = registry_addresses(&registries()).into_iter().map(|it| it.url).collect();
        assert_eq!(
            addresses,
            [
                "http://127.0.0.1:7709/registry/npm/repository/npm",
                "http://127.0.0.1:7709/registry/pip/simple",
                "https://go.example",
            ]
        );
    }

    #[test]
    fn paths_are_the_same_on_both_sides() {
        let registries = registries();
        let path = |uri: &str| match_download(&registries, &uri.parse().unwrap()).map(|download| download.path);
        assert_eq!(path("/registry/npm/repository/npm/@a%2fb?x=1"), Some("/repository/npm/@a%2fb?x=1".to_owned()));
        assert_eq!(path("/registry/pip/packages/x.whl"), Some("/packages/x.whl".to_owned()));
        assert_eq!(path("/lodash/-/lodash-1.tgz"), Some("/repository/npm/lodash/-/lodash-1.tgz".to_owned()));
        for other in ["/registry/go/x", "/registry/cargo/x", "/registry/", "/anthropic/v1/messages", "/"] {
            assert_eq!(path(other), None, "{other}");
        }
    }

    #[test]
    fn no_path_leaves_the_registry() {
        for bad in ["/a/../b", "/a/%2e%2E/b", "/a/%2e./b", "/..", "/a%2f..%2fb", "/a/..?x"] {
            assert!(has_parent_part(bad), "{bad}");
        }
        assert!(!has_parent_part("/a..b/c.../d?x=1"));
    }

    #[test]
    fn redirects_stay_at_the_gateway() {
        let rewrite = |place: &str| {
            let place = rewrite_location(&HeaderValue::try_from(place).unwrap(), "https://r.example", "http://in");
            place.map(|place| place.to_str().unwrap().to_owned())
        };
        assert_eq!(rewrite("https://r.example/a"), Some("http://in/a".to_owned()));
        assert_eq!(rewrite("/a?b"), Some("http://in/a?b".to_owned()));
        for other in ["https://cdn.example/a", "//cdn.example/a", "https://r.example.evil/a"] {
            assert_eq!(rewrite(other), None, "{other}");
        }
    }

    #[test]
    fn a_user_makes_it_basic_authentication() {
        let bearer = RegistryEntry { url: String::new(), secret: None, user: None };
        let value_for = |kind: RegistryKind, entry: &RegistryEntry, token: &str| {
            authorization(kind, entry, &token.into()).map(|value| value.to_str().unwrap().to_owned())
        };
        let value = |entry: &RegistryEntry, token: &str| value_for(RegistryKind::Npm, entry, token);
        assert_eq!(value_for(RegistryKind::Cargo, &bearer, "Bearer abc"), Some("Bearer abc".to_owned()));
        assert_eq!(value(&bearer, "abc\n"), Some("Bearer abc".to_owned()));
        let basic = RegistryEntry { user: Some("ci".to_owned()), ..bearer.clone() };
        assert_eq!(value(&basic, "pw"), Some("Basic Y2k6cHc=".to_owned()));
        assert_eq!(value(&bearer, "a\nb"), None);
    }
}
