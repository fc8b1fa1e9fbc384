//! The HTTP client of the exporter: the server's own, on the server's runtime.

use crate::gateway::{UpstreamClient, new_upstream_client, upstream_root_cause};
use atoll_core::BoxFuture;
use axum::body::Bytes;
use axum::http::{Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use opentelemetry_http::{HttpClient, HttpError};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;

/// Limit on one export.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest response that is read.
const MAX_RESPONSE_BYTES: usize = 64 << 10;

/// Sends exports. The exporter's thread has no runtime of its own.
pub struct OtlpClient {
    client: UpstreamClient,
    runtime: Handle,
    /// The last export failed, and the log says so.
    is_failing: AtomicBool,
}

impl OtlpClient {
    pub fn new(runtime: Handle, proxy: Option<crate::egress::UpstreamProxy>) -> Self {
        Self { client: new_upstream_client(proxy), runtime, is_failing: AtomicBool::new(false) }
    }

    /// Logs the first failure of several in a row.
    fn log_result(&self, result: &Result<Response<Bytes>, HttpError>) {
        let failure = match result {
            Ok(response) if response.status().is_success() => None,
            Ok(response) => Some(format!("the receiver responded {}", response.status())),
            Err(error) => Some(error.to_string()),
        };
        match failure {
            Some(detail) if !self.is_failing.swap(true, Ordering::Relaxed) => {
                tracing::warn!(
                    detail,
                    "failed to export traces; later failures are not logged until an export succeeds"
                );
            }
            Some(_) => {}
            None => self.is_failing.store(false, Ordering::Relaxed),
        }
    }
}

impl fmt::Debug for OtlpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OtlpClient").finish_non_exhaustive()
    }
}

async fn send_request(client: UpstreamClient, request: Request<Full<Bytes>>) -> Result<Response<Bytes>, HttpError> {
    let response = client.request(request).await.map_err(|error| upstream_root_cause(&error))?;
    let (head, body) = response.into_parts();
    let body = Limited::new(body, MAX_RESPONSE_BYTES).collect().await?.to_bytes();
    Ok(Response::from_parts(head, body))
}

impl HttpClient for OtlpClient {
    fn send_bytes<'life0, 'async_trait>(
        &'life0 self,
        request: Request<Bytes>,
    ) -> BoxFuture<'async_trait, Result<Response<Bytes>, HttpError>>
    where
        'life0: 'async_trait,
        Self: 'async_trait,
    {
        let client = self.client.clone();
        let sending = self.runtime.spawn(async move {
            let sent = tokio::time::timeout(EXPORT_TIMEOUT, send_request(client, request.map(Full::new)));
            sent.await.unwrap_or_else(|_| Err("the export timed out".into()))
        });
        Box::pin(async move {
            let result = sending.await.unwrap_or_else(|error| Err(error.into()));
            self.log_result(&result);
            result
        })
    }
}
