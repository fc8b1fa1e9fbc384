//! The routes of the double.

use super::git_hosting::{git_repository, serve_git};
use super::pulls::not_found;
use super::{ForgeReply, ForgeState, ReceivedRequest, payloads};
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, PoisonError};

const MAX_BODY_BYTES: usize = 1 << 20;

/// A request, read completely.
struct ForgeRequest {
    method: String,
    path: String,
    query: Vec<(String, String)>,
    token: Option<String>,
    body: Value,
}

pub(super) async fn serve(state: Arc<Mutex<ForgeState>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let bytes = axum::body::to_bytes(body, MAX_BODY_BYTES).await.unwrap_or_default();
    if let Some(repository) = git_repository(parts.uri.path()) {
        return serve_git(&state, &repository, parts, bytes.to_vec()).await;
    }
    let authorization = parts.headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let token = authorization.strip_prefix("Bearer ").or_else(|| authorization.strip_prefix("token "));
    let request = ForgeRequest {
        method: parts.method.to_string(),
        path: decode(parts.uri.path()),
        query: parse_query(parts.uri.query().unwrap_or_default()),
        token: token.map(str::to_owned),
        body: serde_json::from_slice(&bytes).unwrap_or(Value::Null),
    };
    // Git blocks.
    let uri = parts.uri.to_string();
    let reply = tokio::task::spawn_blocking(move || {
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        let reply = respond(&mut state, &request);
        let is_held = state.faults.holds_response(&request.method, &request.path);
        let ForgeRequest { method, body, .. } = request;
        let response = reply.body.clone().unwrap_or_default();
        state.requests.push(ReceivedRequest { method, path: uri, status: reply.status, body, response });
        (reply, is_held)
    });
    let (reply, is_held) = reply.await.unwrap_or_else(|_| (ForgeReply::message(500, "the double failed"), false));
    if is_held {
        // Until the client is gone.
        std::future::pending::<()>().await;
    }
    let mut response = Response::builder().status(reply.status).header("content-type", "application/json");
    for (name, value) in reply.headers {
        response = response.header(name, value);
    }
    let body = reply.body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
    response.body(body).unwrap()
}

fn respond(state: &mut ForgeState, request: &ForgeRequest) -> ForgeReply {
    if let Some(reply) = state.faults.reply_before() {
        return reply;
    }
    let reply = dispatch(state, request);
    if state.faults.takes_response(&request.method, &request.path) {
        return ForgeReply::message(502, "Bad Gateway");
    }
    reply
}

fn dispatch(state: &mut ForgeState, request: &ForgeRequest) -> ForgeReply {
    let url = state.url.clone();
    let segments: Vec<&str> = request.path.trim_matches('/').split('/').collect();
    match (request.method.as_str(), segments.as_slice()) {
        ("POST", ["login", "device", "code"]) => return state.device_flow.issue_code(&url),
        ("POST", ["login", "oauth", "access_token"]) => {
            return state.device_flow.poll(&request.body, &mut state.tokens);
        }
        _ => {}
    }
    let Some(token) = &request.token else { return ForgeReply::message(401, "Requires authentication") };
    // A JSON Web Token has three parts.
    let is_app = token.split('.').count() == 3;
    match (request.method.as_str(), segments.as_slice()) {
        ("GET", ["repos", owner, name, "installation"]) if is_app => {
            if state.without_app.contains(&format!("{owner}/{name}")) {
                return not_found();
            }
            return ForgeReply::json(200, payloads::installation(&url, owner));
        }
        ("POST", ["app", "installations", "4", "access_tokens"]) if is_app => {
            let named = request.body["repositories"].as_array().map(Vec::as_slice).unwrap_or_default();
            let [name] = named else { return ForgeReply::message(422, "name one repository") };
            let suffix = format!("/{}", name.as_str().unwrap_or_default());
            let Some(full_name) = state.repositories.keys().find(|full_name| full_name.ends_with(&suffix)).cloned()
            else {
                return ForgeReply::message(422, "There is at least one repository that does not exist");
            };
            state.next_id += 1;
            let token = format!("installation-token-{}", state.next_id);
            state.installation_tokens.insert(token.clone(), full_name);
            return ForgeReply::json(201, json!({ "token": token, "expires_at": "2099-01-01T00:00:00Z" }));
        }
        _ => {}
    }
    if !state.tokens.contains(token) && !state.installation_tokens.contains_key(token) {
        return ForgeReply::message(401, "Bad credentials");
    }
    if let ("GET", ["user"]) = (request.method.as_str(), segments.as_slice()) {
        return ForgeReply::json(200, payloads::account(&url, "octo"));
    }
    let ["repos", owner, name, rest @ ..] = segments.as_slice() else { return not_found() };
    let full_name = format!("{owner}/{name}");
    if !state.may_use(token, &full_name) {
        return not_found();
    }
    let Some(repository) = state.repositories.get_mut(&full_name) else { return not_found() };
    let number = |text: &str| text.parse::<u64>().unwrap_or(0);
    match (request.method.as_str(), rest) {
        ("GET", []) => ForgeReply::json(200, payloads::repository(&url, &full_name, &repository.git.default_branch())),
        ("GET", ["pulls"]) => repository.list_pulls(&url, &full_name, &request.query),
        ("POST", ["pulls"]) => repository.create_pull(&url, &full_name, &request.body),
        ("GET", ["pulls", pull]) => repository.read_pull(&url, &full_name, number(pull)),
        ("PATCH", ["pulls", pull]) => repository.change_pull(&url, &full_name, number(pull), &request.body),
        ("PUT", ["pulls", pull, "merge"]) => repository.merge_pull(number(pull), &request.body),
        ("GET", ["pulls", pull, "reviews"]) => {
            let number = number(pull);
            let reviews = repository.reviews.get(&number).map(Vec::as_slice).unwrap_or_default().iter().enumerate();
            let reviews = reviews.map(|(id, review)| payloads::review(&url, &full_name, number, id + 1, review));
            ForgeReply::json(200, reviews.collect())
        }
        ("GET", ["commits", commit, "check-runs"]) => {
            let runs = repository.check_runs.get(*commit).map(Vec::as_slice).unwrap_or_default();
            let listed = runs.iter().enumerate();
            let listed: Vec<Value> =
                listed.map(|(id, run)| payloads::check_run(&url, &full_name, commit, id + 1, run)).collect();
            ForgeReply::json(200, json!({ "total_count": listed.len(), "check_runs": listed }))
        }
        ("GET", ["commits", commit, "status"]) => {
            let default_branch = repository.git.default_branch();
            ForgeReply::json(200, payloads::combined_status(&url, &full_name, &default_branch, commit))
        }
        ("GET", ["git", "ref", "heads", branch @ ..]) => match repository.git.branch_commit(&branch.join("/")) {
            Some(commit) => {
                let name = format!("refs/heads/{}", branch.join("/"));
                ForgeReply::json(200, payloads::git_ref(&url, &full_name, &name, &commit))
            }
            None => not_found(),
        },
        ("POST", ["git", "refs"]) => {
            let text = |field: &str| request.body[field].as_str().unwrap_or_default();
            if repository.git.create_ref(text("ref"), text("sha")) {
                let created = payloads::git_ref(&url, &full_name, text("ref"), text("sha"));
                return ForgeReply::json(201, created);
            }
            ForgeReply::message(422, "Reference already exists")
        }
        ("DELETE", ["git", "refs", name @ ..]) => {
            if repository.git.delete_ref(&format!("refs/{}", name.join("/"))) {
                return ForgeReply { status: 204, headers: Vec::new(), body: None };
            }
            ForgeReply::message(422, "Reference does not exist")
        }
        _ => not_found(),
    }
}

fn parse_query(query: &str) -> Vec<(String, String)> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.map(|(key, value)| (decode(key), decode(value))).collect()
}

fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let pair = tail.get(..2).filter(|_| *first == b'%').and_then(|pair| std::str::from_utf8(pair).ok());
        match pair.and_then(|pair| u8::from_str_radix(pair, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
