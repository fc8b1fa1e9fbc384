//! `/webhooks`: events of forges. A signature over the body takes the place of a token.

use crate::app::webhooks::{self, ReceivedWebhook};
use crate::extract::read_body;
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_api::WebhookReceipt;
use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use std::sync::Arc;

/// GitHub's own limit is 25 MB; only pushes of thousands of commits are larger than this.
const MAX_WEBHOOK_BYTES: usize = 5 << 20;

/// Receive a webhook of GitHub.
///
/// The server must have `github.webhook_secret`. A repeated delivery changes nothing.
#[utoipa::path(post, path = "/webhooks/github", tag = "webhooks", security(()),
    params(("X-GitHub-Event" = String, Header), ("X-GitHub-Delivery" = String, Header),
        ("X-Hub-Signature-256" = String, Header)),
    request_body = Object, responses((status = 202, body = WebhookReceipt)))]
pub async fn receive_github_webhook(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    request: Request,
) -> Result<(StatusCode, Json<WebhookReceipt>)> {
    let body = read_body(request, MAX_WEBHOOK_BYTES).await?;
    let received = ReceivedWebhook {
        event: read_header(&headers, "X-GitHub-Event")?,
        delivery: read_header(&headers, "X-GitHub-Delivery")?,
        signature: read_header(&headers, "X-Hub-Signature-256")?,
        body: body.to_vec(),
    };
    Ok((StatusCode::ACCEPTED, Json(webhooks::receive_webhook(&app, received).await?)))
}

fn read_header(headers: &HeaderMap, name: &str) -> Result<String> {
    let value = headers.get(name).and_then(|value| value.to_str().ok());
    value.map(str::to_owned).ok_or_else(|| Problem::new(Code::BadRequest, format!("the header {name} is missing")))
}
