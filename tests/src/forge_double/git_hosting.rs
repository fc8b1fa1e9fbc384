//! Git over https at the double's own address, as at GitHub: a token is the password. A git server does the work.

use super::{ForgeState, ReceivedRequest};
use crate::actor::build_http_client;
use axum::body::Body;
use axum::http::request::Parts;
use axum::response::Response;
use base64::Engine;
use serde_json::Value;
use std::sync::{Arc, Mutex, PoisonError};

/// `octo/hello` for a path such as `/octo/hello.git/info/refs`.
pub(super) fn git_repository(path: &str) -> Option<String> {
    let (repository, _) = path.trim_start_matches('/').split_once(".git/")?;
    (repository.split('/').count() == 2).then(|| repository.to_owned())
}

pub(super) async fn serve_git(
    state: &Arc<Mutex<ForgeState>>,
    repository: &str,
    parts: Parts,
    body: Vec<u8>,
) -> Response {
    let header = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let password = header("authorization").strip_prefix("Basic ").and_then(|text| {
        let text = base64::engine::general_purpose::STANDARD.decode(text).ok()?;
        Some(String::from_utf8(text).ok()?.split_once(':')?.1.to_owned())
    });
    let upstream = {
        let state = state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_allowed = password.is_some_and(|token| state.may_use(&token, repository));
        state.git_server.filter(|_| is_allowed)
    };
    let (status, headers, bytes) = match upstream {
        None => (401, vec![("www-authenticate".to_owned(), "Basic realm=\"GitHub\"".to_owned())], Vec::new()),
        Some(address) => {
            let mut request =
                build_http_client().request(parts.method.clone(), format!("http://{address}{}", parts.uri));
            for name in ["content-type", "content-encoding", "git-protocol", "accept"] {
                request = request.header(name, header(name));
            }
            let response = request.body(body).send().await.unwrap();
            let kind = response.headers().get("content-type").and_then(|value| value.to_str().ok()).unwrap_or_default();
            let headers = vec![("content-type".to_owned(), kind.to_owned())];
            (response.status().as_u16(), headers, response.bytes().await.unwrap().to_vec())
        }
    };
    let record = ReceivedRequest {
        method: parts.method.to_string(),
        path: parts.uri.to_string(),
        status,
        body: Value::Null,
        response: Value::Null,
    };
    state.lock().unwrap_or_else(PoisonError::into_inner).requests.push(record);
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(name, value);
    }
    response.body(Body::from(bytes)).unwrap()
}
