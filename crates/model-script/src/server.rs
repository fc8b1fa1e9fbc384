//! The routes and the responses.

use crate::answer::{ModelAnswer, Refusal, ReplyContent};
use crate::conversation::Conversation;
use crate::decision::{Decision, FailureCounts, decide_reply};
use crate::request_log::{OutcomeGuard, RecordedRequest, RequestLog, RequestOutcome};
use crate::script::Scripts;
use crate::wire::{Api, SseEvent};
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header, request::Parts};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::stream;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub(crate) struct ModelServer {
    scripts: Scripts,
    failures: Mutex<FailureCounts>,
    pub(crate) log: Arc<RequestLog>,
}

impl ModelServer {
    pub(crate) fn new(scripts: Scripts, log: Arc<RequestLog>) -> Self {
        Self { scripts, failures: Mutex::default(), log }
    }
}

/// Agents send whole conversations with files and images.
const MAX_BODY_BYTES: usize = 128 << 20;
/// Headers with the agents' session ids.
const SESSION_HEADERS: &[&str] =
    &["x-claude-code-session-id", "session-id", "thread-id", "x-session-id", "x-session-affinity"];

type HttpRequest = axum::extract::Request;

pub(crate) fn build_router(model: Arc<ModelServer>) -> Router {
    let apis = Router::new()
        .route("/v1/messages", post(|state, request| answer_request(Api::Anthropic, state, request)))
        .route("/v1/messages/count_tokens", post(|state, request| count_tokens(Api::Anthropic, state, request)))
        .route("/v1/chat/completions", post(|state, request| answer_request(Api::Chat, state, request)))
        .route("/v1/responses", post(|state, request| answer_request(Api::Responses, state, request)))
        .route("/v1beta/models/{operation}", post(answer_gemini_request))
        .route("/v1/models", get(list_models));
    // Also under the gateway's prefixes, so that an agent's gateway configuration works.
    ["/anthropic", "/openai", "/gemini"]
        .into_iter()
        .fold(Router::new(), |all, below| all.nest(below, apis.clone()))
        .merge(apis)
        .route("/requests", get(list_requests))
        .fallback(reject_unknown_route)
        .with_state(model)
}

/// A received request.
struct ReceivedRequest {
    path: String,
    body: Value,
    body_bytes: usize,
    parts: Parts,
}

async fn read_request(request: HttpRequest) -> Result<ReceivedRequest, Response> {
    let (parts, body) = request.into_parts();
    let bytes = to_bytes(body, MAX_BODY_BYTES).await.map_err(|error| {
        let status = StatusCode::PAYLOAD_TOO_LARGE;
        (status, Json(json!({ "error": { "message": format!("The body could not be read: {error}.") } })))
            .into_response()
    })?;
    let path = parts.uri.path_and_query().map_or_else(String::new, ToString::to_string);
    Ok(ReceivedRequest { path, body: json_or_text(&bytes), body_bytes: bytes.len(), parts })
}

fn json_or_text(bytes: &Bytes) -> Value {
    if bytes.is_empty() {
        return Value::Null;
    }
    serde_json::from_slice(bytes).unwrap_or_else(|_| String::from_utf8_lossy(bytes).into_owned().into())
}

impl ReceivedRequest {
    fn session_id(&self) -> String {
        let mut named = SESSION_HEADERS.iter().filter_map(|name| self.parts.headers.get(*name)?.to_str().ok());
        named.next().unwrap_or_default().to_owned()
    }

    /// Records the request; the guard records its outcome.
    fn record_request(self, book: &Arc<RequestLog>, decision: Option<&Decision>) -> OutcomeGuard {
        let request = RecordedRequest {
            number: 0,
            at: Timestamp::now(),
            method: self.parts.method.to_string(),
            session: self.session_id(),
            headers: readable_headers(&self.parts.headers),
            path: self.path,
            body: self.body,
            script: decision.and_then(|decision| decision.script.clone()),
            position: decision.map_or(0, |decision| decision.position),
            problem: decision.and_then(|decision| decision.problem.clone()),
            outcome: RequestOutcome::Answering,
            ended_at: None,
        };
        let number = book.record_request(request, self.body_bytes);
        OutcomeGuard::new(Arc::clone(book), number)
    }
}

fn readable_headers(headers: &HeaderMap) -> std::collections::BTreeMap<String, String> {
    let readable = headers
        .iter()
        .map(|(name, value)| (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned()));
    readable.collect()
}

async fn answer_request(api: Api, State(model): State<Arc<ModelServer>>, request: HttpRequest) -> Response {
    match read_request(request).await {
        Ok(received) => {
            let conversation = api.parse_request(&received.body);
            answer_conversation(api, &model, received, conversation).await
        }
        Err(response) => response,
    }
}

/// `POST /v1beta/models/MODEL:OPERATION`.
async fn answer_gemini_request(State(model): State<Arc<ModelServer>>, request: HttpRequest) -> Response {
    let last = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
    let (name, operation) = last.rsplit_once(':').unwrap_or((&last, ""));
    let stream = match operation {
        "streamGenerateContent" => true,
        "generateContent" => false,
        "countTokens" => return count_tokens(Api::Gemini, State(model), request).await,
        _ => return reject_unknown_route(State(model), request).await,
    };
    match read_request(request).await {
        Ok(received) => {
            let mut conversation = Api::Gemini.parse_request(&received.body);
            conversation.model = name.to_owned();
            conversation.wants_stream = stream;
            answer_conversation(Api::Gemini, &model, received, conversation).await
        }
        Err(response) => response,
    }
}

async fn answer_conversation(
    api: Api,
    model: &ModelServer,
    received: ReceivedRequest,
    conversation: Conversation,
) -> Response {
    if !received.body.is_object() {
        let mut ending = received.record_request(&model.log, None);
        ending.record(RequestOutcome::Refused);
        return refusal_response(api, &invalid_body_refusal());
    }
    let decision = {
        let mut failures = model.failures.lock().unwrap_or_else(PoisonError::into_inner);
        decide_reply(&model.scripts, &conversation, &received.session_id(), &mut failures)
    };
    let mut ending = received.record_request(&model.log, Some(&decision));
    tokio::time::sleep(decision.reply.delay).await;
    match decision.reply.content {
        ReplyContent::Refusal(refusal) => {
            ending.record(RequestOutcome::Refused);
            refusal_response(api, &refusal)
        }
        ReplyContent::Answer(answer) if conversation.wants_stream => {
            stream_response(api, &conversation, &answer, ending)
        }
        ReplyContent::Answer(answer) => {
            tokio::time::sleep(answer.total_pause()).await;
            whole_response(api.whole_response(&conversation, &answer), answer.cut_after_events.is_some(), ending)
        }
    }
}

fn invalid_body_refusal() -> Refusal {
    Refusal {
        status: 400,
        retry_after: None,
        kind: "invalid_request_error".into(),
        message: "The body is no JSON object.".into(),
        body: None,
    }
}

fn refusal_response(api: Api, refusal: &Refusal) -> Response {
    let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = (status, Json(api.refusal_body(refusal))).into_response();
    if let Some(seconds) = refusal.retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

/// Sends an answer in one piece, or half of it if cut.
fn whole_response(body: Value, cut: bool, mut ending: OutcomeGuard) -> Response {
    if !cut {
        ending.record(RequestOutcome::Answered);
        return Json(body).into_response();
    }
    let text = body.to_string();
    let half = text.len() / 2;
    let half = Bytes::copy_from_slice(&text.as_bytes()[..half]);
    let headers = [(header::CONTENT_TYPE, "application/json")];
    (headers, Body::from_stream(stream::unfold(ResponseStream::cut_after([half], ending), ResponseStream::next_chunk)))
        .into_response()
}

fn stream_response(api: Api, conversation: &Conversation, answer: &ModelAnswer, ending: OutcomeGuard) -> Response {
    let events = api.stream_events(conversation, answer);
    let sending = ResponseStream {
        unsent: events.iter().map(encode_event).collect(),
        events_until_cut: answer.cut_after_events,
        outcome_guard: ending,
    };
    let headers = [(header::CONTENT_TYPE, "text/event-stream; charset=utf-8"), (header::CACHE_CONTROL, "no-cache")];
    (headers, Body::from_stream(stream::unfold(sending, ResponseStream::next_chunk))).into_response()
}

fn encode_event(event: &SseEvent) -> (Duration, Bytes) {
    (event.pause, event.encode_sse().into())
}

/// The unsent rest of a response.
struct ResponseStream {
    unsent: VecDeque<(Duration, Bytes)>,
    /// Remaining pieces before the connection breaks.
    events_until_cut: Option<usize>,
    outcome_guard: OutcomeGuard,
}

/// Delay for sent data to reach the network before the connection breaks.
const FLUSH_DELAY: Duration = Duration::from_millis(20);

impl ResponseStream {
    fn cut_after<const N: usize>(pieces: [Bytes; N], outcome_guard: OutcomeGuard) -> Self {
        Self { unsent: pieces.map(|piece| (Duration::ZERO, piece)).into(), events_until_cut: Some(N), outcome_guard }
    }

    async fn next_chunk(mut self) -> Option<(io::Result<Bytes>, Self)> {
        if self.events_until_cut == Some(0) {
            tokio::time::sleep(FLUSH_DELAY).await;
            self.outcome_guard.record(RequestOutcome::Cut);
            self.unsent.clear();
            self.events_until_cut = None;
            return Some((Err(io::Error::other("the script cuts the stream here")), self));
        }
        self.events_until_cut = self.events_until_cut.map(|left| left - 1);
        let Some((pause, piece)) = self.unsent.pop_front() else {
            return match self.events_until_cut {
                // A cut after the last event breaks the connection instead of ending it.
                Some(_) => {
                    self.events_until_cut = Some(0);
                    Some((Ok(Bytes::new()), self))
                }
                None => None,
            };
        };
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        if self.unsent.is_empty() && self.events_until_cut.is_none() {
            self.outcome_guard.record(RequestOutcome::Answered);
        }
        Some((Ok(piece), self))
    }
}

/// Responds with the number of tokens.
async fn count_tokens(api: Api, State(model): State<Arc<ModelServer>>, request: HttpRequest) -> Response {
    match read_request(request).await {
        Ok(received) => {
            let tokens = api.parse_request(&received.body).estimated_tokens();
            received.record_request(&model.log, None).record(RequestOutcome::Answered);
            Json(json!({ "input_tokens": tokens, "totalTokens": tokens })).into_response()
        }
        Err(response) => response,
    }
}

/// Responds with one model, in a form for Anthropic's and OpenAI's clients.
async fn list_models(State(model): State<Arc<ModelServer>>, request: HttpRequest) -> Response {
    match read_request(request).await {
        Ok(received) => received.record_request(&model.log, None).record(RequestOutcome::Answered),
        Err(response) => return response,
    }
    let scripted = json!({
        "id": "scripted", "object": "model", "type": "model", "display_name": "Scripted", "owned_by": "atoll",
        "created": 1_700_000_000, "created_at": "2023-11-14T22:13:20Z",
    });
    let list = json!({
        "object": "list", "data": [scripted], "has_more": false, "first_id": "scripted", "last_id": "scripted",
    });
    Json(list).into_response()
}

#[derive(Deserialize)]
struct RequestsQuery {
    #[serde(default)]
    after: u64,
}

/// Responds with the logged requests; is not logged itself.
async fn list_requests(
    State(model): State<Arc<ModelServer>>,
    Query(RequestsQuery { after }): Query<RequestsQuery>,
) -> Response {
    let requests: Vec<_> = model.log.requests_after(after);
    let requests: Vec<&RecordedRequest> = requests.iter().map(AsRef::as_ref).collect();
    Json(json!({ "requests": requests })).into_response()
}

async fn reject_unknown_route(State(model): State<Arc<ModelServer>>, request: HttpRequest) -> Response {
    match read_request(request).await {
        Ok(received) => received.record_request(&model.log, None).record(RequestOutcome::Refused),
        Err(response) => return response,
    }
    let message = "The scripted model has nothing here.";
    (StatusCode::NOT_FOUND, Json(json!({ "error": { "type": "not_found_error", "message": message } }))).into_response()
}
