//! Requests of plain HTTP, and those for a tunnel. Each request is read whole, judged by itself and written anew, so
//! that this side and the other never see different requests in the same bytes.

use super::connect::{Connected, Purpose};
use super::leaving::{Answers, guarded};
use super::outlet::Way;
use super::refusal::{Failure, Refusal};
use super::stream::Stream;
use super::{Service, headers, tunnel};
use crate::gateway;
use atoll_core::network::Target;
use axum::http::header::{CONTENT_TYPE, HOST, HeaderValue, PROXY_AUTHORIZATION};
use axum::http::uri::{PathAndQuery, Uri};
use axum::http::{Method, StatusCode, Version};
use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1 as client;
use hyper::ext::ReasonPhrase;
use hyper::server::conn::http1 as server;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use secrecy::ExposeSecret;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::tcp::OwnedReadHalf;
use tokio::task::JoinHandle;

/// For the head of a request, and between two.
const HEAD: Duration = Duration::from_secs(60);
const LONGEST_HEAD: usize = 64 << 10;
const MOST_HEADERS: usize = 100;

type Body = BoxBody<Bytes, hyper::Error>;

/// What comes after the last request.
enum Next {
    /// It asked for a tunnel.
    Tunnel { client: OnUpgrade, connected: Connected },
    /// Both sides agreed to speak something else.
    Switched { client: OnUpgrade, server: OnUpgrade, way: Arc<Way> },
}

/// A connection to a server, for one request after another.
struct Kept {
    sender: client::SendRequest<Incoming>,
    way: Arc<Way>,
    by_proxy: bool,
    _driving: Driving,
}

/// Ends with whoever uses it.
struct Driving(JoinHandle<()>);

impl Drop for Driving {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Conversation {
    service: Arc<Service>,
    /// Inside a tunnel every request is for its target.
    only: Option<Target>,
    kept: Mutex<Option<Kept>>,
    next: Mutex<Option<Next>>,
    /// Of models.
    answers: Answers,
}

/// What a program says to its proxy. `peer` is the connection once more, to see its end.
pub async fn serve(service: &Arc<Service>, stream: Stream, peer: OwnedReadHalf) {
    talk(Arc::new(Conversation::new(service, None, None)), stream, Some(peer)).await;
}

/// What a program says to a server through a tunnel.
pub async fn serve_inside(service: &Arc<Service>, stream: Stream, server: Stream, way: Arc<Way>) {
    let target = way.target.clone();
    if let Ok(kept) = keep(service, Connected { stream: server, way, by_proxy: false }).await {
        talk(Arc::new(Conversation::new(service, Some(target), Some(kept))), stream, None).await;
    }
}

async fn talk(conversation: Arc<Conversation>, stream: Stream, peer: Option<OwnedReadHalf>) {
    let service = Arc::clone(&conversation.service);
    let answering = Arc::clone(&conversation);
    let answer = service_fn(move |request| {
        let conversation = Arc::clone(&answering);
        async move { Ok::<_, Infallible>(conversation.answer(request).await) }
    });
    let serving = server::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_headers(MOST_HEADERS)
        .max_buf_size(LONGEST_HEAD)
        .half_close(true)
        .serve_connection(TokioIo::new(stream), answer)
        .with_upgrades();
    tokio::select! {
        served = serving => if let Err(error) = served {
            tracing::debug!(sandbox = %service.outlet.sandbox, %error, "a connection to the proxy ended");
        },
        // With the connection goes the request that it waits for.
        () = conversation.answers.left_alone(peer) => return,
    }
    let next = locked(&conversation.next).take();
    match next {
        Some(Next::Tunnel { client, connected }) => {
            if let Ok(client) = client.await {
                let Connected { stream, way, .. } = connected;
                tunnel::carry(&service, Box::new(TokioIo::new(client)), stream, way).await;
            }
        }
        Some(Next::Switched { client, server, way }) => {
            if let (Ok(client), Ok(server)) = tokio::join!(client, server) {
                let (client, server) = (Box::new(TokioIo::new(client)), Box::new(TokioIo::new(server)));
                tunnel::copy(&service, client, server, Vec::new(), &way).await;
            }
        }
        None => {}
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn keep(service: &Arc<Service>, connected: Connected) -> Result<Kept, Failure> {
    let Connected { stream, way, by_proxy } = connected;
    let target = &way.target;
    let handshake = client::Builder::new().max_buf_size(LONGEST_HEAD).handshake(TokioIo::new(stream)).await;
    let (sender, connection) =
        handshake.map_err(|error| Failure::Failed(format!("{target} can't be reached: {error}")))?;
    let (service, driven) = (Arc::clone(service), Arc::clone(&way));
    let driving = tokio::spawn(async move {
        tokio::select! {
            _ = connection.with_upgrades() => service.note_cap(&driven),
            cut = driven.cut() => if let Some(refusal) = cut {
                service.refused(&driven.target.host.to_string(), driven.target.port, &refusal);
            },
        }
    });
    Ok(Kept { sender, way, by_proxy, _driving: Driving(driving) })
}

impl Conversation {
    fn new(service: &Arc<Service>, only: Option<Target>, kept: Option<Kept>) -> Self {
        Self {
            service: Arc::clone(service),
            only,
            kept: Mutex::new(kept),
            next: Mutex::default(),
            answers: Answers::default(),
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let written = match (&self.only, request.uri().authority()) {
            (Some(target), _) => target.to_string(),
            (None, Some(authority)) => authority.to_string(),
            (None, None) => return said(StatusCode::BAD_REQUEST, None, NOT_A_PROXY_REQUEST.to_owned()),
        };
        // A program that goes to the model gateway by way of the proxy, which is the same place.
        let request = match self.service.app.upgrade() {
            Some(app)
                if self.only.is_none() && OWN.contains(&written.as_str()) && *request.method() != Method::CONNECT =>
            {
                let under_way = self.answers.begin();
                match gateway::answer(&app, self.service.outlet.sandbox, request).await {
                    Ok(response) => return response.map(|body| guarded(body, under_way)),
                    Err(request) => request,
                }
            }
            Some(_) | None => request,
        };
        let answered = match *request.method() {
            Method::CONNECT => self.connect(request).await,
            _ => self.forward(request).await,
        };
        match answered {
            Ok(response) => response,
            Err(Failure::Failed(sentence)) => said(StatusCode::BAD_GATEWAY, None, sentence),
            Err(Failure::Refused(refusal)) => self.refused(&written, &refusal),
        }
    }

    fn refused(&self, written: &str, refusal: &Refusal) -> Response<Body> {
        let sandbox = self.service.outlet.sandbox;
        let (place, host, port) = match Target::parse(written, Some(80)) {
            Some(target) => (target.to_string(), target.host.to_string(), target.port),
            None => (written.to_owned(), written.to_owned(), 0),
        };
        self.service.refused(&host, port, refusal);
        said(StatusCode::FORBIDDEN, Some(refusal), refusal.sentence(sandbox, &place))
    }

    async fn connect(&self, mut request: Request<Incoming>) -> Result<Response<Body>, Failure> {
        if self.only.is_some() {
            return Err(Failure::Failed("a tunnel goes through no other tunnel".to_owned()));
        }
        let authority = request.uri().authority().map(|authority| authority.as_str()).unwrap_or_default();
        let target = Target::parse(authority, None).ok_or(Refusal::BadHost)?;
        let connected = self.service.connector().open(&self.service.outlet, &target, Purpose::Tunnel).await?;
        let client = hyper::upgrade::on(&mut request);
        *locked(&self.next) = Some(Next::Tunnel { client, connected });
        Ok(Response::new(empty()))
    }

    async fn forward(&self, mut request: Request<Incoming>) -> Result<Response<Body>, Failure> {
        let target = self.target_of(&request)?;
        let path = request.uri().path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
        let wanted = headers::switching(request.headers());
        let client = wanted.is_some().then(|| hyper::upgrade::on(&mut request));
        headers::strip(request.headers_mut(), wanted.as_ref());
        let host = host_header(&target);
        let unusable = |error: &dyn std::fmt::Display| Failure::Failed(format!("{target} can't be asked: {error}"));
        let value = HeaderValue::from_str(&host).map_err(|error| unusable(&error))?;
        request.headers_mut().insert(HOST, value);
        *request.version_mut() = Version::HTTP_11;

        let (mut response, kept) = self.ask(&target, request, path).await?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let (Some(client), Some(wanted)) = (client, wanted) else {
                return Err(Failure::Failed(format!("{target} changed the protocol without being asked to")));
            };
            let server = hyper::upgrade::on(&mut response);
            headers::strip(response.headers_mut(), Some(&wanted));
            *locked(&self.next) = Some(Next::Switched { client, server, way: Arc::clone(&kept.way) });
            // Its bytes now go on with the tunnel.
            *locked(&self.kept) = Some(kept);
            return Ok(response.map(|_| empty()));
        }
        headers::strip(response.headers_mut(), None);
        *locked(&self.kept) = Some(kept);
        Ok(response.map(BodyExt::boxed))
    }

    /// Where a request goes: what its URL says, and its Host the same.
    fn target_of(&self, request: &Request<Incoming>) -> Result<Target, Failure> {
        let uri = request.uri();
        let named = match (uri.scheme_str(), uri.authority()) {
            (Some("http"), Some(authority)) => {
                Some(Target::parse(authority.as_str(), Some(80)).ok_or(Refusal::BadHost)?)
            }
            (None, None) if self.only.is_some() => None,
            _ => return Err(Failure::Failed("only http:// goes this way; https:// needs CONNECT".to_owned())),
        };
        let target = match (&self.only, named) {
            (Some(only), None) => only.clone(),
            (Some(only), Some(named)) if *only == named => named,
            (Some(_), Some(_)) => return Err(Refusal::HostHeader.into()),
            (None, Some(named)) => named,
            (None, None) => return Err(Refusal::BadHost.into()),
        };
        let mut hosts = request.headers().get_all(HOST).iter();
        let host = match (hosts.next(), hosts.next()) {
            (Some(host), None) => host.to_str().ok().and_then(|host| Target::parse(host, Some(80))),
            // The old version of HTTP has none.
            (None, None) if request.version() == Version::HTTP_10 => Some(target.clone()),
            _ => None,
        };
        if host.as_ref() == Some(&target) { Ok(target) } else { Err(Refusal::HostHeader.into()) }
    }

    /// Over the connection of the last request if it went to the same place, else over a new one.
    async fn ask(
        &self,
        target: &Target,
        mut request: Request<Incoming>,
        path: PathAndQuery,
    ) -> Result<(Response<Incoming>, Kept), Failure> {
        let unusable = |error: &dyn std::fmt::Display| Failure::Failed(format!("{target} can't be asked: {error}"));
        self.service.outlet.check(target)?;
        let kept = locked(&self.kept).take().filter(|kept| kept.way.target == *target);
        if let Some(mut kept) = kept
            && kept.sender.ready().await.is_ok()
        {
            self.address(&mut request, &kept, &path).map_err(|error| unusable(&error))?;
            match kept.sender.try_send_request(request).await {
                Ok(response) => return Ok((response, kept)),
                // A server may close a kept connection at any moment; what it has not seen is sent again.
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(self.why(&kept.way, &error.into_error())),
                },
            }
        }
        let connected = self.service.connector().open(&self.service.outlet, target, Purpose::Requests).await?;
        let mut kept = keep(&self.service, connected).await?;
        self.address(&mut request, &kept, &path).map_err(|error| unusable(&error))?;
        match kept.sender.send_request(request).await {
            Ok(response) => Ok((response, kept)),
            Err(error) => Err(self.why(&kept.way, &error)),
        }
    }

    /// A connection that broke may have been cut here.
    fn why(&self, way: &Way, error: &hyper::Error) -> Failure {
        match self.service.outlet.check(&way.target) {
            Err(refusal) => refusal.into(),
            Ok(()) => Failure::Failed(format!("{} gave no answer: {error}", way.target)),
        }
    }

    /// To a server its own path; to a proxy the whole URL and who asks.
    fn address(
        &self,
        request: &mut Request<Incoming>,
        kept: &Kept,
        path: &PathAndQuery,
    ) -> Result<(), axum::http::Error> {
        if !kept.by_proxy {
            *request.uri_mut() = Uri::from(path.clone());
            return Ok(());
        }
        let authority = host_header(&kept.way.target);
        *request.uri_mut() = Uri::builder().scheme("http").authority(authority).path_and_query(path.clone()).build()?;
        let upstream = self.service.connector().upstream.as_ref();
        if let Some(authorization) = upstream.and_then(|upstream| upstream.authorization.as_ref()) {
            let mut value = HeaderValue::from_str(authorization.expose_secret())?;
            value.set_sensitive(true);
            request.headers_mut().insert(PROXY_AUTHORIZATION, value);
        }
        Ok(())
    }
}

/// As it stands in a URL and in its `Host`.
fn host_header(target: &Target) -> String {
    if target.port == 80 { target.host.to_string() } else { target.to_string() }
}

/// This very port, as programs inside write it.
const OWN: [&str; 2] = ["127.0.0.1:7709", "localhost:7709"];

const NOT_A_PROXY_REQUEST: &str = "this is Atoll's proxy for programs in this sandbox, not a web server: name it in \
                                   HTTP_PROXY and HTTPS_PROXY, as it is there already.";

fn empty() -> Body {
    Full::new(Bytes::new()).map_err(|never| match never {}).boxed()
}

fn said(status: StatusCode, refusal: Option<&Refusal>, sentence: String) -> Response<Body> {
    let mut response = Response::new(Full::from(format!("{sentence}\n")).map_err(|never| match never {}).boxed());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    if let Some(refusal) = refusal {
        response.headers_mut().insert("x-atoll-refused", HeaderValue::from_static(refusal.code()));
        // Many programs show of a tunnel that is refused nothing but this line.
        response.extensions_mut().insert(ReasonPhrase::from_static(refusal.phrase().as_bytes()));
    }
    response
}
