//! The routes, and how an answer travels.

use crate::answer::{Answer, Content, Refusal};
use crate::conversation::Conversation;
use crate::play::{Decision, Failures, decide};
use crate::record::{Book, Ending, Outcome, Request};
use crate::script::Scripts;
use crate::wire::{Api, Event};
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

pub(crate) struct Model {
    scripts: Scripts,
    failures: Mutex<Failures>,
    pub(crate) book: Arc<Book>,
}

impl Model {
    pub(crate) fn new(scripts: Scripts, book: Arc<Book>) -> Self {
        Self { scripts, failures: Mutex::default(), book }
    }
}

/// Agents send a whole conversation, with files and pictures in it.
const LARGEST_BODY: usize = 128 << 20;
/// How agents name their session in a header.
const SESSIONS: &[&str] =
    &["x-claude-code-session-id", "session-id", "thread-id", "x-session-id", "x-session-affinity"];

type Incoming = axum::extract::Request;

pub(crate) fn router(model: Arc<Model>) -> Router {
    let apis = Router::new()
        .route("/v1/messages", post(|state, request| ask(Api::Anthropic, state, request)))
        .route("/v1/messages/count_tokens", post(|state, request| count(Api::Anthropic, state, request)))
        .route("/v1/chat/completions", post(|state, request| ask(Api::Chat, state, request)))
        .route("/v1/responses", post(|state, request| ask(Api::Responses, state, request)))
        .route("/v1beta/models/{operation}", post(gemini))
        .route("/v1/models", get(models));
    // Also where the gateway has them, so that an agent can be set up as it is for the gateway.
    ["/anthropic", "/openai", "/gemini"]
        .into_iter()
        .fold(Router::new(), |all, below| all.nest(below, apis.clone()))
        .merge(apis)
        .route("/requests", get(requests))
        .fallback(unknown)
        .with_state(model)
}

/// A request that has been read and written down.
struct Asked {
    path: String,
    body: Value,
    bytes: usize,
    parts: Parts,
}

async fn read(request: Incoming) -> Result<Asked, Response> {
    let (parts, body) = request.into_parts();
    let bytes = to_bytes(body, LARGEST_BODY).await.map_err(|error| {
        let status = StatusCode::PAYLOAD_TOO_LARGE;
        (status, Json(json!({ "error": { "message": format!("The body could not be read: {error}.") } })))
            .into_response()
    })?;
    let path = parts.uri.path_and_query().map_or_else(String::new, ToString::to_string);
    Ok(Asked { path, body: as_json(&bytes), bytes: bytes.len(), parts })
}

fn as_json(bytes: &Bytes) -> Value {
    if bytes.is_empty() {
        return Value::Null;
    }
    serde_json::from_slice(bytes).unwrap_or_else(|_| String::from_utf8_lossy(bytes).into_owned().into())
}

impl Asked {
    fn session(&self) -> String {
        let mut named = SESSIONS.iter().filter_map(|name| self.parts.headers.get(*name)?.to_str().ok());
        named.next().unwrap_or_default().to_owned()
    }

    /// Writes it down; what ends it is told to the `Ending`.
    fn begin(self, book: &Arc<Book>, decision: Option<&Decision>) -> Ending {
        let request = Request {
            number: 0,
            at: Timestamp::now(),
            method: self.parts.method.to_string(),
            session: self.session(),
            headers: shown(&self.parts.headers),
            path: self.path,
            body: self.body,
            script: decision.and_then(|decision| decision.script.clone()),
            position: decision.map_or(0, |decision| decision.position),
            problem: decision.and_then(|decision| decision.problem.clone()),
            outcome: Outcome::Answering,
            ended_at: None,
        };
        let number = book.begin(request, self.bytes);
        Ending::new(Arc::clone(book), number)
    }
}

fn shown(headers: &HeaderMap) -> std::collections::BTreeMap<String, String> {
    let shown = headers
        .iter()
        .map(|(name, value)| (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned()));
    shown.collect()
}

async fn ask(api: Api, State(model): State<Arc<Model>>, request: Incoming) -> Response {
    match read(request).await {
        Ok(asked) => {
            let conversation = api.read(&asked.body);
            answer(api, &model, asked, conversation).await
        }
        Err(response) => response,
    }
}

/// `POST /v1beta/models/MODEL:OPERATION`.
async fn gemini(State(model): State<Arc<Model>>, request: Incoming) -> Response {
    let last = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
    let (name, operation) = last.rsplit_once(':').unwrap_or((&last, ""));
    let stream = match operation {
        "streamGenerateContent" => true,
        "generateContent" => false,
        "countTokens" => return count(Api::Gemini, State(model), request).await,
        _ => return unknown(State(model), request).await,
    };
    match read(request).await {
        Ok(asked) => {
            let mut conversation = Api::Gemini.read(&asked.body);
            conversation.model = name.to_owned();
            conversation.stream = stream;
            answer(Api::Gemini, &model, asked, conversation).await
        }
        Err(response) => response,
    }
}

async fn answer(api: Api, model: &Model, asked: Asked, conversation: Conversation) -> Response {
    if !asked.body.is_object() {
        let mut ending = asked.begin(&model.book, None);
        ending.end(Outcome::Refused);
        return refused(api, &not_json());
    }
    let decision = {
        let mut failures = model.failures.lock().unwrap_or_else(PoisonError::into_inner);
        decide(&model.scripts, &conversation, &asked.session(), &mut failures)
    };
    let mut ending = asked.begin(&model.book, Some(&decision));
    tokio::time::sleep(decision.reply.delay).await;
    match decision.reply.content {
        Content::Refusal(refusal) => {
            ending.end(Outcome::Refused);
            refused(api, &refusal)
        }
        Content::Answer(answer) if conversation.stream => streamed(api, &conversation, &answer, ending),
        Content::Answer(answer) => {
            tokio::time::sleep(answer.pauses()).await;
            whole(api.whole(&conversation, &answer), answer.cut.is_some(), ending)
        }
    }
}

fn not_json() -> Refusal {
    Refusal {
        status: 400,
        retry_after: None,
        kind: "invalid_request_error".into(),
        message: "The body is no JSON object.".into(),
        body: None,
    }
}

fn refused(api: Api, refusal: &Refusal) -> Response {
    let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = (status, Json(api.refusal(refusal))).into_response();
    if let Some(seconds) = refusal.retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

/// An answer in one piece; cut, it is half of one.
fn whole(body: Value, cut: bool, mut ending: Ending) -> Response {
    if !cut {
        ending.end(Outcome::Answered);
        return Json(body).into_response();
    }
    let text = body.to_string();
    let half = text.len() / 2;
    let half = Bytes::copy_from_slice(&text.as_bytes()[..half]);
    let headers = [(header::CONTENT_TYPE, "application/json")];
    (headers, Body::from_stream(stream::unfold(Sending::cut_after([half], ending), Sending::next))).into_response()
}

fn streamed(api: Api, conversation: &Conversation, answer: &Answer, ending: Ending) -> Response {
    let events = api.events(conversation, answer);
    let sending = Sending { left: events.iter().map(piece).collect(), until_cut: answer.cut, ending };
    let headers = [(header::CONTENT_TYPE, "text/event-stream; charset=utf-8"), (header::CACHE_CONTROL, "no-cache")];
    (headers, Body::from_stream(stream::unfold(sending, Sending::next))).into_response()
}

fn piece(event: &Event) -> (Duration, Bytes) {
    (event.pause, event.encoded().into())
}

/// The rest of an answer.
struct Sending {
    left: VecDeque<(Duration, Bytes)>,
    /// How many more pieces go out before the connection breaks.
    until_cut: Option<usize>,
    ending: Ending,
}

/// Time for what was sent to reach the wire, before the connection breaks.
const FLUSHED: Duration = Duration::from_millis(20);

impl Sending {
    fn cut_after<const N: usize>(pieces: [Bytes; N], ending: Ending) -> Self {
        Self { left: pieces.map(|piece| (Duration::ZERO, piece)).into(), until_cut: Some(N), ending }
    }

    async fn next(mut self) -> Option<(io::Result<Bytes>, Self)> {
        if self.until_cut == Some(0) {
            tokio::time::sleep(FLUSHED).await;
            self.ending.end(Outcome::Cut);
            self.left.clear();
            self.until_cut = None;
            return Some((Err(io::Error::other("the script cuts the stream here")), self));
        }
        self.until_cut = self.until_cut.map(|left| left - 1);
        let Some((pause, piece)) = self.left.pop_front() else {
            return match self.until_cut {
                // Cut later than its last event: it breaks instead of ending.
                Some(_) => {
                    self.until_cut = Some(0);
                    Some((Ok(Bytes::new()), self))
                }
                None => None,
            };
        };
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        if self.left.is_empty() && self.until_cut.is_none() {
            self.ending.end(Outcome::Answered);
        }
        Some((Ok(piece), self))
    }
}

/// How many tokens a conversation has.
async fn count(api: Api, State(model): State<Arc<Model>>, request: Incoming) -> Response {
    match read(request).await {
        Ok(asked) => {
            let tokens = api.read(&asked.body).tokens();
            asked.begin(&model.book, None).end(Outcome::Answered);
            Json(json!({ "input_tokens": tokens, "totalTokens": tokens })).into_response()
        }
        Err(response) => response,
    }
}

/// One model, in words that both Anthropic's and OpenAI's clients take.
async fn models(State(model): State<Arc<Model>>, request: Incoming) -> Response {
    match read(request).await {
        Ok(asked) => asked.begin(&model.book, None).end(Outcome::Answered),
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
struct After {
    #[serde(default)]
    after: u64,
}

/// What was asked so far; it is not written down itself.
async fn requests(State(model): State<Arc<Model>>, Query(After { after }): Query<After>) -> Response {
    let requests: Vec<_> = model.book.after(after);
    let requests: Vec<&Request> = requests.iter().map(AsRef::as_ref).collect();
    Json(json!({ "requests": requests })).into_response()
}

async fn unknown(State(model): State<Arc<Model>>, request: Incoming) -> Response {
    match read(request).await {
        Ok(asked) => asked.begin(&model.book, None).end(Outcome::Refused),
        Err(response) => return response,
    }
    let message = "The scripted model has nothing here.";
    (StatusCode::NOT_FOUND, Json(json!({ "error": { "type": "not_found_error", "message": message } }))).into_response()
}
