//! Uploads and downloads blobs as streams, each on its own connection.

use super::{AUTHORIZATION, Error, HOST, Reply, Server, USER_AGENT, USER_AGENT_VALUE, chain, classify_response};
use atoll_core::bounds::MAX_BLOB_BYTES;
use bytes::Bytes;
use futures_util::stream;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http1::handshake;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

const CHUNK_BYTES: usize = 64 * 1024;
/// Time limit of one upload, and of the response to a download's request.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(300);
/// Size limit of a reply that is not a blob.
const MAX_REPLY_BYTES: usize = 64 * 1024;

type Body = BoxBody<Bytes, io::Error>;

impl Server {
    /// Uploads the first `length` bytes of a file.
    pub async fn put_blob(&self, name: &str, file: Arc<File>, length: u64) -> Reply {
        let pieces = stream::try_unfold((file, 0), move |(file, at)| async move {
            let size = usize::try_from(length - at).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
            if size == 0 {
                return Ok(None);
            }
            let mut piece = vec![0; size];
            file.read_exact_at(&mut piece, at)?;
            Ok(Some((Frame::data(Bytes::from(piece)), (file, at + size as u64))))
        });
        let body = BodyExt::boxed(StreamBody::new(pieces));
        let upload = async {
            match self.exchange("PUT", name, body, length).await {
                Ok(response) => read_reply(response).await,
                Err(error) => Reply::later(chain(&*error)),
            }
        };
        timeout(TRANSFER_TIMEOUT, upload).await.unwrap_or_else(|_| late_reply())
    }

    /// Downloads a blob as a bounded stream, or returns the server's error.
    pub async fn get_blob(&self, name: &str) -> Result<Limited<Incoming>, Reply> {
        let body = BodyExt::boxed(Empty::new().map_err(|never| match never {}));
        let response = timeout(TRANSFER_TIMEOUT, self.exchange("GET", name, body, 0)).await;
        let response = response.map_err(|_| late_reply())?.map_err(|error| Reply::later(chain(&*error)))?;
        if response.status().is_success() {
            return Ok(Limited::new(response.into_body(), MAX_BLOB_BYTES));
        }
        Err(read_reply(response).await)
    }

    async fn exchange(&self, method: &str, name: &str, body: Body, length: u64) -> Result<Response<Incoming>, Error> {
        let io = self.dialer.dial().await?;
        let (mut sender, connection) = handshake(TokioIo::new(io)).await?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to the server ended");
            }
        });
        let path = self.path(&format!("blobs/{name}"));
        let mut request = Request::builder().method(method).uri(path).header(HOST, self.dialer.host_header());
        request = request.header(USER_AGENT, USER_AGENT_VALUE);
        if length > 0 {
            request = request.header(CONTENT_TYPE, "application/octet-stream").header(CONTENT_LENGTH, length);
        }
        if let Some(token) = self.authorization()? {
            request = request.header(AUTHORIZATION, token);
        }
        Ok(sender.send_request(request.body(body)?).await?)
    }
}

fn late_reply() -> Reply {
    Reply::later(format!("no answer within {} s", TRANSFER_TIMEOUT.as_secs()))
}

async fn read_reply(response: Response<Incoming>) -> Reply {
    let status = response.status();
    match Limited::new(response.into_body(), MAX_REPLY_BYTES).collect().await {
        Ok(body) => classify_response(status, None, body.to_bytes()),
        Err(error) => Reply::later(format!("failed to read the reply: {error}")),
    }
}
