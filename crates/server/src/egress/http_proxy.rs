//! Plain HTTP requests and CONNECT. The proxy parses, checks and rewrites each request, so that proxy and server cannot
//! parse the same bytes differently (request smuggling).

use super::connector::{ConnectionPurpose, EgressConnection};
use super::disconnect::{OpenResponses, guard_body};
use super::egress_refusal::{ConnectFailure, EgressRefusal};
use super::sandbox_egress::ConnectionMeter;
use super::stream::Stream;
use super::{SandboxProxy, hop_headers, tunnel};
use crate::gateway;
use atoll_core::network::NetworkTarget;
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

/// Deadline for a request head, and idle time between requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_HEAD_BYTES: usize = 64 << 10;
const MAX_HEADERS: usize = 100;

type Body = BoxBody<Bytes, hyper::Error>;

/// The use of the connection after its last HTTP request.
enum AfterRequests {
    /// The client requested a tunnel.
    Tunnel { client: OnUpgrade, connected: EgressConnection },
    /// Client and server upgraded to WebSocket.
    Upgraded { client: OnUpgrade, server: OnUpgrade, meter: Arc<ConnectionMeter> },
}

/// A reusable connection to a server.
struct KeptConnection {
    sender: client::SendRequest<Incoming>,
    meter: Arc<ConnectionMeter>,
    via_proxy: bool,
    _driver: ConnectionDriver,
}

/// The task that drives a connection; aborted on drop.
struct ConnectionDriver(JoinHandle<()>);

impl Drop for ConnectionDriver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// One client connection of the proxy.
struct ProxyConnection {
    proxy: Arc<SandboxProxy>,
    /// Inside a tunnel, the only target of requests.
    tunnel_target: Option<NetworkTarget>,
    connection: Mutex<Option<KeptConnection>>,
    next: Mutex<Option<AfterRequests>>,
    /// Open responses of the model gateway.
    model_responses: OpenResponses,
}

/// Serves a program's proxy connection. `peer` is a second handle that detects its end.
pub async fn serve_proxy(service: &Arc<SandboxProxy>, stream: Stream, peer: OwnedReadHalf) {
    serve_requests(Arc::new(ProxyConnection::new(service, None, None)), stream, Some(peer)).await;
}

/// Serves plain HTTP inside a tunnel.
pub async fn serve_tunnel(service: &Arc<SandboxProxy>, stream: Stream, server: Stream, meter: Arc<ConnectionMeter>) {
    let target = meter.target.clone();
    if let Ok(connection) =
        start_connection(service, EgressConnection { stream: server, meter, via_proxy: false }).await
    {
        serve_requests(Arc::new(ProxyConnection::new(service, Some(target), Some(connection))), stream, None).await;
    }
}

async fn serve_requests(conversation: Arc<ProxyConnection>, stream: Stream, peer: Option<OwnedReadHalf>) {
    let service = Arc::clone(&conversation.proxy);
    let answering = Arc::clone(&conversation);
    let answer = service_fn(move |request| {
        let conversation = Arc::clone(&answering);
        async move { Ok::<_, Infallible>(conversation.handle_request(request).await) }
    });
    let serving = server::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEAD_BYTES)
        .half_close(true)
        .serve_connection(TokioIo::new(stream), answer)
        .with_upgrades();
    tokio::select! {
        served = serving => if let Err(error) = served {
            tracing::debug!(sandbox = %service.sandbox_egress.sandbox, %error, "a proxy connection failed");
        },
        // The client is gone: cancel its model request.
        () = conversation.model_responses.wait_for_disconnect(peer) => return,
    }
    let next = lock(&conversation.next).take();
    match next {
        Some(AfterRequests::Tunnel { client, connected }) => {
            if let Ok(client) = client.await {
                let EgressConnection { stream, meter, .. } = connected;
                tunnel::serve_tunnel(&service, Box::new(TokioIo::new(client)), stream, meter).await;
            }
        }
        Some(AfterRequests::Upgraded { client, server, meter }) => {
            if let (Ok(client), Ok(server)) = tokio::join!(client, server) {
                let (client, server) = (Box::new(TokioIo::new(client)), Box::new(TokioIo::new(server)));
                tunnel::copy_both_ways(&service, client, server, Vec::new(), &meter).await;
            }
        }
        None => {}
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn start_connection(
    service: &Arc<SandboxProxy>,
    connected: EgressConnection,
) -> Result<KeptConnection, ConnectFailure> {
    let EgressConnection { stream, meter, via_proxy: by_proxy } = connected;
    let target = &meter.target;
    let handshake = client::Builder::new().max_buf_size(MAX_HEAD_BYTES).handshake(TokioIo::new(stream)).await;
    let (sender, connection) =
        handshake.map_err(|error| ConnectFailure::Failed(format!("{target} cannot be reached: {error}")))?;
    let (service, driven) = (Arc::clone(service), Arc::clone(&meter));
    let driving = tokio::spawn(async move {
        tokio::select! {
            _ = connection.with_upgrades() => service.report_byte_limit(&driven),
            cut = driven.wait_until_cut() => if let Some(refusal) = cut {
                service.report_refusal(&driven.target.host.to_string(), driven.target.port, &refusal);
            },
        }
    });
    Ok(KeptConnection { sender, meter, via_proxy: by_proxy, _driver: ConnectionDriver(driving) })
}

impl ProxyConnection {
    fn new(
        service: &Arc<SandboxProxy>,
        tunnel_target: Option<NetworkTarget>,
        connection: Option<KeptConnection>,
    ) -> Self {
        Self {
            proxy: Arc::clone(service),
            tunnel_target,
            connection: Mutex::new(connection),
            next: Mutex::default(),
            model_responses: OpenResponses::default(),
        }
    }

    async fn handle_request(&self, request: Request<Incoming>) -> Response<Body> {
        let written = match (&self.tunnel_target, request.uri().authority()) {
            (Some(target), _) => target.to_string(),
            (None, Some(authority)) => authority.to_string(),
            (None, None) => return text_response(StatusCode::BAD_REQUEST, None, NOT_A_WEB_SERVER.to_owned()),
        };
        // A program may send gateway requests through the proxy, which listens on the same address.
        let request = match self.proxy.app.upgrade() {
            Some(app)
                if self.tunnel_target.is_none()
                    && OWN_ADDRESSES.contains(&written.as_str())
                    && *request.method() != Method::CONNECT =>
            {
                let under_way = self.model_responses.begin();
                match gateway::handle_request(&app, self.proxy.sandbox_egress.sandbox, request).await {
                    Ok(response) => return response.map(|body| guard_body(body, under_way)),
                    Err(request) => request,
                }
            }
            Some(_) | None => request,
        };
        let answered = match *request.method() {
            Method::CONNECT => self.open_tunnel(request).await,
            _ => self.forward_request(request).await,
        };
        match answered {
            Ok(response) => response,
            Err(ConnectFailure::Failed(sentence)) => text_response(StatusCode::BAD_GATEWAY, None, sentence),
            Err(ConnectFailure::Refused(refusal)) => self.refusal_response(&written, &refusal),
        }
    }

    fn refusal_response(&self, written: &str, refusal: &EgressRefusal) -> Response<Body> {
        let sandbox = self.proxy.sandbox_egress.sandbox;
        let (place, host, port) = match NetworkTarget::parse(written, Some(80)) {
            Some(target) => (target.to_string(), target.host.to_string(), target.port),
            None => (written.to_owned(), written.to_owned(), 0),
        };
        self.proxy.report_refusal(&host, port, refusal);
        text_response(StatusCode::FORBIDDEN, Some(refusal), refusal.message(sandbox, &place))
    }

    async fn open_tunnel(&self, mut request: Request<Incoming>) -> Result<Response<Body>, ConnectFailure> {
        if self.tunnel_target.is_some() {
            return Err(ConnectFailure::Failed("CONNECT is not supported inside a tunnel".to_owned()));
        }
        let authority = request.uri().authority().map(|authority| authority.as_str()).unwrap_or_default();
        let target = NetworkTarget::parse(authority, None).ok_or(EgressRefusal::BadHost)?;
        let connected =
            self.proxy.connector().connect(&self.proxy.sandbox_egress, &target, ConnectionPurpose::Tunnel).await?;
        let client = hyper::upgrade::on(&mut request);
        *lock(&self.next) = Some(AfterRequests::Tunnel { client, connected });
        Ok(Response::new(empty_body()))
    }

    async fn forward_request(&self, mut request: Request<Incoming>) -> Result<Response<Body>, ConnectFailure> {
        let target = self.request_target(&request)?;
        let path = request.uri().path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
        let upgrade_header = hop_headers::requested_upgrade(request.headers());
        let client = upgrade_header.is_some().then(|| hyper::upgrade::on(&mut request));
        hop_headers::strip_hop_headers(request.headers_mut(), upgrade_header.as_ref());
        let host = format_host(&target);
        let unusable =
            |error: &dyn std::fmt::Display| ConnectFailure::Failed(format!("{target} cannot be requested: {error}"));
        let value = HeaderValue::from_str(&host).map_err(|error| unusable(&error))?;
        request.headers_mut().insert(HOST, value);
        *request.version_mut() = Version::HTTP_11;

        let (mut response, connection) = self.send_request(&target, request, path).await?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let (Some(client), Some(upgrade_header)) = (client, upgrade_header) else {
                return Err(ConnectFailure::Failed(format!("{target} upgraded the connection without a request")));
            };
            let server = hyper::upgrade::on(&mut response);
            hop_headers::strip_hop_headers(response.headers_mut(), Some(&upgrade_header));
            *lock(&self.next) = Some(AfterRequests::Upgraded { client, server, meter: Arc::clone(&connection.meter) });
            // The tunnel now uses the connection.
            *lock(&self.connection) = Some(connection);
            return Ok(response.map(|_| empty_body()));
        }
        hop_headers::strip_hop_headers(response.headers_mut(), None);
        *lock(&self.connection) = Some(connection);
        Ok(response.map(BodyExt::boxed))
    }

    /// The target of a request. URL and `Host` header must agree.
    fn request_target(&self, request: &Request<Incoming>) -> Result<NetworkTarget, ConnectFailure> {
        let uri = request.uri();
        let named = match (uri.scheme_str(), uri.authority()) {
            (Some("http"), Some(authority)) => {
                Some(NetworkTarget::parse(authority.as_str(), Some(80)).ok_or(EgressRefusal::BadHost)?)
            }
            (None, None) if self.tunnel_target.is_some() => None,
            _ => return Err(ConnectFailure::Failed("expected an http:// URL; use CONNECT for https://".to_owned())),
        };
        let target = match (&self.tunnel_target, named) {
            (Some(only), None) => only.clone(),
            (Some(only), Some(named)) if *only == named => named,
            (Some(_), Some(_)) => return Err(EgressRefusal::HostHeader.into()),
            (None, Some(named)) => named,
            (None, None) => return Err(EgressRefusal::BadHost.into()),
        };
        let mut hosts = request.headers().get_all(HOST).iter();
        let host = match (hosts.next(), hosts.next()) {
            (Some(host), None) => host.to_str().ok().and_then(|host| NetworkTarget::parse(host, Some(80))),
            // HTTP/1.0 has no Host header.
            (None, None) if request.version() == Version::HTTP_10 => Some(target.clone()),
            _ => None,
        };
        if host.as_ref() == Some(&target) { Ok(target) } else { Err(EgressRefusal::HostHeader.into()) }
    }

    /// Sends a request over the last connection if it has the same target, else over a new one.
    async fn send_request(
        &self,
        target: &NetworkTarget,
        mut request: Request<Incoming>,
        path: PathAndQuery,
    ) -> Result<(Response<Incoming>, KeptConnection), ConnectFailure> {
        let unusable =
            |error: &dyn std::fmt::Display| ConnectFailure::Failed(format!("{target} cannot be requested: {error}"));
        self.proxy.sandbox_egress.check_policy(target)?;
        let connection = lock(&self.connection).take().filter(|connection| connection.meter.target == *target);
        if let Some(mut connection) = connection
            && connection.sender.ready().await.is_ok()
        {
            self.set_request_uri(&mut request, &connection, &path).map_err(|error| unusable(&error))?;
            match connection.sender.try_send_request(request).await {
                Ok(response) => return Ok((response, connection)),
                // A server may close an idle connection at any time; resend a request that it did not receive.
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(self.send_failure(&connection.meter, &error.into_error())),
                },
            }
        }
        let connected =
            self.proxy.connector().connect(&self.proxy.sandbox_egress, target, ConnectionPurpose::Requests).await?;
        let mut connection = start_connection(&self.proxy, connected).await?;
        self.set_request_uri(&mut request, &connection, &path).map_err(|error| unusable(&error))?;
        match connection.sender.send_request(request).await {
            Ok(response) => Ok((response, connection)),
            Err(error) => Err(self.send_failure(&connection.meter, &error)),
        }
    }

    /// The reason of a failed request: a refusal if the proxy cut the connection.
    fn send_failure(&self, meter: &ConnectionMeter, error: &hyper::Error) -> ConnectFailure {
        match self.proxy.sandbox_egress.check_policy(&meter.target) {
            Err(refusal) => refusal.into(),
            Ok(()) => ConnectFailure::Failed(format!("{} did not respond: {error}", meter.target)),
        }
    }

    /// Sets the path for a server; for an upstream proxy, the absolute URL and the credentials.
    fn set_request_uri(
        &self,
        request: &mut Request<Incoming>,
        connection: &KeptConnection,
        path: &PathAndQuery,
    ) -> Result<(), axum::http::Error> {
        if !connection.via_proxy {
            *request.uri_mut() = Uri::from(path.clone());
            return Ok(());
        }
        let authority = format_host(&connection.meter.target);
        *request.uri_mut() = Uri::builder().scheme("http").authority(authority).path_and_query(path.clone()).build()?;
        let upstream = self.proxy.connector().upstream.as_ref();
        if let Some(authorization) = upstream.and_then(|upstream| upstream.authorization.as_ref()) {
            let mut value = HeaderValue::from_str(authorization.expose_secret())?;
            value.set_sensitive(true);
            request.headers_mut().insert(PROXY_AUTHORIZATION, value);
        }
        Ok(())
    }
}

/// The target as in a URL and its `Host` header.
fn format_host(target: &NetworkTarget) -> String {
    if target.port == 80 { target.host.to_string() } else { target.to_string() }
}

/// The proxy's own address inside a sandbox.
const OWN_ADDRESSES: [&str; 2] = ["127.0.0.1:7709", "localhost:7709"];

const NOT_A_WEB_SERVER: &str = "this is Atoll's egress proxy, not a web server: use it through HTTP_PROXY and \
                                   HTTPS_PROXY, which are already set.";

fn empty_body() -> Body {
    Full::new(Bytes::new()).map_err(|never| match never {}).boxed()
}

fn text_response(status: StatusCode, refusal: Option<&EgressRefusal>, sentence: String) -> Response<Body> {
    let mut response = Response::new(Full::from(format!("{sentence}\n")).map_err(|never| match never {}).boxed());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    if let Some(refusal) = refusal {
        response.headers_mut().insert("x-atoll-refused", HeaderValue::from_static(refusal.code()));
        // Many programs show only the status line of a refused CONNECT.
        response.extensions_mut().insert(ReasonPhrase::from_static(refusal.reason_phrase().as_bytes()));
    }
    response
}
